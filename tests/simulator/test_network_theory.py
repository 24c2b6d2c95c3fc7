"""The closed forms of the network: where they meet each other, and what they refuse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.ir.cluster import LinkSpec
from simulator.theory import (
    all_to_all_s,
    double_tree_all_reduce_s,
    halving_doubling_all_reduce_s,
    ring_all_reduce_s,
    two_level_all_reduce_s,
)

SLOW = LinkSpec(latency_s=5e-6, bandwidth_bytes_per_s=1e10)
FAST = LinkSpec(latency_s=1e-6, bandwidth_bytes_per_s=1e11)
SIZES, RANKS = st.integers(0, 10**10), st.integers(1, 64)


@given(size=SIZES, p=RANKS)
def test_two_levels_with_one_member_on_either_level_are_one_ring(size, p):
    assert two_level_all_reduce_s(size, p, 1, FAST, SLOW) == pytest.approx(ring_all_reduce_s(size, p, FAST))
    assert two_level_all_reduce_s(size, 1, p, FAST, SLOW) == pytest.approx(ring_all_reduce_s(size, p, SLOW))


@given(size=SIZES, p=st.integers(0, 10).map(lambda k: 2**k))
def test_halving_doubling_is_a_ring_with_fewer_latencies(size, p):
    saved_s = 2 * (p - 1 - (p.bit_length() - 1)) * SLOW.latency_s
    assert halving_doubling_all_reduce_s(size, p, SLOW) == pytest.approx(ring_all_reduce_s(size, p, SLOW) - saved_s)


@given(p=st.integers(2, 1000))
def test_a_double_tree_of_no_bytes_takes_twice_its_height(p):
    height = next(h for h in range(11) if 2**h >= p)
    assert double_tree_all_reduce_s(0, p, SLOW) == pytest.approx(2 * height * SLOW.latency_s)


@pytest.mark.parametrize(
    "call",
    [
        lambda: halving_doubling_all_reduce_s(1, 6, SLOW),
        lambda: halving_doubling_all_reduce_s(1, 0, SLOW),
        lambda: double_tree_all_reduce_s(1, 4, SLOW, 0),
        lambda: all_to_all_s(-1, 4, SLOW),
        lambda: two_level_all_reduce_s(1, 0, 4, FAST, SLOW),
    ],
)
def test_impossible_groups_are_refused(call):
    with pytest.raises(ValueError):
        call()
