"""Exhaustive search, which tests use as an oracle."""

from __future__ import annotations

from decimal import Decimal
from math import prod
from time import perf_counter

import numpy as np

from planner.ir.errors import Unsupported
from planner.solve import Problem, Solution
from planner.solve.problem import Ints

__all__ = ["search_exhaustively"]

_MOST = 20_000_000
_AT_ONCE = 1 << 18


def search_exhaustively(problem: Problem) -> Solution:
    """Enumerate all choices of a small problem.

    Raises:
        Unsupported: there are too many combinations, or none is allowed.
    """
    began = perf_counter()
    extents = tuple(len(costs) for costs in problem.costs)
    total = prod(extents)
    if total > _MOST:
        raise Unsupported(f"{Decimal(total):.2e} combinations are too many to enumerate (at most {_MOST:.0e}); use method 'exact' or 'o3'")
    best: Ints | None = None
    least = np.inf
    for first in range(0, total, _AT_ONCE):
        numbers = np.arange(first, min(total, first + _AT_ONCE))
        choices = np.unravel_index(numbers, extents)
        cost = np.zeros(len(numbers))
        for costs, taken in zip(problem.costs, choices, strict=True):
            cost += costs[taken]
        for edge in problem.edges:
            cost += edge.matrix[choices[edge.u], choices[edge.v]]
        for place in np.argsort(cost, kind="stable"):
            if cost[place] >= least:
                break
            choice = np.array([int(taken[place]) for taken in choices], dtype=np.int64)
            if problem.feasible(choice):
                best, least = choice, float(cost[place])
    if best is None:
        raise Unsupported("no combination is allowed: every one takes a forbidden pair or exceeds the memory")
    value = problem.objective(best)
    return Solution(
        choice=best,
        objective=value,
        lower_bound=value,
        seconds=perf_counter() - began,
        method="exhaustive",
        proof="every choice was compared",
    )
