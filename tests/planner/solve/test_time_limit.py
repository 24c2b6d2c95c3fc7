"""Limits of time by a clock that the test moves: a part never outlives the whole, and nothing begins at the end."""

from __future__ import annotations

import math

from planner.solve.time_limit import NO_LIMIT, TimeLimit
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
