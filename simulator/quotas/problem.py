"""Regst quotas as buffer sizing of a timed marked graph, on plain arrays.

A node is an act that repeats once per period L; s_v is the start of its first repetition.  An arc u -> v with weight w and k tokens says

    s_v >= s_u + w - k L                                                                    (1)   -> arcs()

Nodes, data, streams and everything else that a Plan fixes are *fixed arcs*.  A Buffer (a Regst) adds arcs whose place depends on its quota:
of b blocks per period, block j is first written by act P[j] and given back by act C[j]; with quota q, block j + q lies where block j lay:

    C[j] -> P[(j + q) mod b]   with  floor((j + q) / b) tokens                              (2)   -> arcs()

With b = 1 the quota itself is the number of tokens, and (1) is linear in s and q.

    bytes(q) = sum_r block_bytes_r copies_r q_r                                             (3)   -> total_bytes()
    bytes(q, place) = fixed_bytes(place) + sum_{r on place} block_bytes_r q_r               (4)   -> place_bytes()

Sources: Baccelli, Cohen, Olsder, Quadrat 1992, "Synchronization and Linearity" (1);  Ning & Gao, POPL 1993, and Moreira, Basten, Geilen,
Stuijk 2010, "Buffer sizing for rate-optimal single-rate data-flow scheduling revisited" (b = 1);  SEMANTICS 3.2, 4.1, 4.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from planner.ir.errors import InvalidPlan

__all__ = ["QuotaArcs", "Buffer", "Floats", "Ints", "QuotaProblem", "Ring"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class QuotaArcs:
    """Arrays of one length: arc e goes from tail[e] to head[e], ``weight_s[e]`` from start to start, with tokens[e] periods in between.

    buffer: the number of the Buffer whose quota made the arc, -1 for fixed ones.
    """

    tail: Ints
    head: Ints
    tokens: Ints
    weight_s: Floats
    buffer: Ints


@dataclass(frozen=True, slots=True)
class Ring:
    """One producer and one consumer of a Buffer.

    producers[j]: the node that first writes block j of a period.   consumers[j]: the node that gives it back.
    release_s: from the start of that node to the moment the producer knows (its duration and the message).
    """

    producers: tuple[int, ...]
    consumers: tuple[int, ...]
    release_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """A Regst whose quota is to be found, between ``lower`` and ``upper``.

    block_bytes: of one block on one device.   copies: devices that hold it.   places: whose budgets it counts against.
    """

    name: str
    block_bytes: int
    upper: int
    rings: tuple[Ring, ...]
    lower: int = 1
    copies: int = 1
    places: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class QuotaProblem:
    """Fixed arcs (arrays of one length) and Buffers.   fixed_bytes: per place, the bytes that do not depend on quotas."""

    num_nodes: int
    tail: Ints
    head: Ints
    tokens: Ints
    weight_s: Floats
    buffers: tuple[Buffer, ...]
    fixed_bytes: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sizes = {len(self.tail), len(self.head), len(self.tokens), len(self.weight_s)}
        if len(sizes) != 1:
            raise InvalidPlan(f"fixed arcs come as arrays of lengths {sorted(sizes)}; they need one length")
        nodes = [
            *self.tail.tolist(),
            *self.head.tolist(),
            *(n for b in self.buffers for r in b.rings for n in (*r.producers, *r.consumers)),
        ]
        if nodes and not (min(nodes) >= 0 and max(nodes) < self.num_nodes):
            raise InvalidPlan(f"arcs name nodes {min(nodes)} .. {max(nodes)}, the problem has 0 .. {self.num_nodes - 1}")
        if not np.isfinite(self.weight_s).all() or (len(self.weight_s) and self.weight_s.min() < 0):
            raise InvalidPlan("an arc has a weight that is negative or not finite; times are finite and at least 0 s")
        for buffer in self.buffers:
            if not 1 <= buffer.lower <= buffer.upper:
                raise InvalidPlan(f"buffer {buffer.name} may have {buffer.lower} .. {buffer.upper} blocks; 1 <= lower <= upper is needed")
            if any(len(r.producers) != len(r.consumers) or not r.producers for r in buffer.rings):
                raise InvalidPlan(f"buffer {buffer.name}: each ring needs as many producing as consuming acts, at least 1")

    @cached_property
    def price_bytes(self) -> Ints:
        """Bytes of one more block of each Buffer on all devices together."""
        return np.array([b.block_bytes * b.copies for b in self.buffers], dtype=np.int64)

    @cached_property
    def lower(self) -> Ints:
        return np.array([b.lower for b in self.buffers], dtype=np.int64)

    @cached_property
    def upper(self) -> Ints:
        return np.array([b.upper for b in self.buffers], dtype=np.int64)

    @cached_property
    def places(self) -> tuple[str, ...]:
        return tuple(sorted({*self.fixed_bytes, *(place for b in self.buffers for place in b.places)}))

    @cached_property
    def _rings(self) -> tuple[Ints, Ints, Ints, Ints, Ints, Ints, Floats]:
        """Per returned block: buffer, consumer node, its number j, blocks per period b, where P begins in the flat list; the list; release."""
        buffer: list[int] = []
        consumer: list[int] = []
        block: list[int] = []
        per_period: list[int] = []
        begins: list[int] = []
        flat: list[int] = []
        release: list[float] = []
        for number, buffered_regst in enumerate(self.buffers):
            for ring in buffered_regst.rings:
                size, begin = len(ring.producers), len(flat)
                flat += ring.producers
                buffer += [number] * size
                consumer += ring.consumers
                block += range(size)
                per_period += [size] * size
                begins += [begin] * size
                release += [ring.release_s] * size
        whole = [np.array(part, dtype=np.int64) for part in (buffer, consumer, block, per_period, begins, flat)]
        return whole[0], whole[1], whole[2], whole[3], whole[4], whole[5], np.array(release, dtype=np.float64)

    def arcs(self, quotas: Sequence[int] | Ints) -> QuotaArcs:
        """Fixed arcs, then (2) for these quotas."""
        buffer, consumer, block, per_period, begins, flat, release = self._rings
        shifted = block + np.asarray(quotas, dtype=np.int64)[buffer]
        return QuotaArcs(
            np.concatenate([self.tail, consumer]),
            np.concatenate([self.head, flat[begins + shifted % per_period] if len(flat) else consumer]),
            np.concatenate([self.tokens, shifted // per_period]),
            np.concatenate([self.weight_s, release]),
            np.concatenate([np.full(len(self.tail), -1, dtype=np.int64), buffer]),
        )

    def fixed_arcs(self) -> QuotaArcs:
        """The arcs that do not depend on quotas; those of unlimited quotas."""
        return QuotaArcs(self.tail, self.head, self.tokens, self.weight_s, np.full(len(self.tail), -1, dtype=np.int64))

    def total_bytes(self, quotas: Sequence[int] | Ints) -> int:
        """(3) Bytes of all blocks on all devices."""
        return int(self.price_bytes @ np.asarray(quotas, dtype=np.int64))

    def place_bytes(self, quotas: Sequence[int] | Ints) -> dict[str, int]:
        """(4) Bytes per device, fixed bytes included."""
        bytes_at = {place: int(self.fixed_bytes.get(place, 0)) for place in self.places}
        for buffer, quota in zip(self.buffers, quotas, strict=True):
            for place in buffer.places:
                bytes_at[place] += buffer.block_bytes * int(quota)
        return bytes_at

    def bounded(self, lower: Ints) -> QuotaProblem:
        """The same problem with larger lower bounds."""
        buffers = [replace(b, lower=int(low), upper=max(b.upper, int(low))) for b, low in zip(self.buffers, lower, strict=True)]
        return replace(self, buffers=tuple(buffers))

    def only(self, chosen: Sequence[int]) -> QuotaProblem:
        """The problem where only these Buffers limit anything; the others are unlimited."""
        return replace(self, buffers=tuple(self.buffers[r] for r in chosen))
