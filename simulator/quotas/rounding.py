"""Quotas from start times, rounded up to whole blocks and then lowered one by one.

(1) with start times of period L, Buffer r needs the smallest q with  s_C[j] + release <= s_P[(j+q) mod b] + L floor((j+q)/b)  for all rings
    and j; the same start times then prove the period.                                                             -> needed_quotas()
(2) the dearest Buffer first, take blocks away while the period stands (each tried by itself).               -> reduced()
"""

from __future__ import annotations

import numba
import numpy as np

from simulator.quotas.period import feasible_starts
from simulator.quotas.problem import Floats, Ints, QuotaProblem

__all__ = ["needed_quotas", "reduced"]

TOLERANCE = 1e-9
"""Relative to the period: a block that is late by less counts as in time, because solvers and sums round."""


@numba.njit(cache=True)
def _smallest(starts_s, period_s, consumer, block, per_period, begins, flat, release):  # type: ignore[no-untyped-def]
    """(1) for each returned block; no list of all pairs is made, which for thousands of micro-batches is gigabytes."""
    smallest = np.full(len(consumer), np.iinfo(np.int64).max)
    for k in range(len(consumer)):
        returned_s = starts_s[consumer[k]] + release[k]
        for place in range(per_period[k]):
            tokens = np.int64(np.ceil((returned_s - starts_s[flat[begins[k] + place]]) / period_s - TOLERANCE))
            smallest[k] = min(smallest[k], tokens * per_period[k] + place - block[k])
    return smallest


def needed_quotas(problem: QuotaProblem, starts_s: Floats, period_s: float) -> Ints:
    """(1) for start times in seconds; at least the Buffers' lower bounds."""
    buffer, consumer, block, per_period, begins, flat, release = problem._rings
    needed = problem.lower.copy()
    if not len(consumer):
        return needed
    smallest = _smallest(starts_s, period_s, consumer, block, per_period, begins, flat, release)
    np.maximum.at(needed, buffer, smallest)
    return needed


def reduced(problem: QuotaProblem, period_s: float, quotas: Ints, starts_s: Floats | None = None) -> Ints:
    """(2) Quotas that reach the same period, none of which can be lowered alone.

    Args:
        quotas: some that reach the period (with period TOLERANCE).   starts_s: start times that prove it, as a first guess.
    """
    rounded, lower = quotas.copy(), problem.lower
    goal_s = period_s * (1 + TOLERANCE)
    for number in sorted(range(len(rounded)), key=lambda r: (-int(problem.price_bytes[r]), r)):
        low, high = int(lower[number]), int(rounded[number])
        while low < high:
            middle = (low + high) // 2
            rounded[number] = middle
            proof, _ = feasible_starts(problem.num_nodes, problem.arcs(rounded), goal_s, starts_s)
            if proof is None:
                low = middle + 1
            else:
                high, starts_s = middle, proof
        rounded[number] = high
    return rounded
