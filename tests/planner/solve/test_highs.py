"""Which rows of the memory limit the ILP lists, and with which method it solves its first relaxation."""

from __future__ import annotations

import numpy as np
import pytest

from planner.solve.highs import HighsIlp
from planner.solve.problem import Demand, Edge, Problem
from planner.solve.time_limit import TimeLimit


def held_over(times: int, limit: float = 100.0) -> HighsIlp:
    """An ILP with ``times`` times; what is held there is the test's to say."""
    return HighsIlp(Problem(("a",), (np.zeros(1),), (), (Demand(0, 0, times, np.ones(1)),), limit))


def test_rows_are_listed_beforehand_for_the_peaks_near_the_limit_the_highest_first() -> None:
    held = np.array([96.0, 97.0, 96.0, 50.0, 60.0, 50.0, 99.0, 99.0, 98.0])
    assert held_over(9)._near(held).tolist() == [7, 1]
    assert held_over(9)._near(held, most=1).tolist() == [7]


def test_of_times_above_the_limit_close_to_each_other_the_worst_is_listed() -> None:
    ilp, held = held_over(600), np.full(600, 90.0)
    held[[100, 101, 103, 104, 300]] = [110.0, 120.0, 110.0, 111.0, 100.5]
    assert ilp.worst(held).tolist() == [101, 300], "600 times: up to 3 apart is close"
    assert ilp.worst(held, most=1).tolist() == [101]
    ilp.add_times(np.array([101]))
    assert ilp.worst(held).tolist() == [104, 100, 300]


class Began(Exception):
    """The solver would run now."""


@pytest.mark.parametrize(("strategies", "method"), [(3, "choose"), (142, "ipm")])
def test_a_first_relaxation_of_many_columns_is_solved_by_the_interior_point_method(
    strategies: int, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    methods = list[str]()

    def begin(ilp: HighsIlp, time_limit: TimeLimit) -> None:
        methods.append(ilp.model.getOptionValue("solver")[1])
        raise Began

    monkeypatch.setattr(HighsIlp, "_run", begin)
    costs = np.random.default_rng(0).random((strategies, strategies))
    ilp = HighsIlp(Problem(("a", "b"), (np.zeros(strategies),) * 2, (Edge(0, 1, costs),)))
    with pytest.raises(Began):
        ilp.relaxed(TimeLimit())
    assert methods == [method]
