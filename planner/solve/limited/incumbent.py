"""The incumbent of a search: the best choice so far, the lower bound, and the time that is left."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from planner.solve.highs import TOLERANCE
from planner.solve.per_array import PerArray
from planner.solve.problem import Floats, Ints, Problem, Progress, Solution, Watch
from planner.solve.time_limit import TimeLimit

__all__ = ["Incumbent"]


@dataclass(slots=True, eq=False)
class Incumbent:
    """step: objectives differ by a multiple of it (1 if all costs are whole, else 0).   enough: the gap that ends the search."""

    problem: Problem
    time_limit: TimeLimit
    watch: Watch | None
    enough: float = 0.0
    objective: float = np.inf
    choice: Ints | None = None
    bound: float = -np.inf
    step: float = 0.0
    method: str = ""
    proof: str = ""
    stats: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        whole: PerArray[bool] = PerArray()
        tables = (*self.problem.costs, *(edge.matrix for edge in self.problem.edges))
        self.step = 1.0 if all(whole.of(table, _is_whole) for table in tables) else 0.0

    def offer(self, choice: Ints, method: str) -> bool:
        """Accept a choice of the original problem if it is feasible and better; both are checked here."""
        objective = self.problem.objective(choice)
        if not objective < self.objective or not self.problem.feasible(choice):
            return False
        self.objective, self.choice, self.method = objective, choice, method
        self._report()
        return True

    def raise_bound(self, bound: float, proof: str) -> None:
        """Record that no choice within the limit costs less.  If all costs are whole, the bound is rounded up; it never exceeds the objective."""
        if self.step and np.isfinite(bound):
            bound = float(np.ceil(bound - 1e-6))
        bound = min(bound, self.objective)
        if bound > self.bound:
            self.bound, self.proof = bound, proof
            self._report()

    def closed(self) -> bool:
        """Whether the bound is within the larger of ``enough`` and HiGHS's tolerance of the objective."""
        return self.choice is not None and self.objective - self.bound <= max(TOLERANCE, self.enough) * abs(self.objective)

    def solution(self, choice: Ints) -> Solution:
        """The best choice with its bound.  If costs are not whole, a bound that equals the objective up to rounding is set to the objective."""
        meets = self.step == 0.0 and self.objective - self.bound <= 1.01 * TOLERANCE * abs(self.objective)
        return Solution(
            choice=choice,
            objective=self.objective,
            lower_bound=self.objective if meets else min(self.bound, self.objective),
            seconds=self.time_limit.elapsed_s(),
            method=self.method,
            proof=self.proof,
            stats=self.stats,
        )

    def _report(self) -> None:
        if self.watch is not None:
            self.watch(Progress(self.time_limit.elapsed_s(), self.objective, self.bound))


def _is_whole(table: Floats) -> bool:
    return bool((table[np.isfinite(table)] % 1.0 == 0.0).all())
