"""Strategies that some best choice does without.

s falls to t, both of node v, if t costs no more than s whatever v's neighbours take, and never holds more:

    cost[t] - cost[s]  +  sum over neighbours w of  max_q ( M_vw[t, q] - M_vw[s, q] )  <=  0        (1)  -> _falls
    amount_d[t] <= amount_d[s]  at every time                                                        (2)  -> _falls

q runs over strategies of w that s can meet; where only t is forbidden the maximum is infinite.   [dead-end elimination, Goldstein 1994]
Replacing s by t in any choice keeps it within the limit and no dearer, so removing s keeps an optimum.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from planner.solve.problem import Floats, Ints

__all__ = ["survivors"]


@numba.njit(cache=True)
def survivors(cost: Floats, rows: Floats, ends: Ints, held: Floats) -> NDArray[np.bool_]:
    """Which strategies of a node stay, at least one; among equals the first.

    Args:
        rows: all edge matrices of the node side by side (its strategies x those of its neighbours);  ends: where each ends.
        held: [strategy, piece of time], what it holds.
    """
    k = cost.size
    lives = np.ones(k, dtype=np.bool_)
    dead = np.zeros(k, dtype=np.bool_)
    for s in range(k):
        dead[s] = cost[s] == np.inf
        start = 0
        for edge in range(ends.size):
            least = np.inf
            for q in range(start, ends[edge]):
                least = min(least, rows[s, q])
            dead[s] = dead[s] or least == np.inf
            start = ends[edge]
    for i in range(k):
        s = k - 1 - i
        for t in range(k):
            if t != s and lives[t] and (dead[s] or (not dead[t] and _falls(s, t, cost, rows, ends, held))):
                lives[s] = False
                break
    return lives


@numba.njit(cache=True)
def _falls(s: int, t: int, cost: Floats, rows: Floats, ends: Ints, held: Floats) -> bool:
    for piece in range(held.shape[1]):
        if held[t, piece] > held[s, piece]:
            return False
    worse = cost[t] - cost[s]
    start = 0
    for edge in range(ends.size):
        most = -np.inf
        for q in range(start, ends[edge]):
            if rows[s, q] < np.inf:
                most = max(most, rows[t, q] - rows[s, q])
        start = ends[edge]
        worse += most
        if worse == np.inf:
            return False
    return bool(worse <= 0.0)
