"""Parts and regions of a problem: each begins from the best choice so far and leaves none that is worse."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from planner.solve.bounds.memory_multipliers import MultiplierAscent
from planner.solve.highs import HighsIlp, IlpOutcome
from planner.solve.limited import partial_ilps
from planner.solve.limited.incumbent import Incumbent
from planner.solve.limited.partial_ilps import PartialIlps
from planner.solve.problem import Ints, Problem
from planner.solve.reduce.contract import reduce_problem
from planner.solve.time_limit import TimeLimit
from tests.planner.solve.small import best_by_trying, random_problem


def limited_problem() -> Problem:
    return random_problem(1, nodes=5, strategies=4, limit=0.5, forbidden=0.0, functional=0.0)


def parts_of(problem: Problem) -> PartialIlps:
    """Nothing is known but the bound of one step."""
    reduced = reduce_problem(problem, dominance=False, eliminate=False)
    ascent = MultiplierAscent(reduced.problem)
    ascent.step()
    ascent.finish()
    return PartialIlps(Incumbent(problem, TimeLimit(8.0), None), reduced, ascent)


def worst_choice(problem: Problem) -> Ints:
    choices = itertools.product(*(range(c.size) for c in problem.costs))
    return np.array(max((c for c in choices if problem.feasible(c)), key=problem.objective))


def test_solving_regions_makes_a_bad_choice_the_best() -> None:
    problem = limited_problem()
    parts = parts_of(problem)
    incumbent = parts.incumbent
    assert incumbent.offer(worst_choice(problem), "the worst")
    assert incumbent.objective > best_by_trying(problem)
    parts.part = 10**9  # regions only
    assert parts.solve_next()
    assert incumbent.method == "ILPs over regions"
    assert incumbent.objective == pytest.approx(best_by_trying(problem))


def test_where_no_choice_is_known_the_first_part_is_the_whole_problem_and_its_proof() -> None:
    problem = limited_problem()
    parts = parts_of(problem)
    assert parts.incumbent.choice is None
    assert not parts.solve_next(), "nothing is left to solve"
    assert parts.incumbent.stats["last_share"] == 1.0
    assert parts.incumbent.objective == parts.incumbent.bound == pytest.approx(best_by_trying(problem))


def test_parts_that_hold_no_choice_are_followed_by_larger_ones_until_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_ilps, "_SMALL", 0)
    problem = limited_problem()
    parts = parts_of(problem)
    parts.part = 1
    assert parts.solve_next(), "no choice in so small a part"
    assert parts.incumbent.choice is None
    assert parts.part > 1
    while parts.solve_next():
        pass
    assert parts.incumbent.objective == parts.incumbent.bound == pytest.approx(best_by_trying(problem))


def test_a_part_smaller_than_the_problem_begins_from_the_best_choice_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few strategies the bounds leave, those of the best choice are among them."""
    begun_from: list[Ints | None] = []
    in_truth = HighsIlp.solve

    def seen(ilp: HighsIlp, time_limit: TimeLimit, start: Ints | None = None) -> IlpOutcome:
        begun_from.append(start)
        assert start is not None and ilp.problem.objective(start) <= ilp.cutoff
        return in_truth(ilp, time_limit, start)

    monkeypatch.setattr(HighsIlp, "solve", seen)
    monkeypatch.setattr(partial_ilps, "_SMALL", 0)
    problem = limited_problem()
    parts = parts_of(problem)
    parts.incumbent.offer(worst_choice(problem), "the worst")
    parts.part = 1
    assert parts.solve_next()
    assert parts.incumbent.stats["last_share"] < 1.0
    assert len(begun_from) == 1
