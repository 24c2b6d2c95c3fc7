"""Which columns of a table of rows are held against which."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.ir.errors import InvalidFile
from regista.report.rows import noise_floor, predicted_quantities, read_rows
from tests.regista.report.report_cases import rows_of


def test_columns_of_two_kinds_make_a_pair_per_row():
    (held,) = predicted_quantities(rows_of("model,sim_step_s,run_step_s", "a,1.5,1.0", "b,2.0,", "c,4.0,5.0"))
    assert (held.name, held.predicted, held.given) == ("step_s", "sim", "run")
    assert held.errors == pytest.approx((0.5, -0.2))
    assert [name for _, _, name in held.points] == ["a", "c"]


def test_kinds_after_the_quantity_are_found_too_and_sim_goes_before_theory():
    (held,) = predicted_quantities(rows_of("m,bubble_theory,bubble_sim,bubble_paper", "a,0.1,0.2,0.4"))
    assert (held.predicted, held.given, held.errors) == ("sim", "paper", (-0.5,))


def test_rows_of_two_kinds_are_paired_when_all_but_their_floats_is_alike():
    table = rows_of("quota,kind,step_s,load", "1,sim,2.0,", "1,run,2.5,0.5", "2,sim,1.0,", "2,run,0.5,1.5", "3,sim,9.0,")
    (held,) = predicted_quantities(table)
    assert held.points == ((2.0, 2.5, "1"), (1.0, 0.5, "2"))


def test_a_point_that_is_predicted_and_then_run_is_one_point():
    table = rows_of("point_id,label,phase,sim_step_s,run_step_s", "p,a b,sim,2.0,", "q,c,sim,3.0,", "p,a b,run,,4.0")
    (held,) = predicted_quantities(table)
    assert held.points == ((2.0, 4.0, "a b"),)


def test_allocated_registers_are_held_against_those_of_the_plan():
    (held,) = predicted_quantities(rows_of("m,sim_register_bytes,theory_register_bytes,run_register_bytes", "a,60,100,100"))
    assert (held.predicted, held.errors) == ("theory", (0.0,))
    (held,) = predicted_quantities(rows_of("m,sim_register_bytes,run_register_bytes", "a,50,100"))
    assert (held.predicted, held.errors) == ("sim", (-0.5,))


def test_sets_of_points_are_held_together_and_each_by_itself():
    quantities = predicted_quantities(rows_of("data,point,sim_s,paper_s", "u,a,2.0,1.0", "v,b,3.0,1.0", "v,c,1.0,1.0"))
    assert {held.name: held.errors for held in quantities} == {"time_s": (1.0, 2.0, 0.0), "time_s of u": (1.0,), "time_s of v": (2.0, 0.0)}


def test_the_noise_floor_is_run_against_run():
    table = rows_of("point_id,run_step_s,run_again_step_s", "p,2.0,2.5", "q,1.0,", "r,4.0,3.0")
    assert noise_floor(table) == pytest.approx((0.25, 0.25))
    assert noise_floor(rows_of("sim_step_s,run_step_s", "1.0,2.0")) == ()


def test_rows_that_were_fitted_are_no_predictions():
    (held,) = predicted_quantities(rows_of("role,sim_x,paper_x", "fitted (loss),1.0,1.0", "predicted,2.0,4.0"))
    assert held.errors == (-0.5,)


@given(st.lists(st.floats(0.1, 100), min_size=3, max_size=20, unique=True))
def test_a_monotone_prediction_has_rank_correlation_one(values):
    table = rows_of("m,sim_x,run_x", *(f"p{i},{v * v!r},{v!r}" for i, v in enumerate(values)))
    (held,) = predicted_quantities(table)
    assert held.rank_correlation == pytest.approx(1.0)


def test_a_table_with_a_torn_line_is_refused_with_its_number(tmp_path: Path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,2\n3\n")
    with pytest.raises(InvalidFile, match=r"line 3 has another number of cells"):
        read_rows(path)
