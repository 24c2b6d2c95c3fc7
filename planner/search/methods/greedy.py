"""OneFlow's greedy method: op after op takes the strategy whose inputs cost least to reshard; of several, the one with the least work."""

from __future__ import annotations

from time import perf_counter

import numpy as np

from planner.search.model import SearchModel
from planner.solve import Solution
from planner.solve.problem import Floats

__all__ = ["search_greedily"]


def search_greedily(model: SearchModel) -> Solution:
    """A choice that considers only the ops before each op; its lower bound is 0."""
    began = perf_counter()
    problem = model.problem
    arriving: list[list[tuple[int, Floats]]] = [[] for _ in problem.costs]
    leaving: list[list[tuple[int, Floats]]] = [[] for _ in problem.costs]
    for edge in problem.edges:
        u, v, matrix = (edge.u, edge.v, edge.matrix) if edge.u < edge.v else (edge.v, edge.u, edge.matrix.T)
        arriving[v].append((u, matrix))
        leaving[u].append((v, matrix))
    choice = np.zeros(len(problem.costs), dtype=np.int64)
    for v, costs in enumerate(problem.costs):
        transfer = np.zeros(len(costs))
        for u, matrix in arriving[v]:
            transfer += matrix[choice[u]]
        # A strategy from which some reader can get no layout is forbidden.
        for _, matrix in leaving[v]:
            transfer[~np.isfinite(matrix).any(axis=1)] = np.inf
        choice[v] = np.lexsort((np.arange(len(costs)), costs, np.round(transfer, 12)))[0]
    return Solution(
        choice=choice,
        objective=problem.objective(choice),
        lower_bound=0.0,
        seconds=perf_counter() - began,
        method="greedy",
        proof="none: each op considers only the ops before it",
    )
