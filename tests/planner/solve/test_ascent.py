"""Bounds: rounds of messages and steps of the ascent.  Multipliers are allowed ones, what is dropped is dearer, and the first step counts."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from planner.solve.bounds.memory_multipliers import CuttingPlanes, MultiplierAscent
from planner.solve.bounds.message_passing import Dual
from planner.solve.problem import Floats, Ints, Problem
from planner.solve.reduce.contract import reduce_problem
from planner.solve.without_limit import solve_exactly
from tests.planner.solve.small import best_by_trying, random_problem, tangled


def tight(seed: int) -> Problem:
    """The limit forbids the cheapest choice, so multipliers above 0 are needed."""
    problem = reduce_problem(tangled(seed, nodes=7, strategies=3), dominance=False, eliminate=False).problem
    assert problem.peak(solve_exactly(problem.without_limit()).choice) > problem.limit
    return problem


@pytest.mark.parametrize("seed", [2, 4, 8])
def test_a_step_tries_multipliers_between_the_best_ones_and_the_top_of_the_planes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the top some would be below 0, and the relaxation would bound nothing."""
    ascent = MultiplierAscent(tight(seed))
    charge, top, tops, tried = ascent.dual.charge, CuttingPlanes.top, list[Floats](), 0

    def seen_top(planes: CuttingPlanes) -> tuple[float, Floats]:
        z, multipliers = top(planes)
        tops.append(multipliers)
        return z, multipliers

    def seen_charge(multipliers: Floats) -> None:
        nonlocal tried
        if tops:
            tried += 1
            ends = np.sort([ascent.multipliers, tops[-1]], axis=0)
            assert (ends[0] * (1 - 1e-9) <= multipliers).all()
            assert (multipliers <= ends[1] * (1 + 1e-9)).all()
        charge(multipliers)

    monkeypatch.setattr(CuttingPlanes, "top", seen_top)
    monkeypatch.setattr(ascent.dual, "charge", seen_charge)
    for _ in range(14):
        ascent.step()
    assert tried >= 12
    assert min(multipliers.min() for multipliers in tops) >= 0.0


@pytest.mark.parametrize("seed", [2, 4, 8])
def test_the_first_step_has_the_bound_without_a_limit(seed: int) -> None:
    problem = tight(seed)
    ascent = MultiplierAscent(problem)
    ascent.step()
    assert ascent.bound == pytest.approx(solve_exactly(problem.without_limit()).objective)


def test_a_choice_with_a_forbidden_entry_bounds_nothing() -> None:
    """It costs infinity, as a plane of the cutting planes it would be no number."""
    problem = random_problem(4, nodes=7, limit=0.3, forbidden=0.3, functional=0.0)
    ascent = MultiplierAscent(reduce_problem(problem, dominance=False, eliminate=False).problem)
    for _ in range(8):
        ascent.step()
    assert np.isfinite(ascent.bound)
    assert ascent.bound <= best_by_trying(problem) + 1e-9


def test_rounds_at_once_are_the_same_rounds_one_after_another() -> None:
    problem = tangled(1).without_limit()
    together, apart = Dual(problem), Dual(problem)
    bounds = [apart.sweep(1) for _ in range(3)]
    assert together.sweep(3) == bounds[-1] == together.lower_bound == apart.lower_bound
    assert together.base == bounds[-2], "what a choice with a strategy costs counts from the bound before the last round"
    assert (together.excess == apart.excess).all()


def test_a_choice_with_a_strategy_costs_at_least_its_excess_above_the_base() -> None:
    problem = tangled(1, nodes=7, strategies=3).without_limit()
    dual = Dual(problem)
    dual.sweep(4)
    first = dual.flat.first[:-1]
    for choice in itertools.product(*(range(c.size) for c in problem.costs)):
        assert problem.objective(choice) >= dual.base + dual.excess[first + np.array(choice)].max() - 1e-9
    assert dual.base > 0.9 * best_by_trying(problem)
    assert dual.excess.max() > 0.0


@pytest.mark.parametrize("forward", [True, False])
def test_without_messages_each_node_takes_what_is_best_beside_the_nodes_before_it(forward: bool) -> None:
    problem = tangled(3, nodes=9)
    # With a 0 in every row and column nothing of an edge's costs can be moved to its ends.
    edges = tuple(replace(edge, matrix=np.where(np.eye(4), 0.0, edge.matrix)) for edge in problem.edges)
    problem = replace(problem, edges=edges)
    nodes = range(9) if forward else range(8, -1, -1)
    chosen: dict[int, int] = {}
    for v in nodes:
        costs = problem.costs[v].copy()
        for edge in problem.edges:
            if edge.v == v and edge.u in chosen:
                costs += edge.matrix[chosen[edge.u]]
            elif edge.u == v and edge.v in chosen:
                costs += edge.matrix[:, chosen[edge.v]]
        chosen[v] = int(costs.argmin())
    decoded: Ints = Dual(problem).decode(forward)
    assert decoded.tolist() == [chosen[v] for v in range(9)]
