"""The cut of a row of units into stages whose devices differ: the fastest pipeline, by dynamic programming.

    (1) step     T(cut) = sum_i t_i + (m - 1) max_i t_i           t_i: seconds of a micro-batch on stage i: its units, with the rates of its own
                                                                       device, what arrives at its first border and what comes back at its last
    (2) within   F_b[i, k] = min over j of F_b[i-1, j] + t_i(j..k),  where t_i(j..k) <= b         b: a limit on every stage
    (3) best     min over b of F_b[p, n] + (m - 1) b              b: one of the values t_i(j..k)

(3) is Alpa's search over the slowest stage [Zheng et al. 2022, Algorithm 1], with devices given to stages.  Limits are tried from the smallest that
allows a cut on, and end where (m - 1) b and the least sum, F without a limit, exceed the best step.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["fastest_cut"]

Floats = NDArray[np.float64]


def fastest_cut(unit_s: Floats, micro_batches: int, border_s: Floats | None = None) -> list[int]:
    """The first unit of every stage but the first; no stage is empty.

    Args:
        unit_s: seconds of a micro-batch (shape: stages x units): of each unit, were it on this stage.
        border_s: seconds in which what crosses the border before a unit goes from a stage to the next, and as many back (shape: stages - 1 x
            units).   None: nothing.
    """
    stage_s = _stage_s(unit_s, np.zeros((len(unit_s) - 1, unit_s.shape[1])) if border_s is None else border_s)
    least_sum, best_cut = _within(stage_s, np.inf)
    best_s = least_sum + (micro_batches - 1) * _slowest(stage_s, best_cut)
    limits = np.unique(stage_s[np.isfinite(stage_s)])
    low, high = 0, len(limits) - 1
    while low < high:  # the smallest limit that allows a cut
        middle = (low + high) // 2
        low, high = (low, middle) if np.isfinite(_within(stage_s, limits[middle])[0]) else (middle + 1, high)
    for limit_s in limits[low:]:
        if least_sum + (micro_batches - 1) * limit_s >= best_s:
            break
        sum_s, cut = _within(stage_s, limit_s)
        step_s = sum_s + (micro_batches - 1) * _slowest(stage_s, cut)
        if step_s < best_s:
            best_s, best_cut = step_s, cut
    return best_cut


def _stage_s(unit_s: Floats, border_s: Floats) -> Floats:
    """t_i(j..k): stage i with units j to k - 1 (shape: stages x units + 1 x units + 1); infinite where it is empty."""
    stages, size = unit_s.shape
    done = np.concatenate([np.zeros((stages, 1)), np.cumsum(unit_s, axis=1)], axis=1)
    arriving, returning = np.zeros((stages, size + 1)), np.zeros((stages, size + 1))
    arriving[1:, :size] = returning[:-1, :size] = border_s
    took = done[:, None, :] - done[:, :, None] + arriving[:, :, None] + returning[:, None, :]
    return np.where(np.triu(np.ones((size + 1, size + 1), dtype=bool), 1), took, np.inf)


def _within(stage_s: Floats, limit_s: float) -> tuple[float, list[int]]:
    """Equation (2): the least sum of seconds with no stage above the limit, and its cut; infinite if there is none."""
    stages, size = len(stage_s), stage_s.shape[1] - 1
    least = np.full(size + 1, np.inf)
    least[0] = 0.0
    begins = np.zeros((stages, size + 1), dtype=np.int64)
    for stage, took in enumerate(stage_s):
        total = np.where(took <= limit_s, least[:, None] + took, np.inf)
        begins[stage], least = total.argmin(axis=0), total.min(axis=0)
    if not np.isfinite(least[-1]):
        return np.inf, []
    cut, end = [], size
    for stage in range(stages - 1, 0, -1):
        end = int(begins[stage, end])
        cut.append(end)
    return float(least[-1]), cut[::-1]


def _slowest(stage_s: Floats, cut: list[int]) -> float:
    borders = [0, *cut, stage_s.shape[1] - 1]
    return max(float(took[a, b]) for took, a, b in zip(stage_s, borders[:-1], borders[1:], strict=True))
