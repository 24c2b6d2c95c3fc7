"""The solver: choice problems with pairwise costs and a memory limit, solved with a proof."""

from planner.solve.limited.memory import solve_within
from planner.solve.problem import Edge, Problem, Solution
from planner.solve.without_limit import solve_exactly

__all__ = ["Edge", "Problem", "Solution", "solve_exactly", "solve_within"]
