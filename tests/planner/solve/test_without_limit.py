"""Which method answers a problem without a limit: elimination, message passing, or what is left when the time is up."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from planner.solve.problem import Edge, Problem
from planner.solve.without_limit import Sizes, solve_exactly


def strip(rows: int, columns: int, strategies: int = 3) -> Problem:
    """A grid with diagonals and random costs.  Its elimination makes tables of ``strategies ** (rows + 1)`` entries at most."""
    rng = np.random.default_rng(1)
    steps = ((0, 1), (1, 0), (1, 1))
    pairs = [(r, c, r + dr, c + dc) for r in range(rows) for c in range(columns) for dr, dc in steps if r + dr < rows and c + dc < columns]
    edges = tuple(Edge(r + rows * c, s + rows * d, rng.random((strategies, strategies))) for r, c, s, d in pairs)
    costs = tuple(rng.random(strategies) for _ in range(rows * columns))
    return Problem(tuple(f"n{v}" for v in range(rows * columns)), costs, edges)


@pytest.mark.parametrize(
    ("sizes", "eliminated"),
    [
        (Sizes(narrow=3**4, wide=3**7), True),
        (Sizes(narrow=3**3 - 1, wide=3**7), False),  # a table would be too large
        (Sizes(narrow=3**4, wide=3**4), False),  # all tables together would be
    ],
)
def test_a_problem_is_eliminated_at_once_if_its_largest_table_and_all_tables_together_are_small(sizes: Sizes, eliminated: bool) -> None:
    problem = strip(3, 50)
    solution = solve_exactly(problem, sizes=sizes)
    assert (solution.proof == "elimination") == eliminated
    assert solution.gap == 0.0
    assert solution.objective == pytest.approx(solve_exactly(problem).objective)


def coloured(seed: int, nodes: int, share: float) -> Problem:
    """A graph that has a colouring with three cheap colours, which a node-by-node choice misses, and one with three dear ones.

    Neighbours differ in their cheap colour; a dear colour goes with every other dear one, and with no cheap one.
    """
    rng = np.random.default_rng(seed)
    colour = rng.integers(0, 3, nodes)
    pairs = np.full((6, 6), np.inf)
    pairs[:3, :3] = np.where(np.eye(3, dtype=bool), np.inf, 0.0)
    pairs[3:, 3:] = 0.0
    edges = tuple(Edge(u, v, pairs) for v in range(nodes) for u in range(v) if colour[u] != colour[v] and rng.random() < share)
    costs = tuple(np.concatenate([1 + 0.01 * rng.random(3), 1000 + rng.random(3)]) for _ in range(nodes))
    return Problem(tuple(f"n{v}" for v in range(nodes)), costs, edges)


def test_where_the_choice_of_the_messages_is_forbidden_the_strategies_near_the_bound_give_one() -> None:
    """The time is up after the first round, and all strategies together are too many to be eliminated."""
    looks = itertools.count()
    solution = solve_exactly(coloured(0, 14, 0.6), seconds=1, clock=lambda: 2.0 * (next(looks) >= 3), sizes=Sizes(narrow=800))
    assert solution.proof == "stopped; the bound is message passing's"
    assert 14.0 <= solution.lower_bound <= solution.objective <= 14.14
