"""The judge: the exact period of given arcs, and start times that prove it.

    period = max over cycles of (sum of weights / sum of tokens)                            (1)   -> judge()

found from below: L = 0; while some cycle is positive under weights w - k L, let L be that cycle's ratio.  Each L is the ratio of a real cycle
and grows, so the last one is the maximum, and its longest paths are start times that satisfy every arc:

    s_head >= s_tail + weight - tokens L    for all arcs                                    (2)

(2) proves "no period above L" to anyone who adds up the arcs around a cycle; the cycle proves "none below L".

Source: Newton's method for the maximum cycle ratio (Dinkelbach 1967; Cochet-Terrasson et al. 1998 and Dasdan 2004 compare such methods).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numba
import numpy as np

from simulator.quotas.problem import Floats, Ints, QuotaArcs

__all__ = ["Verdict", "feasible_starts", "judge"]

_TOLERANCE = 1e-11
"""Relative to the sum of the weights on a longest path: a cycle is positive only beyond rounding."""


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """period_s: infinite if the arcs have a cycle without tokens.   cycle: arc numbers of a critical cycle, in order.
    starts_s: the proof (2), per node; empty if the period is infinite.
    """

    period_s: float
    cycle: tuple[int, ...]
    starts_s: Floats


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
    """QuotaArcs by the start of their tail: sweeps in the order of time reach far."""
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


def judge(num_nodes: int, arcs: QuotaArcs, at_least_s: float = 0.0, hint_s: Floats | None = None) -> Verdict:
    """(1) The exact period of the arcs with its proof from both sides.

    Args:
        at_least_s: a period known to be reached by a cycle, or 0; the search begins there.
    """
    period_s, cycle = at_least_s, tuple[int, ...]()
    while True:
        starts, positive = feasible_starts(num_nodes, arcs, period_s, hint_s)
        if starts is not None:
            return Verdict(period_s, cycle, starts)
        chosen = np.array(positive)
        tokens, duration = int(arcs.tokens[chosen].sum()), float(arcs.weight_s[chosen].sum())
        if tokens <= 0:
            return Verdict(inf, positive, np.zeros(0))
        if duration / tokens <= period_s:  # equal to rounding: the cycle is the critical one
            period_s = float(np.nextafter(period_s, inf)) * (1 + 1e-12)
            continue
        period_s, cycle = duration / tokens, positive
