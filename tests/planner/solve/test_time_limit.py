"""Limits of time by a clock that the test moves: a part never outlives the whole, and nothing begins at the end."""

from __future__ import annotations

import math
from threading import Timer
from time import perf_counter

import numpy as np
import pytest

from planner.solve.limited.memory import solve_within
from planner.solve.problem import Demand, Edge, Problem
from planner.solve.time_limit import NO_LIMIT, Cancel, TimeLimit
from planner.solve.without_limit import solve_exactly
from tests.planner.solve.small import ManualClock


def at(now_s: float, clock: ManualClock) -> None:
    clock.now_s = now_s


def test_a_limit_counts_from_the_moment_at_which_it_was_made() -> None:
    clock = ManualClock()
    at(100.0, clock)
    limit = TimeLimit(10.0, clock)
    assert (limit.elapsed_s(), limit.remaining_s()) == (0.0, 10.0)
    at(104.0, clock)
    assert (limit.elapsed_s(), limit.remaining_s()) == (4.0, 6.0)
    at(115.0, clock)
    assert (limit.elapsed_s(), limit.remaining_s()) == (15.0, -5.0)


def test_nothing_begins_once_no_time_remains() -> None:
    clock = ManualClock()
    limit = TimeLimit(10.0, clock)
    up = []
    for now_s in (0.0, 9.9, 10.0, 10.1):
        at(now_s, clock)
        up.append(limit.is_up())
    assert up == [False, False, True, True]


def test_a_part_ends_after_its_own_time_or_with_the_whole() -> None:
    clock = ManualClock()
    limit = TimeLimit(10.0, clock)
    at(4.0, clock)
    short, long = limit.part(2.0), limit.part(60.0)
    assert (short.seconds, long.seconds) == (2.0, 6.0)
    assert (short.elapsed_s(), short.clock) == (0.0, clock)
    at(7.0, clock)
    assert (short.is_up(), long.is_up(), limit.is_up()) == (True, False, False)
    assert long.remaining_s() == limit.remaining_s() == 3.0


def test_without_a_limit_there_is_always_time() -> None:
    assert NO_LIMIT.remaining_s() == math.inf
    assert not NO_LIMIT.is_up()
    assert NO_LIMIT.part(3.0).seconds == 3.0


def test_nothing_remains_of_a_search_and_its_parts_once_its_clock_is_cancelled() -> None:
    clock = ManualClock()
    stop = Cancel(clock)
    limit = TimeLimit(math.inf, stop)
    part = limit.part(10.0)
    at(4.0, clock)
    assert (limit.is_cancelled, limit.is_up(), part.remaining_s()) == (False, False, 6.0)
    stop.cancel()
    assert (limit.is_cancelled, limit.is_up(), part.is_up(), limit.part(1e9).is_up()) == (True, True, True, True)
    assert limit.elapsed_s() == 4.0  # what it took stays a number


@pytest.mark.parametrize("within_memory", [False, True])
def test_a_solve_that_another_thread_cancels_ends_soon_with_a_choice_and_a_bound(within_memory: bool) -> None:
    """Each of 30 nodes is joined to half of the others at random prices, so that the proof takes minutes."""
    rng = np.random.default_rng(5)
    edges = tuple(Edge(u, v, rng.random((8, 8))) for v in range(30) for u in range(v) if rng.random() < 0.5)
    costs = tuple(rng.random(8) for _ in range(30))
    demands = tuple(Demand(v, 0, 1, rng.random(8)) for v in range(30)) if within_memory else ()
    problem = Problem(tuple(f"n{v}" for v in range(30)), costs, edges, demands, 14.0 if within_memory else math.inf)
    stop = Cancel()
    timer = Timer(0.5, stop.cancel)
    timer.start()
    began_s = perf_counter()
    if within_memory:
        solution = solve_within(problem, seconds=600.0, clock=stop, few_times=0)
    else:
        solution = solve_exactly(problem, seconds=600.0, clock=stop)
    took_s = perf_counter() - began_s
    timer.join()
    assert stop.is_cancelled and took_s < 20.0, took_s
    assert problem.feasible(solution.choice)
    assert solution.objective == pytest.approx(problem.objective(solution.choice))
    assert -math.inf < solution.lower_bound < solution.objective
