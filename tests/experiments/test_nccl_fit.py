"""The fit of a collective's time: it finds what made the data, it is never negative, and nothing allowed is better."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.nccl_fit.fit import SwitchedFit, TimeFit, fit_switched, fit_time, mean_error
from experiments.nccl_fit.rows import rows_of
from experiments.nccl_fit.score import scored_against
from planner.ir.errors import InvalidFile, Unsupported

SIZES = [float(2**k) for k in range(10, 34, 2)]


@given(alpha=st.floats(1e-6, 1e-4), rate=st.floats(1e9, 1e12), root=st.floats(0, 1e-8))
def test_a_fit_of_exact_data_gives_back_what_made_it(alpha, rate, root):
    made = TimeFit(alpha_s=alpha, s_per_byte=1 / rate, root_s_per_sqrt_byte=root)
    fitted = fit_time(SIZES, [made.time_s(n) for n in SIZES])
    assert [fitted.time_s(n) for n in SIZES] == pytest.approx([made.time_s(n) for n in SIZES], rel=1e-6)


@given(st.lists(st.floats(1e-6, 1.0), min_size=12, max_size=12), st.booleans())
def test_no_coefficient_is_negative_and_no_nearby_allowed_one_is_better(times, root):
    def loss(fit: TimeFit) -> float:
        return sum((fit.time_s(n) / t - 1) ** 2 for n, t in zip(SIZES, times, strict=True))

    fitted = fit_time(SIZES, times, root=root)
    parts = (fitted.alpha_s, fitted.s_per_byte, fitted.root_s_per_sqrt_byte)
    assert min(parts) >= 0
    scales = (1e-6, 1e-12, 1e-9)
    for i in range(3 if root else 2):
        for step in (1e-3, -1e-3):
            moved = list(parts)
            moved[i] = max(moved[i] + step * max(moved[i], scales[i]), 0.0)
            other = TimeFit(alpha_s=moved[0], s_per_byte=moved[1], root_s_per_sqrt_byte=moved[2])
            assert loss(other) >= loss(fitted) * (1 - 1e-9)


@given(st.lists(st.floats(1e-6, 1.0), min_size=12, max_size=12))
def test_the_square_root_never_fits_worse_than_alpha_beta_alone(times):
    def loss(fit: TimeFit) -> float:
        return sum((fit.time_s(n) / t - 1) ** 2 for n, t in zip(SIZES, times, strict=True))

    assert loss(fit_time(SIZES, times)) <= loss(fit_time(SIZES, times, root=False)) * (1 + 1e-9)


@given(st.integers(3, len(SIZES) - 3))
def test_a_switched_fit_finds_the_size_at_which_the_protocol_changed(place):
    small, large = TimeFit(alpha_s=1e-5, s_per_byte=1e-9), TimeFit(alpha_s=1e-3, s_per_byte=1e-11)
    made = SwitchedFit(switch_bytes=SIZES[place], small=small, large=large)
    fitted = fit_switched(SIZES, [made.time_s(n) for n in SIZES])
    assert SIZES[place - 1] < fitted.switch_bytes < SIZES[place]
    assert [fitted.time_s(n) for n in SIZES] == pytest.approx([made.time_s(n) for n in SIZES], rel=1e-6)


def test_a_switched_fit_of_few_sizes_is_refused():
    with pytest.raises(Unsupported, match="5 numbers and 5 different sizes"):
        fit_switched([1, 2, 3, 4, 5], [1, 2, 3, 4, 5])


def test_the_mean_error_is_relative():
    fit = TimeFit(alpha_s=0.0, s_per_byte=1.0)
    assert mean_error(fit, [1.0, 100.0], [2.0, 50.0]) == pytest.approx((0.5 + 1.0) / 2)


@pytest.mark.parametrize(("sizes", "times"), [([1, 2], [1, 2]), ([1, 1, 1], [1, 2, 3]), ([1, 2, 3], [1, 2]), ([1, 2, 3], [0, 1, 2])])
def test_too_little_or_impossible_data_is_refused(sizes, times):
    with pytest.raises(Unsupported, match="size"):
        fit_time(sizes, times)


def test_a_table_of_ones_own_is_scored_and_other_columns_are_refused(tmp_path):
    own = tmp_path / "own.csv"
    own.write_text("interconnect,kind,ranks,ranks_per_node,bytes,time_us\nh100-nvswitch,all_reduce,16,8,1073741824,4484.9\n")
    errors = scored_against(own)
    assert set(errors["rows"]) == {1}
    assert errors.mean_error.max() < 0.05
    own.write_text("when,what\n1,2\n")
    with pytest.raises(InvalidFile, match=r"columns \['what', 'when'\]; a table of times has"):
        rows_of(own)
