"""The cut of a row of units into stages whose devices differ: the fastest pipeline, by dynamic programming.

    (1) step     T(cut) = sum_i t_i + (m - 1) max_i t_i           t_i: seconds of a micro-batch on stage i, with the rates of its own device
    (2) within   F_b[i, k] = min over j of F_b[i-1, j] + t_i(j..k),  where t_i(j..k) <= b         b: a limit on every stage
    (3) best     min over b of F_b[p, n] + (m - 1) b              b: one of the values t_i(j..k)

(3) is Alpa's search over the slowest stage [Zheng et al. 2022, Algorithm 1], with devices given to stages.  Limits are tried from the smallest that
allows a cut on, and end where (m - 1) b and the least sum, F without a limit, exceed the best step.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["fastest_cut"]


def fastest_cut(unit_s: NDArray[np.float64], micro_batches: int) -> list[int]:
    """The first unit of every stage but the first; no stage is empty.

    Args:
        unit_s: seconds of a micro-batch (shape: stages x units): of each unit, were it on this stage.
    """
    done = np.concatenate([np.zeros((len(unit_s), 1)), np.cumsum(unit_s, axis=1)], axis=1)
    least_sum, best_cut = _within(done, np.inf)
    best_s = least_sum + (micro_batches - 1) * _slowest(done, best_cut)
    limits = np.unique(np.concatenate([(row[None, :] - row[:, None])[np.triu_indices(len(row), 1)] for row in np.unique(done, axis=0)]))
    low, high = 0, len(limits) - 1
    while low < high:  # the smallest limit that allows a cut
        middle = (low + high) // 2
        low, high = (low, middle) if np.isfinite(_within(done, limits[middle])[0]) else (middle + 1, high)
    for limit_s in limits[low:]:
        if least_sum + (micro_batches - 1) * limit_s >= best_s:
            break
        sum_s, cut = _within(done, limit_s)
        step_s = sum_s + (micro_batches - 1) * _slowest(done, cut)
        if step_s < best_s:
            best_s, best_cut = step_s, cut
    return best_cut


def _within(done: NDArray[np.float64], limit_s: float) -> tuple[float, list[int]]:
    """Equation (2): the least sum of seconds with no stage above the limit, and its cut; infinite if there is none."""
    stages, size = done.shape[0], done.shape[1] - 1
    least = np.full(size + 1, np.inf)
    least[0] = 0.0
    begins = np.zeros((stages, size + 1), dtype=np.int64)
    for stage, row in enumerate(done):
        took = row[None, :] - row[:, None]  # [j, k]: units j to k - 1
        allowed = np.triu(np.ones_like(took, dtype=bool), 1) & (took <= limit_s * (1 + 1e-12))
        total = np.where(allowed, least[:, None] + took, np.inf)
        begins[stage], least = total.argmin(axis=0), total.min(axis=0)
    if not np.isfinite(least[-1]):
        return np.inf, []
    cut, end = [], size
    for stage in range(stages - 1, 0, -1):
        end = int(begins[stage, end])
        cut.append(end)
    return float(least[-1]), cut[::-1]


def _slowest(done: NDArray[np.float64], cut: list[int]) -> float:
    borders = [0, *cut, done.shape[1] - 1]
    return max(float(row[b] - row[a]) for row, a, b in zip(done, borders[:-1], borders[1:], strict=True))
