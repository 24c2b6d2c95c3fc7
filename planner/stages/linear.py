"""The balanced cut along one topological order that sends the fewest bytes, by dynamic programming.

    D[k, i] = min over j with low <= work(j..i) <= high of  D[k-1, j] + bytes across the border at j         D[1, i] = 0 for a legal first stage

Every such cut obeys precedence, so it is a feasible cut of the graph (planner.stages.dag_ilp), and its bytes are an upper bound there.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from planner.stages.dag import WorkDag

__all__ = ["ALMOST_EMPTY", "border_bytes", "cut_in_order", "loosest_needed"]

ALMOST_EMPTY = 1e-3
"""A stage with less than this share of the mean work is refused at any tolerance."""
_CLOSE = 1e-9


def border_bytes(dag: WorkDag) -> NDArray[np.float64]:
    """Bytes per step across the border before each group (shape: groups + 1; 0 at both ends)."""
    change = np.zeros(len(dag.groups) + 1)
    for flow in dag.flows:
        change[flow.members[0] + 1] += flow.size_bytes
        change[flow.members[-1] + 1 if flow.members[-1] < len(dag.groups) else -1] -= flow.size_bytes
    return np.maximum(np.cumsum(change), 0.0)


def cut_in_order(dag: WorkDag, num_stages: int, limits: tuple[float, float]) -> list[int] | None:
    """Stage of each group; None if no cut along the order has every stage's flop within ``limits``."""
    low, high = limits
    done = np.concatenate([[0.0], np.cumsum([group.compute_flop for group in dag.groups])])
    slack = _CLOSE * done[-1]
    start = np.searchsorted(done, done - high - slack, side="left")
    stop = np.searchsorted(done, done - low + slack, side="right")
    across = border_bytes(dag)
    best = np.full(len(done), np.inf)
    best[0] = 0.0
    origins: list[NDArray[np.int64]] = []
    for _ in range(num_stages):
        reached, origin = np.full(len(done), np.inf), np.zeros(len(done), dtype=np.int64)
        reachable = np.flatnonzero(np.isfinite(best))
        if not len(reachable):
            return None
        for i in range(reachable[0] + 1, len(done)):
            a, b = start[i], min(stop[i], i)
            if a >= b or a > reachable[-1]:
                continue
            j = a + int(np.argmin(best[a:b]))
            reached[i], origin[i] = best[j], j
        origins.append(origin)
        best = reached + across
    if not np.isfinite(best[-1]):
        return None
    borders = [len(done) - 1]
    for origin in reversed(origins):
        borders.append(int(origin[borders[-1]]))
    stage: list[int] = []
    for k, (a, b) in enumerate(pairwise(reversed(borders))):
        stage += [k] * (b - a)
    return stage


def loosest_needed(dag: WorkDag, num_stages: int, least: float | None = None) -> float | None:
    """The smallest tolerance, to 1 %, at which a cut along the order exists; None if there is none at any tolerance.

    least: as in planner.stages.dag_ilp.cut_stages().
    """
    mean = dag.total_flop / num_stages

    def exists(percent: int) -> bool:
        low = max(1 - percent / 100 if least is None else least, ALMOST_EMPTY)
        return cut_in_order(dag, num_stages, (low * mean, (1 + percent / 100) * mean)) is not None

    low, high = 0, 100 * num_stages
    if not exists(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if exists(middle) else (middle + 1, high)
    return high / 100
