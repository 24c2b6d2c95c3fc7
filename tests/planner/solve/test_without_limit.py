"""Search without a limit: elimination, message passing, or what is left when the time is up; and a share of the objective that may stay unproven."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.ir.errors import Unsupported
from planner.solve.bounds.message_passing import Dual
from planner.solve.problem import Edge, Problem, Solution
from planner.solve.without_limit import Sizes, _near, _nothing_cheaper, _rest, solve_exactly


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


def test_strategies_near_the_bound_that_are_too_many_to_eliminate_give_no_choice() -> None:
    problem = coloured(0, 14, 0.6)
    dual = Dual(problem)
    dual.sweep(5)
    assert _near(problem, dual, 1e-2, Sizes(narrow=800)) is not None
    assert _near(problem, dual, 1e-2, Sizes(narrow=2)) is None


def test_where_no_strategy_is_left_the_best_choice_so_far_is_the_optimum() -> None:
    problem, best = strip(2, 2), np.zeros(4, dtype=np.int64)
    every, none = np.arange(3), np.empty(0, dtype=np.int64)
    assert _rest(problem, [every] * 4) is not None
    assert _rest(problem, [every, every, none, every]) is None
    choice, bound, _ = _nothing_cheaper(best, 5.0)
    assert choice is best and bound == 5.0
    with pytest.raises(Unsupported, match="no legal combination"):
        _nothing_cheaper(None, np.inf)


# --- a share of the objective that may stay unproven: the bound is honest, the choice is within the share


WITHIN = "message passing, to within the gap"


def tangled(seed: int, side: int = 5, strategies: int = 3) -> Problem:
    """A grid with diagonals and random prices: too wide for elimination, and the bound of message passing seldom meets the best choice."""
    rng = np.random.default_rng(seed)
    steps = ((0, 1), (1, 0), (1, 1))
    pairs = [(r, c, r + dr, c + dc) for r in range(side) for c in range(side) for dr, dc in steps if r + dr < side and c + dc < side]
    edges = tuple(Edge(side * a + b, side * c + d, rng.random((strategies, strategies))) for a, b, c, d in pairs)
    costs = tuple(rng.random(strategies) for _ in range(side * side))
    return Problem(tuple(f"n{v}" for v in range(side * side)), costs, edges, (), float("inf"))


LARGE = Sizes(narrow=64, wide=64, widest=64, large=10)
"""Every problem here is wide and large."""


@pytest.mark.thorough
@given(st.integers(0, 10_000), st.sampled_from([1e-3, 0.01, 0.1]))
@settings(max_examples=25, deadline=None)
def test_what_stays_unproven_is_at_most_the_gap_and_the_bound_is_below_the_optimum(seed: int, gap: float) -> None:
    problem = tangled(seed)
    solution, optimum = solve_exactly(problem, gap=gap, sizes=LARGE), solve_exactly(problem).objective
    assert solution.lower_bound <= optimum * (1 + 1e-9)
    assert optimum * (1 - 1e-9) <= solution.objective <= optimum / (1 - gap) * (1 + 1e-9)
    assert solution.objective - solution.lower_bound <= gap * solution.objective * (1 + 1e-9)


def test_without_a_gap_the_rest_is_solved_and_within_it_it_is_not() -> None:
    problem = tangled(1)
    assert solve_exactly(problem, sizes=LARGE).proof == "message passing, then branch and bound"
    assert solve_exactly(problem, gap=0.1, sizes=LARGE).proof == WITHIN


def test_a_small_rest_is_solved_whatever_the_gap() -> None:
    solution = solve_exactly(tangled(1), gap=0.1, sizes=replace(LARGE, large=10**6))
    assert solution.proof == "message passing, then branch and bound"
    assert solution.lower_bound == solution.objective


@pytest.mark.parametrize(
    ("objective", "lower_bound", "gap"),
    [(4.0, 3.0, 0.25), (1e-6, 5e-7, 0.5), (-4.0, -6.0, 0.5), (0.0, -0.5, 0.5), (4.0, 4.0, 0.0), (4.0, 4.5, 0.0)],
)
def test_a_gap_is_relative_to_the_objective_and_never_below_0(objective: float, lower_bound: float, gap: float) -> None:
    choice = np.zeros(1, dtype=np.int64)
    solution = Solution(choice=choice, objective=objective, lower_bound=lower_bound, seconds=0.0, method="exact")
    assert solution.gap == pytest.approx(gap)
