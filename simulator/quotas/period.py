"""Which start times a period allows, or which cycle of waits forbids it; and the shortest period of given arcs.

    s_head >= s_tail + weight - tokens L    for all arcs                                    (1)   -> feasible_starts()

Start times that satisfy (1) prove that period L is reached; a cycle whose weights sum to more than its tokens times L proves that it is not.
The shortest L is the maximum cycle ratio (simulator.steady.cycle_ratio)                         -> shortest_period_s()
"""

from __future__ import annotations

import numba
import numpy as np

from simulator.quotas.problem import Floats, Ints, QuotaArcs
from simulator.steady.cycle_ratio import max_cycle_ratio

__all__ = ["feasible_starts", "shortest_period_s"]

_TOLERANCE = 1e-11
"""Relative to the sum of the weights on a longest path: a cycle is positive only beyond rounding."""


@numba.njit(cache=True)
def _relax(num_nodes, tail, head, weight, starts, arc_of, close):  # type: ignore[no-untyped-def]
    """Longest paths by sweeps over the arcs; returns a node on a positive cycle, or -1 when all arcs hold."""
    mark = np.empty(num_nodes, np.int64)
    for sweep in range(num_nodes + 2):
        changed = False
        for e in range(len(tail)):
            reached = starts[tail[e]] + weight[e]
            if reached > starts[head[e]] + close:
                starts[head[e]] = reached
                arc_of[head[e]] = e
                changed = True
        if not changed:
            return -1
        if sweep < 4 or sweep % 4 == 0 or sweep >= num_nodes:
            # A cycle of parents is a positive cycle.
            mark[:] = -1
            for root in range(num_nodes):
                node = root
                while node >= 0 and mark[node] < 0:
                    mark[node] = root
                    node = tail[arc_of[node]] if arc_of[node] >= 0 else -1
                if node >= 0 and mark[node] == root:
                    return node
    return -1


def _sorted(arcs: QuotaArcs, starts: Floats) -> Ints:
    """Arcs by the start of their tail: sweeps in the order of time carry a change along whole paths."""
    return np.argsort(starts[arcs.tail], kind="stable")


def feasible_starts(
    num_nodes: int, arcs: QuotaArcs, period_s: float, hint_s: Floats | None = None
) -> tuple[Floats | None, tuple[int, ...]]:
    """Earliest start times that satisfy every arc at this period, or the arcs of a cycle that forbids it.

    Args:
        hint_s: start times of a similar problem; from them the search for the answer is shorter.

    Returns:
        (starts, ()) or (None, cycle).
    """
    weight = arcs.weight_s - period_s * arcs.tokens
    close = _TOLERANCE * max(1e-30, float(np.abs(arcs.weight_s).max(initial=0.0)) + abs(period_s))
    starts = np.zeros(num_nodes) if hint_s is None else hint_s.astype(np.float64).copy()
    order = _sorted(arcs, starts)
    arc_of = np.full(num_nodes, -1, dtype=np.int64)
    node = int(_relax(num_nodes, arcs.tail[order], arcs.head[order], weight[order], starts, arc_of, close))
    if node < 0:
        return starts, ()
    cycle: list[int] = []
    at = node
    while True:
        arc = int(order[arc_of[at]])
        cycle.append(arc)
        at = int(arcs.tail[arc])
        if at == node:
            break
    return None, tuple(reversed(cycle))


def shortest_period_s(num_nodes: int, arcs: QuotaArcs) -> float:
    """The shortest period that the arcs allow, in seconds; every cycle of them has a token."""
    return max_cycle_ratio(num_nodes, arcs.tail, arcs.head, arcs.weight_s, arcs.tokens).ratio_s
