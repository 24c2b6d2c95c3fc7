"""The shuffled order is a permutation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.data.permute import Permutation


@given(n=st.integers(1, 300), seed=st.integers(0, 2**80))
def test_the_shuffled_order_is_a_bijection(n: int, seed: int) -> None:
    assert sorted(map(Permutation(n, seed), range(n))) == list(range(n))


@given(n=st.integers(1, 2**50), data=st.data())
def test_the_shuffled_order_stays_in_range_at_any_size(n: int, data: st.DataObject) -> None:
    assert 0 <= Permutation(n, 1)(data.draw(st.integers(0, n - 1))) < n


def test_another_seed_is_another_order() -> None:
    orders = {tuple(map(Permutation(100, seed), range(100))) for seed in range(50)}
    assert len(orders) == 50
    assert tuple(range(100)) not in orders


def test_every_place_is_equally_likely() -> None:
    """Sample 0 goes to each of 16 places about 4000 / 16 times (chi-squared with 15 degrees of freedom: 1 in 10^5 lies above 50)."""
    counts = np.bincount([Permutation(16, seed)(0) for seed in range(4000)], minlength=16)
    assert ((counts - 250.0) ** 2 / 250.0).sum() < 50


def test_a_number_outside_is_refused() -> None:
    with pytest.raises(IndexError):
        Permutation(5, 0)(5)
