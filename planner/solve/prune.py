"""Strategies that some best choice does without.

s falls to t, both of node v, if t costs no more than s whatever v's neighbours take, and never holds more:

    cost[t] - cost[s]  +  sum over neighbours w of  max_q ( M_vw[t, q] - M_vw[s, q] )  <=  0        (1)  -> _falls
    amount_d[t] <= amount_d[s]  at every time                                                        (2)  -> _holds_no_more

q runs over strategies of w that s can meet; where only t is forbidden the maximum is infinite.   [dead-end elimination, Goldstein 1994]
Replacing s by t in any choice keeps it within the limit and no dearer, so removing s keeps an optimum.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from planner.solve.problem import Floats, Ints
from planner.solve.work import Work

__all__ = ["prune_node"]


def prune_node(work: Work, v: int) -> bool:
    """Remove v's forbidden and dominated strategies; says whether any was.

    Raises:
        Contradiction: none would be left.
    """
    kept = np.flatnonzero(np.isfinite(work.costs[v]))
    for matrix in work.near[v].values():
        kept = kept[np.isfinite(matrix[kept]).any(axis=1)]
    if kept.size < work.costs[v].size:
        work.keep(v, kept)
        prune_node(work, v)
        return True
    if kept.size < 2:
        return False
    parts = list(work.near[v].values())
    rows = np.ascontiguousarray(np.concatenate(parts, axis=1)) if parts else np.empty((kept.size, 0))
    ends = np.cumsum([m.shape[1] for m in parts], dtype=np.int64) if parts else np.empty(0, dtype=np.int64)
    lives = _survivors(work.costs[v], rows, ends, _profiles(work, v))
    if lives.all():
        return False
    work.keep(v, np.flatnonzero(lives))
    return True


def _profiles(work: Work, v: int) -> Floats:
    """[strategy, piece of time]: what v holds."""
    demands = work.demands[v]
    cuts = sorted({t for a, b, _ in demands for t in (a, b)})
    place = {t: i for i, t in enumerate(cuts)}
    held = np.zeros((work.costs[v].size, max(len(cuts) - 1, 0)))
    for a, b, amount in demands:
        held[:, place[a] : place[b]] += amount[:, None]
    return held


@numba.njit(cache=True)
def _survivors(cost: Floats, rows: Floats, ends: Ints, held: Floats) -> NDArray[np.bool_]:
    """Which strategies stay; ``rows`` holds all edge matrices side by side, ``ends`` where each ends."""
    k = cost.size
    lives = np.ones(k, dtype=np.bool_)
    for s in range(k):
        for t in range(k):
            if t != s and lives[t] and _falls(s, t, cost, rows, ends, held):
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
