"""The limits that one shape is tried with: what is asked for next, and when a shape is given up."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.parallelism.one_shape.narrow import LimitSearch

MEMORY = 100.0


def tries(least: float, uncounted: float, first: float = MEMORY) -> tuple[list[float], bool]:
    """(the limits, whether a Plan fitted) of a shape whose layouts hold all that they may, and whose Plans need so much beside it."""
    narrowing = LimitSearch(MEMORY, first, first)
    limits = []
    for _ in range(6):
        limits.append(narrowing.limit_bytes)
        if narrowing.limit_bytes < least:
            if not narrowing.raise_limit():
                break
        elif narrowing.limit_bytes + uncounted <= MEMORY:
            return limits, True
        elif not narrowing.lower_limit(narrowing.limit_bytes + uncounted, narrowing.limit_bytes, lambda: least):
            break
    return limits, False


@given(least=st.floats(1.0, 60.0), uncounted=st.floats(0.1, 30.0))
def test_where_what_is_not_counted_stays_the_second_try_fits_if_any_can(least, uncounted):
    limits, fitted = tries(least, uncounted)
    assert fitted == (least + uncounted * 1.02 <= MEMORY)
    assert len(limits) == 2


@given(least=st.floats(0.0, 150.0), uncounted=st.floats(0.1, 150.0))
def test_no_layout_is_searched_within_less_than_any_holds_twice(least, uncounted):
    limits, _ = tries(least, uncounted)
    assert sum(limit < least for limit in limits[1:]) == 0


@given(st.floats(70.0, 99.0))
def test_a_shape_is_given_up_where_its_least_and_most_of_what_was_not_counted_are_too_much(least):
    """A try after the first is made up to uncounted = (memory - least) / 0.75, although nothing that is not counted goes away here."""
    most = (MEMORY - least) / 0.75
    assert tries(least, most + 0.1) == ([MEMORY], False)
    limits, fitted = tries(least, most - 0.1)
    assert len(limits) > 1 and not fitted


def test_without_a_limit_the_first_try_binds_nothing_and_the_second_has_the_first_limit():
    narrowing = LimitSearch(MEMORY, 97.0)
    assert narrowing.limit_bytes == inf
    assert narrowing.lower_limit(150.0, 0.0, lambda: pytest.fail("nobody asked for less yet"))
    assert narrowing.limit_bytes == 97.0


def test_the_least_that_was_not_counted_in_any_try_is_what_may_stay():
    narrowing = LimitSearch(MEMORY, MEMORY, MEMORY)
    assert narrowing.lower_limit(170.0, 80.0, lambda: 30.0), "90 not counted: 30 and 67.5 fit"
    assert narrowing.lower_limit(160.0, 55.0, lambda: 30.0), "105 now, but 90 was seen"
    other = LimitSearch(MEMORY, MEMORY, MEMORY)
    assert not other.lower_limit(160.0, 55.0, lambda: 30.0), "30 and 78.75 do not"


def test_more_is_asked_for_where_nothing_fits_until_all_of_the_memory_was():
    narrowing = LimitSearch(MEMORY, MEMORY, MEMORY)
    assert narrowing.lower_limit(140.0, 80.0, lambda: 10.0)
    assert narrowing.limit_bytes == 40.0, "half of what was held; 39.2 is what would be left"
    assert narrowing.raise_limit()
    assert narrowing.limit_bytes == 60.0
    narrowing.limit_bytes = MEMORY
    assert not narrowing.raise_limit()


def test_a_search_that_counts_nothing_has_no_lower_limit_that_helps():
    narrowing = LimitSearch(MEMORY, MEMORY, MEMORY)
    assert not narrowing.lower_limit(150.0, 0.0, lambda: 0.0)
