"""A few layers out of thousands of ops: the pieces from which pipeline stages are put together (planner.stages.interop).

    C(i, k)  bytes that pieces i..k read from before i, and hand back as gradients, each tensor once                   -> incoming_bytes()
    G(k, r)  = min over i with flop(i..k) <= (1 + delta) total / L of  max(G(i-1, r-1), C(i, k))                       (1) -> cluster_layers()

is Alpa's operator clustering: L runs of the trace order whose largest incoming communication is least.  Among equals Alpa takes the most even
flop; here the least sum of C comes before that, since one layer that cannot help reading much (a head) would free all the others.
State that two layers share (tied weights) crosses once per step, whatever the layers, and is not in C.

Repeated blocks are layers by themselves: a new one begins where the first number in the module path changes (h.3 -> h.4).  -> block_layers()

Source: Alpa (OSDI'22), section 5.2 "operator clustering", equation 6.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from planner.ir.errors import Unsupported
from planner.ir.graph import LogicalGraph, Op, Role
from planner.opset import is_creation, is_view
from planner.stages.dag import WorkDag, spread, work_dag
from planner.stages.prepare import block_of

__all__ = ["Border", "Layers", "block_layers", "cluster_layers", "cluster_runs", "incoming_bytes"]


@dataclass(frozen=True, slots=True)
class Border:
    """What crosses between two layers: values made at or before it that a later layer reads, and their bytes, of one micro-batch."""

    values: tuple[str, ...]
    forward_bytes: int


@dataclass(frozen=True, slots=True)
class Layers:
    """ops: ids of each layer's forward ops, in trace order.  borders: one fewer than layers.  compute_flop: forward and backward, per layer."""

    ops: tuple[tuple[str, ...], ...]
    borders: tuple[Border, ...]
    compute_flop: tuple[float, ...]


def block_layers(graph: LogicalGraph) -> Layers:
    """Layers by repeated blocks; what stands before the first block and after the last are layers too.  A graph without blocks is one layer.

    >>> from planner.stages.layers import _block
    >>> block_of("h.3.attn.c_proj"), block_of("encoder.layers.0.mlp.1"), block_of("lm_head")
    ('h.3', 'encoder.layers.0', '')
    """
    forward = [op for op in graph.ops if op.role is Role.FORWARD]
    blocks = [block_of(op.module) for op in forward]
    numbered = [n for n, block in enumerate(blocks) if block]
    starts = [0]
    for before, here in pairwise(numbered):
        if blocks[here] != blocks[before]:
            starts.append(here)
    if numbered:
        starts += [numbered[0], numbered[-1] + 1]
    starts = sorted({start for start in starts if start < len(forward)})
    layer = {op.id: sum(start <= n for start in starts) - 1 for n, op in enumerate(forward)}
    return _layers(graph, work_dag(graph), layer, len(starts))


def cluster_layers(graph: LogicalGraph, num_layers: int, *, delta: float = 0.5) -> Layers:
    """Layers by (1).

    Args:
        num_layers: L.
        delta: no layer has more than (1 + delta) times the mean flop.

    Raises:
        Unsupported: L < 1, delta < 0, fewer pieces than layers, or a piece that is too heavy for delta.
    """
    if num_layers < 1 or delta < 0:
        raise Unsupported(f"{num_layers} layers with delta {delta:g}; at least 1 layer, and delta >= 0")
    dag = work_dag(graph)
    runs = cluster_runs(dag, num_layers, delta)
    if runs is None:
        heaviest = max(piece.compute_flop for piece in dag.pieces) * num_layers / max(dag.total_flop, 1.0)
        raise Unsupported(
            f"{len(dag.pieces)} pieces, the heaviest of them {heaviest:.2f} of a mean layer, cannot be clustered into {num_layers} layers "
            f"of at most {1 + delta:.2f} of the mean; use fewer layers or a larger delta"
        )
    of_piece = np.repeat(np.arange(num_layers), np.diff([0, *runs])).tolist()
    return _layers(graph, dag, spread(graph, dag, of_piece), num_layers)


def incoming_bytes(dag: WorkDag, first: int, last: int) -> float:
    """C(first, last): bytes of the flows that reach into pieces first..last from before.  The definition; cluster_runs() keeps it up to date."""
    return sum(f.size_bytes for f in dag.flows if not f.once and f.members[0] < first and any(first <= p <= last for p in f.members))


def cluster_runs(dag: WorkDag, num_layers: int, delta: float) -> list[int] | None:
    """(1), then the least sum of C, then the most even flop: where each run of pieces ends (exclusive); None without a legal clustering."""
    count = len(dag.pieces)
    done = np.concatenate([[0.0], np.cumsum([piece.compute_flop for piece in dag.pieces])])
    limit = (1 + delta) * dag.total_flop / num_layers * (1 + 1e-9)
    incoming = _all_incoming(dag, done, limit)
    cap = np.inf
    rows = np.arange(num_layers)
    origin = np.zeros((num_layers + 1, count + 1), dtype=np.int64)
    # The largest comes first, exactly: the second pass adds up bytes, but only over layers that do not exceed the least largest.
    for adding in (False, True):
        best = np.full((num_layers + 1, count + 1), np.inf)
        best[0, 0] = 0.0
        for stop in range(1, count + 1):
            start, costs = incoming[stop]
            if not len(costs):
                continue
            if adding:
                # Bytes are whole numbers and all squares together weigh less than half of one, so they only decide between equals.
                uneven = 0.5 * ((done[stop] - done[start:stop]) / max(done[-1], 1.0)) ** 2
                values = best[:-1, start:stop] + np.where(costs <= cap, costs + uneven, np.inf)
            else:
                values = np.maximum(best[:-1, start:stop], costs)
            pick = values.argmin(axis=1)
            best[1:, stop] = values[rows, pick]
            origin[1:, stop] = start + pick
        if not np.isfinite(best[num_layers, count]):
            return None
        cap = float(best[num_layers, count])
    ends = [count]
    for r in range(num_layers, 1, -1):
        ends.append(int(origin[r, ends[-1]]))
    return ends[::-1]


def _all_incoming(dag: WorkDag, done: NDArray[np.float64], limit: float) -> list[tuple[int, NDArray[np.float64]]]:
    """For each end k (exclusive): the first legal start, and C(i, k) of every start from there to k - 1."""
    touching: list[list[int]] = [[] for _ in dag.pieces]
    for number, flow in enumerate(dag.flows):
        for p in () if flow.once else flow.members:
            touching[p].append(number)
    found: list[tuple[int, NDArray[np.float64]]] = [(0, np.zeros(0))]
    for stop in range(1, len(dag.pieces) + 1):
        start = min(int(np.searchsorted(done, done[stop] - limit)), stop)
        costs = np.zeros(stop - start)
        seen: set[int] = set()
        crossing = 0.0
        for i in range(stop - 1, start - 1, -1):
            for number in touching[i]:
                flow = dag.flows[number]
                if flow.members[0] == i:
                    crossing -= flow.size_bytes if number in seen else 0.0
                elif number not in seen:
                    crossing += flow.size_bytes
                seen.add(number)
            costs[i - start] = max(crossing, 0.0)
        found.append((start, costs))
    return found


def _layers(graph: LogicalGraph, dag: WorkDag, layer: Mapping[str, int], count: int) -> Layers:
    ops: list[list[str]] = [[] for _ in range(count)]
    work = [0.0] * count
    forward = [op for op in graph.ops if op.role is Role.FORWARD]
    for op in forward:
        ops[layer[op.id]].append(op.id)
    for piece in dag.pieces:
        work[max(layer[op] for op in piece.ops)] += piece.compute_flop
    return Layers(tuple(map(tuple, ops)), _borders(graph, forward, layer, count), tuple(work))


def _borders(graph: LogicalGraph, forward: Sequence[Op], layer: Mapping[str, int], count: int) -> tuple[Border, ...]:
    """Views and creations are made where they are read, so what crosses is the computed value below them."""
    below: dict[str, tuple[str, ...]] = {}
    made_in: dict[str, int] = {}
    last_read: dict[str, int] = defaultdict(int)
    for op in forward:
        sources = tuple(dict.fromkeys(v for u in op.inputs for v in below.get(u, ())))
        cheap = is_view(op) or is_creation(op)
        for value in filter(None, op.outputs):
            below[value] = sources if cheap else (value,)
            made_in[value] = layer[op.id]
        if not cheap:
            for value in sources:
                last_read[value] = max(last_read[value], layer[op.id])
    borders = []
    for k in range(count - 1):
        values = tuple(value for value, home in made_in.items() if home <= k < last_read[value])
        borders.append(Border(values, sum(graph.values[value].size_bytes for value in values)))
    return tuple(borders)
