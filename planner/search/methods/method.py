"""One interface to all search methods:  search(model, method) -> choice, objective, lower bound, seconds."""

from __future__ import annotations

from enum import Enum
from math import inf
from time import perf_counter

from planner.search.methods.exhaustive import search_exhaustively
from planner.search.methods.greedy import search_greedily
from planner.search.methods.o2 import search_o2
from planner.search.methods.o3 import search_o3
from planner.search.model import SearchModel
from planner.solve import Solution, solve_exactly
from planner.solve.limited.memory import solve_within
from planner.solve.problem import Watch
from planner.solve.time_limit import Clock

__all__ = ["Method", "search"]


class Method(Enum):
    """exhaustive: compares every combination, for small graphs.  greedy: OneFlow's.  o2, o3: TePDist's.  exact: with a proof, the default."""

    EXHAUSTIVE = "exhaustive"
    GREEDY = "greedy"
    O2 = "o2"
    O3 = "o3"
    EXACT = "exact"


def search(
    model: SearchModel, method: Method = Method.EXACT, *, seconds: float = inf, clock: Clock = perf_counter, watch: Watch | None = None
) -> Solution:
    """Choose a strategy for every node of the model's problem.

    Args:
        seconds: after so many, by ``clock`` (exact), the search stops with the best choice so far.
        watch: called with every better bound or choice (exact only).

    Raises:
        Unsupported: no choice is allowed, or there was none in time.
    """
    match method:
        case Method.EXHAUSTIVE:
            return search_exhaustively(model.problem)
        case Method.GREEDY:
            return search_greedily(model)
        case Method.O2:
            return search_o2(model, seconds=seconds)
        case Method.O3:
            return search_o3(model, seconds=seconds)
        case Method.EXACT:
            if model.problem.demands:
                return solve_within(model.problem, seconds=seconds, clock=clock, watch=watch)
            return solve_exactly(model.problem, seconds=seconds, clock=clock, watch=watch)
