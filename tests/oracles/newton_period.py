"""Oracle: the maximum cycle ratio by Newton's method, with its proof from both sides; shares no code with simulator.steady.cycle_ratio.

    period = max over cycles of (sum of weights / sum of tokens)                            (1)   -> exact_period()

found from below: L = 0; while some cycle is positive under weights w - k L, let L be that cycle's ratio.  Each L is the ratio of a real cycle
and grows, so the last one is the maximum, and its longest paths are start times that satisfy every arc:

    s_head >= s_tail + weight - tokens L    for all arcs                                    (2)

(2) proves "no period above L" to anyone who adds up the arcs around a cycle; the cycle proves "none below L".

Source: Newton's method for the maximum cycle ratio (Dinkelbach 1967; Cochet-Terrasson et al. 1998 and Dasdan 2004 compare such methods).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from simulator.quotas.period import feasible_starts
from simulator.quotas.problem import Floats, QuotaArcs

__all__ = ["ExactPeriod", "exact_period"]


@dataclass(frozen=True, slots=True, eq=False)
class ExactPeriod:
    """period_s: infinite if the arcs have a cycle without tokens.   cycle: arc numbers of a critical cycle, in order.
    starts_s: the proof (2), per node; empty if the period is infinite.
    """

    period_s: float
    cycle: tuple[int, ...]
    starts_s: Floats


def exact_period(num_nodes: int, arcs: QuotaArcs, at_least_s: float = 0.0, hint_s: Floats | None = None) -> ExactPeriod:
    """(1) The exact period of the arcs with its proof from both sides.

    Args:
        at_least_s: a period known to be reached by a cycle, or 0; the search begins there.
    """
    period_s, cycle = at_least_s, tuple[int, ...]()
    while True:
        starts, positive = feasible_starts(num_nodes, arcs, period_s, hint_s)
        if starts is not None:
            return ExactPeriod(period_s, cycle, starts)
        chosen = np.array(positive)
        tokens, duration = int(arcs.tokens[chosen].sum()), float(arcs.weight_s[chosen].sum())
        if tokens <= 0:
            return ExactPeriod(inf, positive, np.zeros(0))
        if duration / tokens <= period_s:  # equal to rounding: the cycle is the critical one
            period_s = float(np.nextafter(period_s, inf)) * (1 + 1e-12)
            continue
        period_s, cycle = duration / tokens, positive
