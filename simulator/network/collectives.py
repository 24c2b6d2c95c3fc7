"""Rounds on a network: the flows of a collective, each of which sets out when its two ranks are ready for it.

A move of round t starts when every earlier move of its sender and of its receiver has ended: a rank passes from round to round by itself, and
no barrier holds back those that are early.  On a network where all rounds take equally long this is the same as a barrier.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from planner.ir.collective import Collective
from planner.ir.errors import InvalidPlan
from simulator.network.fabric import Fabric
from simulator.network.flows import FlowTrace, simulate_flows
from simulator.network.links import Flow, Sharing
from simulator.network.rounds import Rounds

__all__ = ["chunk_bytes", "collective_flows", "simulate_collective"]


def chunk_bytes(rounds: Rounds, size_bytes: float) -> float:
    """Bytes of one chunk.

    Args:
        size_bytes: all-reduce and reduce-scatter: of the tensor on each rank; all-gather: of the gathered tensor; all-to-all: of what each
            rank holds before.
    """
    if not (math.isfinite(size_bytes) and size_bytes >= 0):
        raise InvalidPlan(f"{rounds.name} of {size_bytes} bytes; a size is finite and >= 0")
    return size_bytes / (rounds.num_ranks if rounds.collective is Collective.ALL_TO_ALL else rounds.num_chunks)


def collective_flows(
    rounds: Rounds,
    fabric: Fabric,
    size_bytes: float,
    *,
    ranks: Sequence[int] | None = None,
    name: str = "",
    after: Iterable[str] = (),
    not_before_s: float = 0.0,
) -> tuple[Flow, ...]:
    """The flows of a collective.

    Args:
        size_bytes: as in ``chunk_bytes``.
        ranks: the rank of the fabric that plays each rank of the rounds; None: the same number.
        name: what the flows' names begin with; empty: the rounds' name.
        after, not_before_s: when the ranks are there: the first moves of each rank wait for this.

    Returns:
        Flows named "<name>/<round>:<src>-<dst>:<first chunk>", in order of rounds.

    Raises:
        InvalidPlan: ranks that are not one each.
    """
    place = list(ranks) if ranks is not None else list(range(rounds.num_ranks))
    if len(place) != rounds.num_ranks or len(set(place)) != len(place):
        raise InvalidPlan(f"{rounds.name} on ranks {place[:16]}: it needs {rounds.num_ranks} different ranks")
    one_bytes, first = chunk_bytes(rounds, size_bytes), tuple(after)
    last: dict[int, Sequence[str]] = {}
    flows: list[Flow] = []
    for number, moves in enumerate(rounds.rounds):
        now: dict[int, list[str]] = {}
        for move in moves:
            label = f"{name or rounds.name}/{number}:{place[move.src]}-{place[move.dst]}:{move.chunks[0]}"
            waits = dict.fromkeys(flow for rank in (move.src, move.dst) for flow in last.get(rank, first))
            flows.append(
                Flow(
                    name=label,
                    route=fabric.collective_route(place[move.src], place[move.dst], place, number),
                    size_bytes=len(move.chunks) * one_bytes,
                    after=tuple(waits),
                    not_before_s=not_before_s,
                )
            )
            for rank in (move.src, move.dst):
                now.setdefault(rank, []).append(label)
        last |= now
    return tuple(flows)


def simulate_collective(rounds: Rounds, fabric: Fabric, size_bytes: float, sharing: Sharing = Sharing.MAX_MIN) -> FlowTrace:
    """One collective alone on a network; its time is the trace's ``end_s``."""
    return simulate_flows(collective_flows(rounds, fabric, size_bytes), fabric.links, sharing)
