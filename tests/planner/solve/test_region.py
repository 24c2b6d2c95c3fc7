"""Regions of a problem, with the rest held: what is better inside is better outside, by as much, and as feasible."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from planner.solve.limited.region import Regions
from planner.solve.problem import Demand, Edge, Problem
from tests.planner.solve.small import best_by_trying, random_problem


def held_by(problem: Problem, choice: np.ndarray) -> np.ndarray:
    held = np.zeros(max((d.stop for d in problem.demands), default=0))
    for d in problem.demands:
        held[d.start : d.stop] += d.amount[choice[d.node]]
    return held


@pytest.mark.parametrize("seed", range(12))
def test_a_region_alone_differs_from_the_whole_by_a_constant_and_fits_when_the_whole_fits(seed: int) -> None:
    problem = random_problem(seed, nodes=6, limit=0.5, forbidden=0.0, functional=0.0)
    rng = np.random.default_rng(seed)
    choice = np.array([rng.integers(c.size) for c in problem.costs])
    first = np.cumsum([0, *(c.size for c in problem.costs)])
    region = np.sort(rng.choice(6, 3, replace=False))
    kept = np.ones(first[-1], dtype=bool)
    local = Regions(problem).cut_out(region, choice, held_by(problem, choice), kept, first)
    differences = set()
    for inside in itertools.product(*(range(problem.costs[v].size) for v in region)):
        whole = choice.copy()
        whole[region] = inside
        assert local.feasible((*inside, 0)) == problem.feasible(whole)
        differences.add(round(problem.objective(whole) - local.objective((*inside, 0)), 6))
    assert len(differences) == 1


def test_strategies_that_may_not_be_taken_are_forbidden_in_the_region() -> None:
    problem = Problem(("a", "b"), (np.zeros(3), np.zeros(2)), (Edge(0, 1, np.zeros((3, 2))),))
    kept = np.array([True, False, True, True, False])
    local = Regions(problem).cut_out(np.array([0]), np.array([0, 1]), np.zeros(0), kept, np.array([0, 3, 5]))
    assert np.isfinite(local.costs[0]).tolist() == [True, False, True]


def test_a_region_of_all_that_holds_something_leaves_a_rest_that_holds_nothing() -> None:
    """This once ended with "zip() argument 2 is longer": where the rest's use never turns there is no stretch, so no end of one either."""
    held = (Demand(0, 0, 2, np.array([3.0, 1.0])), Demand(1, 1, 3, np.array([2.0, 1.0])))
    problem = Problem(("a", "b"), (np.array([0.0, 1.0]),) * 2, (Edge(0, 1, np.zeros((2, 2))),), held, 4.0)
    choice = np.array([1, 1])
    local = Regions(problem).cut_out(np.array([0, 1]), choice, held_by(problem, choice), np.ones(4, dtype=bool), np.array([0, 2, 4]))
    assert [d.node for d in local.demands] == [0, 1]
    assert best_by_trying(local) == best_by_trying(problem) == 1.0


def chain(nodes: int, strategies: int) -> Problem:
    edges = tuple(Edge(v, v + 1, np.zeros((strategies, strategies))) for v in range(nodes - 1))
    return Problem(tuple(map(str, range(nodes))), (np.zeros(strategies),) * nodes, edges)


def test_a_region_is_connected_begins_where_the_weight_is_and_ends_at_nodes_with_nothing_to_choose() -> None:
    problem = chain(9, 2)
    weight, count = np.zeros(9), np.full(9, 2)
    weight[4] = 1e9
    count[6] = 1
    assert Regions(problem).draw(weight, count, 10**6).tolist() == [0, 1, 2, 3, 4, 5]
    small = Regions(problem).draw(weight, count, 8)  # two edges of 2 x 2
    assert 4 in small
    assert small.tolist() == list(range(small[0], small[-1] + 1))
    assert 3 <= small.size <= 4


def test_nothing_to_choose_gives_no_region() -> None:
    assert Regions(chain(3, 2)).draw(np.ones(3), np.ones(3, dtype=np.int64), 100).size == 0
