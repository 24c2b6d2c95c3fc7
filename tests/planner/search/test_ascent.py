"""One multiplier per stage: what is proven at any of them holds for every choice within memory, and the next one is where two lines meet."""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest

from planner.search.bounds.ascent import Brackets, Relaxed, StageRelaxation, ascend
from planner.solve import Edge, Problem
from planner.solve.problem import Demand

STAGES, PER_STAGE, MEMORY = 3, 2, 7.0


def staged_problem(seed: int) -> tuple[Problem, np.ndarray]:
    """A chain of nodes with a few edges more; what costs less holds more, at one or both times of its stage."""
    rng = random.Random(seed)
    count = STAGES * PER_STAGE
    amounts = [np.array([rng.uniform(0, 6) for _ in range(rng.choice((2, 3)))]) for _ in range(count)]
    costs = tuple(np.array([rng.uniform(0, 2) + (6 - held) * rng.uniform(0.2, 1.0) for held in amount]) for amount in amounts)
    pairs = {(v, v + 1) for v in range(count - 1)} | {tuple(sorted(rng.sample(range(count), 2))) for _ in range(4)}
    edges = tuple(Edge(u, v, np.array([[rng.uniform(0, 1) for _ in costs[v]] for _ in costs[u]])) for u, v in sorted(pairs))
    stage_of = np.repeat(np.arange(STAGES), PER_STAGE)
    demands = tuple(Demand(v, 2 * int(stage_of[v]) + rng.choice((0, 0, 1)), 2 * int(stage_of[v]) + 2, amounts[v]) for v in range(count))
    return Problem(tuple(map(str, range(count))), costs, edges, demands, MEMORY), stage_of


@pytest.mark.parametrize("seed", range(6))
def test_no_bound_at_any_multipliers_exceeds_what_any_choice_costs_there_nor_the_best_choice_within_memory(seed: int) -> None:
    problem, stage_of = staged_problem(seed)
    every = [np.array(choice) for choice in product(*(range(len(c)) for c in problem.costs))]
    cost, held = np.array([problem.objective(c) for c in every]), np.array([problem.held(c, 2 * STAGES) for c in every])
    best, rng = cost[(held <= MEMORY).all(axis=1)].min(initial=np.inf), random.Random(seed)
    relaxation = StageRelaxation(problem, stage_of, STAGES, MEMORY + 1.0)  # devices have more than is asked for
    given = [np.array([rng.choice((0.0, rng.uniform(0, 2), 50.0)) for _ in range(STAGES)]) for _ in range(8)]
    searched = [relaxed for relaxed, _, _ in ascend(relaxation, np.zeros(STAGES), MEMORY, 10)]
    for relaxed in searched + [relaxation.at(multipliers) for multipliers in given]:
        y = relaxed.multipliers
        assert relaxed.bound <= (cost + held[:, relaxed.times] @ y).min() - (MEMORY + 1.0) * y.sum() + 1e-9
        assert relaxed.bound <= best + 1e-9


@pytest.mark.parametrize("seed", range(6))
def test_what_is_said_of_a_choice_is_what_it_costs_and_holds_and_searched_multipliers_bound_no_less_than_none(seed: int) -> None:
    problem, stage_of = staged_problem(seed)
    relaxation = StageRelaxation(problem, stage_of, STAGES, MEMORY)
    rounds = [relaxed for relaxed, _, _ in ascend(relaxation, np.zeros(STAGES), MEMORY, 10)]
    for relaxed in rounds:
        choice = relaxation.expand(relaxed)
        assert relaxed.cost.sum() == pytest.approx(problem.objective(choice))
        assert relaxed.held.reshape(-1) == pytest.approx(problem.held(choice, 2 * STAGES))
    assert max(relaxed.bound for relaxed in rounds) >= rounds[0].bound


@pytest.mark.parametrize("seed", range(6))
def test_each_stage_is_charged_at_the_time_at_which_the_first_choice_holds_more(seed: int) -> None:
    problem, stage_of = staged_problem(seed)
    first, *others = [relaxed for relaxed, _, _ in ascend(StageRelaxation(problem, stage_of, STAGES, MEMORY), np.zeros(STAGES), MEMORY, 4)]
    fuller = [2 * stage + (late > early) for stage, (early, late) in enumerate(first.held)]
    assert first.times.tolist() == [0, 2, 4]
    assert all(relaxed.times.tolist() == fuller for relaxed in others)


def test_the_next_multiplier_is_where_the_lines_of_the_two_choices_meet() -> None:
    """At y: 3 + 12 y, which does not fit, against 8 + 7 y, which does: equal at y = 1.  A stage that fits at 0 stays there."""

    def found(y: float, cost: float, held: float) -> Relaxed:
        at, costs, bytes_held = np.array([y, 0.0]), np.array([cost, 1.0]), np.array([[held, 0.0], [2.0, 0.0]])
        return Relaxed(multipliers=at, times=np.array([0, 2]), bound=0.0, choice=np.zeros(0, dtype=np.int64), held=bytes_held, cost=costs)

    brackets, full = Brackets(2), np.array([True, False])
    brackets.note(found(0.0, 3.0, 12.0), np.array([12.0, 2.0]), full)
    assert brackets.next(found(0.0, 3.0, 12.0), full, 4.0).tolist() == [4.0, 0.0]
    fits = np.array([False, False])
    lower, upper = brackets.note(found(4.0, 8.0, 7.0), np.array([7.0, 2.0]), fits)
    assert (lower.tolist(), upper.tolist()) == ([False, False], [True, True])
    assert brackets.next(found(4.0, 8.0, 7.0), fits, 4.0).tolist() == [1.0, 0.0]


def test_rounds_that_raise_no_bound_end_the_search_after_as_many_as_are_allowed() -> None:
    problem, stage_of = staged_problem(0)
    ample = StageRelaxation(Problem(problem.names, problem.costs, problem.edges, problem.demands, 1e3), stage_of, STAGES, 1e3)
    assert len(list(ascend(ample, np.zeros(STAGES), 1e3, 10, patience=2))) == 3
