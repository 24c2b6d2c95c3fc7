"""Small random problems, their optimum by trying every choice, and a clock that a test moves."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np

from planner.solve.limited.memory import least_peak
from planner.solve.problem import Demand, Edge, Problem
from planner.solve.without_limit import solve_exactly

__all__ = ["ManualClock", "best_by_trying", "random_problem", "tangled"]


class ManualClock:
    """Shows ``now_s``, which goes on by ``per_reading_s`` whenever somebody looks, and else when the test says so."""

    def __init__(self, per_reading_s: float = 0.0) -> None:
        self.now_s, self._per_reading_s = 0.0, per_reading_s

    def __call__(self) -> float:
        self.now_s += self._per_reading_s
        return self.now_s


def random_problem(
    seed: int,
    *,
    nodes: int = 6,
    strategies: int = 3,
    limit: float = 0.5,
    forbidden: float = 0.1,
    functional: float = 0.2,
    whole: bool = True,
) -> Problem:
    """A connected-ish graph with forbidden pairs, functional edges and parallel edges.

    limit: the limit's place between the least and the largest demand that matter (0 to 1); above 1: no demands at all.
    """
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, strategies + 1, nodes)

    def draw(*shape: int) -> np.ndarray:
        return rng.integers(0, 30, shape).astype(float) if whole else np.round(rng.random(shape) * 30, 3)

    costs = tuple(draw(int(k)) for k in sizes)
    edges = []
    pairs = [(v, v + 1) for v in range(nodes - 1)] + [tuple(sorted(rng.choice(nodes, 2, replace=False).tolist())) for _ in range(nodes)]
    for u, v in pairs:
        matrix = draw(int(sizes[u]), int(sizes[v]))
        if rng.random() < functional:
            allowed = np.zeros(matrix.shape, dtype=bool)
            allowed[np.arange(sizes[u]), rng.integers(0, sizes[v], sizes[u])] = True
            matrix[~allowed] = np.inf
        else:
            matrix[rng.random(matrix.shape) < forbidden] = np.inf
        edges.append(Edge(u, v, matrix) if rng.random() < 0.5 else Edge(v, u, np.ascontiguousarray(matrix.T)))
    demands = []
    if limit <= 1:
        for v in range(nodes):
            for _ in range(int(rng.integers(0, 3))):
                start = int(rng.integers(0, 12))
                demands.append(Demand(v, start, start + int(rng.integers(0, 8)), rng.integers(0, 20, sizes[v]).astype(float)))
    free = Problem(tuple(f"n{v}" for v in range(nodes)), costs, tuple(edges), tuple(demands))
    peaks = [free.peak(c) for c in itertools.product(*(range(int(k)) for k in sizes))]
    bound = min(peaks) + limit * (max(peaks) - min(peaks)) if limit <= 1 else float("inf")
    return Problem(free.names, costs, free.edges, free.demands, bound)


def best_by_trying(problem: Problem) -> float:
    """The least objective of all choices within the limit; infinite if none is allowed."""
    choices = itertools.product(*(range(c.size) for c in problem.costs))
    return min((problem.objective(c) for c in choices if problem.feasible(c)), default=float("inf"))


def tangled(seed: int, nodes: int = 12, strategies: int = 4) -> Problem:
    """Half of all pairs are joined at random prices, so that neither reductions nor messages solve it; memory binds."""
    rng = np.random.default_rng(seed)
    edges = tuple(Edge(u, v, rng.random((strategies, strategies))) for v in range(nodes) for u in range(v) if rng.random() < 0.5)
    costs = tuple(rng.random(strategies) for _ in range(nodes))
    demands = tuple(Demand(v, t, t + 3, rng.integers(0, 20, strategies).astype(float)) for v, t in enumerate(rng.integers(0, 8, nodes)))
    free = Problem(tuple(f"n{v}" for v in range(nodes)), costs, edges, demands)
    cheapest = solve_exactly(replace(free, demands=())).choice
    least = least_peak(free)
    return replace(free, limit=least + 0.4 * (free.peak(cheapest) - least))
