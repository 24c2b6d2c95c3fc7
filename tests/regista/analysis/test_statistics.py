"""Quantiles and rank correlation: against the definitions, written out."""

from __future__ import annotations

from statistics import correlation

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regista.analysis.statistics import quantile, rank_correlation

VALUES = st.lists(st.integers(-9, 9).map(float), min_size=1, max_size=12)


@given(VALUES, st.floats(0, 1))
def test_a_quantile_lies_between_its_two_order_statistics_in_proportion(values: list[float], share: float) -> None:
    ordered, place = sorted(values), share * (len(values) - 1)
    low = min(int(place), len(values) - 1)
    high = min(low + 1, len(values) - 1)
    assert quantile(values, share) == pytest.approx(ordered[low] + (place - low) * (ordered[high] - ordered[low]), abs=1e-12)


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), max_size=12))
def test_the_rank_correlation_is_that_of_the_ranks_where_equal_values_share_their_mean(pairs: list[tuple[int, int]]) -> None:
    sides = [[float(value) for value in side] for side in zip(*pairs, strict=True)] or [[], []]
    rank = rank_correlation(*sides)
    if len(pairs) < 3 or any(len(set(side)) < 2 for side in sides):
        assert rank is None
        return
    ranks = [[sum(other < v for other in side) + (side.count(v) + 1) / 2 for v in side] for side in sides]
    assert rank == pytest.approx(correlation(*ranks), abs=1e-9)
