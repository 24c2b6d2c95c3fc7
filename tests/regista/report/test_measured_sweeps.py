"""The page of a sweep that was measured: its points, the choice, errors by kind, relations."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured_sweep import MANIFEST, measured_csv

from regista.report.measured import by_group, by_kind, is_measured_sweep, measured_points
from regista.report.pages.sweep_page import save_sweep_page
from regista.report.rows import read_rows
from regista.sweep import load_manifest
from tests.regista.report.report_cases import SWEPT, checked, rows_of


def test_a_point_is_its_last_run_with_the_prediction_that_was_made_for_it():
    points = measured_points(rows_of(*SWEPT))
    assert [(point.point_id, point.sim_s, point.run_s) for point in points] == [("p", 1.92, 2.0), ("q", 1.8, 2.5), ("r", 4.0, 4.0)]
    assert [point.error for point in points] == pytest.approx([-0.04, -0.28, 0.0])
    assert [point.noise for point in points] == pytest.approx([0.1, 0.0, -0.1])
    again = rows_of(*SWEPT, SWEPT[2].replace("1.92", "2.1"))
    assert measured_points(again)[0].sim_s == 2.1


def test_only_a_sweep_of_which_a_point_was_run_is_measured():
    assert is_measured_sweep(rows_of(*SWEPT))
    assert not is_measured_sweep(rows_of(*SWEPT[:2]))
    assert not is_measured_sweep(rows_of("sim_step_s,run_step_s", "1.0,2.0"))


def test_the_choice_is_what_trusting_the_prediction_costs():
    small, large = by_group(measured_points(rows_of(*SWEPT)), lambda point: point.cells["layers"])
    assert (small.fastest.label, large.fastest.label) == ("two in four", "four")
    assert (small.choice, large.choice) == pytest.approx((0.25, 0.0))
    assert small.rank_correlation is None


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=3, max_size=12))
def test_the_choice_is_never_negative_and_zero_for_a_prediction_in_order(times):
    lines = [f"{i},performed,{i},ok,{sim!r},{run!r}" for i, (sim, run) in enumerate(times)]
    (group,) = by_group(measured_points(rows_of("point_id,phase,label,status,sim_step_s,run_step_s", *lines)), lambda _: "")
    assert group.choice >= 0
    lines = [f"{i},performed,{i},ok,{run * run!r},{run!r}" for i, (_, run) in enumerate(times)]
    (group,) = by_group(measured_points(rows_of("point_id,phase,label,status,sim_step_s,run_step_s", *lines)), lambda _: "")
    assert group.choice == 0


def test_errors_of_a_kind_are_of_its_busy_seconds():
    (forward,) = by_kind(measured_points(rows_of(*SWEPT)))
    assert forward.kind.value == "forward"
    assert forward.errors == pytest.approx((0.25, 0.0, 0.0))
    assert forward.share == pytest.approx(1.0)


def test_the_page_of_a_measured_sweep_shows_its_points_memory_and_groups(tmp_path: Path):
    save_sweep_page(rows_of(*SWEPT), tmp_path / "s.html")
    page = checked(tmp_path / "s.html")
    text = (tmp_path / "s.html").read_text()
    assert page.fetched == []
    assert text.count("<use ") == 6  # three points in two pictures
    assert "3 points were predicted, then run; 2 more have no run" in text
    assert "2 of 3 points lie in it" in text
    assert "gpt, layers 2" in text
    assert "is 0 at 2 of 3 points" in text
    processes = text[text.index("Memory: processes") : text.index("Kinds of tasks")]
    assert re.findall(r"<tr><td class=\"words\">two</td>(.*?)</tr>", processes) == [
        '<td>100 B</td><td>40 B</td><td>10 B</td><td>200 B</td><td><span class="bad">-25.0%</span></td>'
    ]
    assert "<h2>Relations</h2>" not in text


def test_relations_of_a_measured_sweep_are_held_broken_or_not_checked(tmp_path: Path):
    (tmp_path / "m.toml").write_text(MANIFEST)
    manifest = load_manifest(tmp_path / "m.toml")
    csv = tmp_path / "m.csv"
    csv.write_text(measured_csv(manifest, ((1.0, 1.1), (3.0, 2.9))))
    save_sweep_page(read_rows(csv), tmp_path / "m.html", manifest=manifest, csv=csv)
    checked(tmp_path / "m.html")
    text = (tmp_path / "m.html").read_text()
    states = re.findall(r"<tr><td class=\"words\"><code>.*?</code></td><td>(.*?)</td>", text)
    assert states == ["held", '<span class="bad">broken</span>', "not checked"]
    assert "1 of 3 hold" in text
    assert "a claim &lt;of&gt; ours" in text
