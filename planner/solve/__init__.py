"""The solver core: choice problems with pairwise costs and memory, solved with a proof."""

from planner.solve.ilp import solve_ilp
from planner.solve.limited.memory import least_peak, solve_within
from planner.solve.problem import Contradiction, Demand, Edge, Floats, Ints, NotFoundInTime, Problem, Progress, Solution, Watch
from planner.solve.reduce.elimination import Elimination, eliminate
from planner.solve.time_limit import NO_LIMIT, TimeLimit
from planner.solve.without_limit import solve_exactly

__all__ = [
    "NO_LIMIT",
    "Contradiction",
    "Demand",
    "Edge",
    "Elimination",
    "Floats",
    "Ints",
    "NotFoundInTime",
    "Problem",
    "Progress",
    "Solution",
    "TimeLimit",
    "Watch",
    "eliminate",
    "least_peak",
    "solve_exactly",
    "solve_ilp",
    "solve_within",
]
