"""Steps of the ascent: its multipliers are allowed ones, and its bound counts from the first step on."""

from __future__ import annotations

import numpy as np
import pytest

from planner.solve.bounds.memory_multipliers import CuttingPlanes, MultiplierAscent
from planner.solve.problem import Floats, Problem
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
