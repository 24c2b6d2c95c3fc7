"""Reductions keep the optimum, and the way back gives a choice of the first problem with the same objective."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from planner.ir.errors import OutOfMemory
from planner.solve.problem import Contradiction, Demand, Edge, Problem
from planner.solve.reduce.contract import reduce_problem
from planner.solve.reduce.elimination import Elimination
from planner.solve.reduce.times import not_dominated
from tests.planner.solve.small import best_by_trying, random_problem

SETTINGS = [{"dominance": False, "eliminate": False}, {"dominance": True, "eliminate": False}, {"dominance": True, "eliminate": True}]


@pytest.mark.parametrize("limit", [0.2, 0.6, 2.0])
@pytest.mark.parametrize("settings", SETTINGS)
def test_reduced_problem_has_the_same_optimum_and_expands_to_it(settings: dict[str, bool], limit: float) -> None:
    reached = 0
    for seed in range(40):
        problem = random_problem(seed, limit=limit, whole=seed % 2 == 0)
        best = best_by_trying(problem)
        try:
            reduced = reduce_problem(problem, **settings)
        except (Contradiction, OutOfMemory):
            assert best == np.inf
            continue
        small = reduced.problem
        assert best_by_trying(small) == pytest.approx(best)
        if best == np.inf:
            continue
        reached += 1
        for choice in itertools.product(*(range(c.size) for c in small.costs)):
            full = reduced.expand(choice)
            assert problem.objective(full) == pytest.approx(small.objective(choice))
            assert problem.feasible(full) == small.feasible(choice)
    assert reached > 15


def test_without_dominance_and_elimination_every_choice_within_the_limit_survives() -> None:
    for seed in range(20):
        problem = random_problem(seed, nodes=5)
        try:
            reduced = reduce_problem(problem, dominance=False, eliminate=False)
        except (Contradiction, OutOfMemory):
            continue
        small = reduced.problem
        allowed = {c for c in itertools.product(*(range(c.size) for c in problem.costs)) if np.isfinite(problem.objective(c))}
        back = {
            tuple(reduced.expand(c).tolist())
            for c in itertools.product(*(range(c.size) for c in small.costs))
            if np.isfinite(small.objective(c))
        }
        assert {c for c in allowed if problem.feasible(c)} <= back <= allowed


def test_what_is_reduced_once_for_all_multipliers_has_the_optimum_of_the_charged_problem_at_each() -> None:
    rng, dropped = np.random.default_rng(7), 0
    for seed in range(30):
        problem = random_problem(seed, limit=0.1, whole=seed % 2 == 0)  # of which nothing may be made
        try:
            reduced = reduce_problem(problem, crop=False)
        except Contradiction:
            continue
        dropped += sum(c.size for c in reduced.problem.costs) < sum(c.size for c in problem.costs)
        times = sorted({d.start for d in problem.demands})
        for scale in (0.0, 1.0, 10.0):
            multipliers = {t: scale * rng.random() for t in times}
            charged, small = problem.charged(multipliers), reduced.problem.charged(multipliers)
            choices = itertools.product(*(range(c.size) for c in small.costs))
            least, best = min((small.objective(choice), choice) for choice in choices)
            assert least == pytest.approx(best_by_trying(charged))
            assert charged.objective(reduced.expand(best)) == pytest.approx(least)
    assert dropped > 15


def test_what_is_reduced_once_is_reduced_as_far_as_it_goes() -> None:
    """A strategy that leaves takes away partners of others, and an edge that has become functional merges its ends: both are followed up."""
    smaller = 0
    for seed in range(100):
        problem = random_problem(seed, nodes=9, forbidden=0.35, functional=0.5, limit=2.0)
        try:
            once = reduce_problem(problem, dominance=False, eliminate=False).problem
        except (Contradiction, OutOfMemory):
            continue
        again = reduce_problem(once, dominance=False, eliminate=False).problem
        open_nodes = sorted(costs.size for costs in once.costs if costs.size > 1)
        assert sorted(costs.size for costs in again.costs if costs.size > 1) == open_nodes
        smaller += len(open_nodes) < len(problem.costs)
    assert smaller >= 5


def test_follow_undoes_expand() -> None:
    problem = random_problem(3, limit=0.7, forbidden=0.0, functional=0.5)
    reduced = reduce_problem(problem)
    for choice in itertools.product(*(range(c.size) for c in reduced.problem.costs)):
        back = reduced.restricted_choice(reduced.expand(choice))
        assert back is not None
        assert tuple(back.tolist()) == choice


def test_functional_edge_merges_its_ends() -> None:
    inf = np.inf
    one_to_one = np.array([[0.0, inf, inf], [inf, 0.0, inf], [inf, inf, 0.0]])
    other = np.array([[0.0, 5.0, 5.0], [5.0, 0.0, 5.0], [5.0, 5.0, 0.0]])
    held = (Demand(0, 0, 5, np.array([9.0, 1.0, 3.0])), Demand(2, 0, 5, np.array([9.0, 1.0, 1.0])))
    problem = Problem(("a", "b", "c"), (np.zeros(3),) * 3, (Edge(0, 1, one_to_one), Edge(1, 2, other)), held, 15.0)
    reduced = reduce_problem(problem, dominance=False)
    assert len(reduced.problem.costs) == 3  # {a, b}, c and what is always paid
    assert len(reduced.problem.edges) == 1


def test_edge_that_is_a_sum_of_its_ends_leaves() -> None:
    matrix = np.array([[1.0, 2.0], [4.0, 5.0]])
    held = (Demand(0, 0, 2, np.array([9.0, 1.0])), Demand(1, 0, 2, np.array([9.0, 1.0])))
    reduced = reduce_problem(Problem(("a", "b"), (np.zeros(2),) * 2, (Edge(0, 1, matrix),), held, 10.0))
    assert not reduced.problem.edges
    assert best_by_trying(reduced.problem) == 2.0


def test_times_that_cannot_bind_leave() -> None:
    held = (Demand(0, 0, 9, np.array([1.0, 2.0])), Demand(1, 3, 5, np.array([4.0, 1.0])))
    problem = Problem(("a", "b"), (np.array([1.0, 0.0]), np.array([0.0, 3.0])), (), held, 5.0)
    reduced = reduce_problem(problem, dominance=False)
    assert max(d.stop for d in reduced.problem.demands) == 1
    assert best_by_trying(reduced.problem) == best_by_trying(problem) == 1.0


def test_of_times_at_which_the_same_is_held_one_stays() -> None:
    """Node 0 holds from 0 to 9; nodes 1 and 2 hold alike, one after the other, with a gap between, and between 2 and 3 nobody comes or goes."""
    amount = np.array([4.0, 1.0])
    held = (Demand(0, 0, 9, np.array([1.0, 2.0])), Demand(1, 2, 4, amount), Demand(2, 6, 8, amount))
    problem = Problem(("a", "b", "c"), tuple(np.array([0.0, 3.0]) for _ in range(3)), (), held, 5.0)
    reduced = reduce_problem(problem, dominance=False, eliminate=False)
    assert max(d.stop for d in reduced.problem.demands) == 2
    assert best_by_trying(reduced.problem) == best_by_trying(problem)


def test_strategy_that_alone_breaks_the_limit_leaves() -> None:
    held = (Demand(0, 0, 2, np.array([8.0, 1.0])), Demand(1, 1, 3, np.array([2.0, 3.0])))
    problem = Problem(("a", "b"), (np.array([0.0, 5.0]), np.zeros(2)), (Edge(0, 1, np.array([[0.0, 1.0], [1.0, 0.0]])),), held, 9.0)
    reduced = reduce_problem(problem, dominance=False, eliminate=False)
    assert best_by_trying(reduced.problem) == best_by_trying(problem) == 5.0
    assert reduced.restricted_choice([0, 0]) is None


def test_pruning_looks_past_nodes_with_nothing_to_choose() -> None:
    chain = (Edge(0, 1, np.zeros((1, 2))), Edge(1, 2, np.zeros((2, 3))))
    work = Elimination(Problem(("only", "b", "c"), (np.zeros(1), np.array([1.0, 0.0]), np.array([2.0, 0.0, 1.0])), chain))
    assert work.prune() == 3
    assert work.extent == [1, 1, 1]
    assert work.expand([(0, 0), (1, 0), (2, 0)]).tolist() == [0, 1, 1]


def test_node_without_an_allowed_strategy_is_refused_by_name() -> None:
    problem = Problem(("first", "second"), (np.zeros(2), np.array([np.inf])), (Edge(0, 1, np.zeros((2, 1))),))
    with pytest.raises(Contradiction, match=r"(first|second) has no strategy left"):
        reduce_problem(problem)


def test_dominated_strategies_leave_unless_the_caller_says_otherwise() -> None:
    held = (Demand(0, 0, 1, np.array([2.0, 1.0, 2.0])), Demand(1, 0, 1, np.array([1.0, 2.0])))
    problem = Problem(("a", "b"), (np.array([0.0, 5.0, 1.0]), np.array([4.0, 0.0])), (Edge(0, 1, np.zeros((3, 2))),), held, 3.0)
    assert [c.size for c in reduce_problem(problem).problem.costs] == [2, 2, 1], (
        "the third of a costs more than the first and holds as much"
    )
    assert [c.size for c in reduce_problem(problem, dominance=False).problem.costs] == [3, 2, 1]


def test_limit_below_the_least_demand_is_refused() -> None:
    held = (Demand(0, 0, 2, np.array([7.0, 8.0])),)
    with pytest.raises(OutOfMemory, match="more than the limit 6"):
        reduce_problem(Problem(("a",), (np.zeros(2),), (), held, 6.0))


@pytest.mark.parametrize(
    ("base", "spans", "kept"),
    [
        ([2.0, 2.0], [[0, 1]], [0]),  # none begins between: the first holds all that the second holds
        ([2.0, 2.0], [[1, 2]], [1]),  # none ends between: the second does
        ([1.0, 2.0], [[0, 1]], [0, 1]),
        ([2.0, 1.0], [[1, 2]], [0, 1]),
        ([2.0, 2.0, 2.0], [[0, 1], [2, 3]], [0, 2]),
    ],
)
def test_of_two_times_the_one_that_holds_no_more_leaves(base: list[float], spans: list[list[int]], kept: list[int]) -> None:
    assert not_dominated(np.array(base), np.array(spans)).tolist() == kept
