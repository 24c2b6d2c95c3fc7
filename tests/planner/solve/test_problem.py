"""What is derived from a problem costs what the problem costs: other weights, prices on memory, fewer strategies, some nodes alone."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from planner.solve.problem import Ints, Problem
from tests.planner.solve.small import random_problem

SEEDS = range(6)


def choices(problem: Problem) -> list[Ints]:
    return [np.array(choice) for choice in product(*(range(len(costs)) for costs in problem.costs))]


def problem_of(seed: int) -> Problem:
    return random_problem(seed, nodes=4, limit=0.5)


@pytest.mark.parametrize("seed", SEEDS)
def test_weights_multiply_each_part_and_what_is_forbidden_stays_forbidden_at_weight_0(seed: int) -> None:
    problem = problem_of(seed)
    rng = np.random.default_rng(seed)
    node_weights, edge_weights = rng.choice([0.0, 1.0, 2.5], len(problem.costs)), rng.choice([0.0, 1.0, 2.5], len(problem.edges))
    other = problem.reweighted(list(node_weights), list(edge_weights))
    assert other.demands == problem.demands
    for choice in choices(problem):
        if np.isinf(problem.objective(choice)):
            assert np.isinf(other.objective(choice))
            assert np.isinf(problem.cost_free().objective(choice))
        else:
            nodes = sum(w * c[s] for w, c, s in zip(node_weights, problem.costs, choice, strict=True))
            edges = sum(w * e.matrix[choice[e.u], choice[e.v]] for w, e in zip(edge_weights, problem.edges, strict=True))
            assert other.objective(choice) == pytest.approx(nodes + edges)
            assert problem.cost_free().objective(choice) == 0.0


@pytest.mark.parametrize("seed", SEEDS)
def test_a_price_on_memory_is_paid_for_what_is_held_at_that_time(seed: int) -> None:
    problem = problem_of(seed)
    times = sorted({d.start for d in problem.demands})
    prices = {times[0]: 2.0, times[-1]: 0.5}
    charged = problem.charged(prices)
    assert not charged.demands and charged.limit == np.inf
    for choice in choices(problem):
        held = [sum(d.amount[choice[d.node]] for d in problem.demands if d.start <= t < d.stop) for t in prices]
        assert charged.objective(choice) == pytest.approx(problem.objective(choice) + float(np.dot(held, list(prices.values()))))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_choice_among_fewer_strategies_costs_and_holds_the_same(seed: int) -> None:
    problem = problem_of(seed)
    rng = np.random.default_rng(seed)
    kept = [np.sort(rng.permutation(len(costs))[: rng.integers(1, len(costs) + 1)]) for costs in problem.costs]
    fewer, allowing = problem.restricted(kept), problem.allowing(dict(enumerate(kept)))
    for choice in choices(fewer):
        same = np.array([k[s] for k, s in zip(kept, choice, strict=True)])
        assert fewer.objective(choice) == problem.objective(same) == allowing.objective(same)
        assert fewer.peak(choice) == problem.peak(same)
    for choice in choices(problem):
        if not all(s in k for s, k in zip(choice, kept, strict=True)):
            assert allowing.objective(choice) == np.inf


@pytest.mark.parametrize("seed", SEEDS)
def test_some_nodes_alone_cost_what_they_cost_beside_the_others_choice(seed: int) -> None:
    problem = problem_of(seed)
    nodes = np.array([1, 3])
    for choice in choices(problem):
        alone = problem.conditioned(nodes, choice)
        others = [v for v in range(len(problem.costs)) if v not in nodes]
        rest = sum(problem.costs[v][choice[v]] for v in others)
        rest += sum(e.matrix[choice[e.u], choice[e.v]] for e in problem.edges if e.u in others and e.v in others)
        assert alone.objective(choice[nodes]) + rest == pytest.approx(problem.objective(choice))


def test_a_node_without_a_choice_yet_costs_its_neighbours_nothing() -> None:
    problem = problem_of(0)
    alone = problem.conditioned(np.array([0]), np.full(len(problem.costs), -1))
    assert alone.edges == ()
    assert np.array_equal(alone.costs[0], problem.costs[0])
