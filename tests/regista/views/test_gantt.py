"""Gantt files with the rows, colours and steps that they promise."""

from __future__ import annotations

import re

import pytest
from stories import TableCost, chain, data_parallel

from planner.ir.errors import InvalidFile, Mismatch
from planner.ir.plan import TaskKind
from regista.views.pictures.gantt import COLOURS, gantt, gantt_rows
from simulator import simulate
from tests.regista.views.view_cases import PLAN, RUN, SIM, svg_texts


def test_rows_are_the_streams_that_act_rank_by_rank():
    assert gantt_rows(PLAN, [SIM]) == (
        (0, "load"),
        (0, "compute0"),
        (0, "send0"),
        (1, "compute1"),
        (1, "back1"),
    )


def test_compute_stands_above_collectives():
    plan = data_parallel(2)
    rows = gantt_rows(plan, [simulate(plan, TableCost())])
    assert [stream for rank, stream in rows if rank == 1] == ["load", "compute", "collective"]


def test_too_many_rows_are_folded_to_one_rank_per_placement():
    plan = data_parallel(32)
    assert gantt_rows(plan, [simulate(plan, TableCost(), steps=1)]) == ((0, "load"), (0, "compute"), (0, "collective"))


def test_two_traces_are_drawn_predicted_above_measured_with_every_row_in_both(tmp_path):
    path = tmp_path / "g.svg"
    gantt(PLAN, [RUN, SIM], path)
    texts = svg_texts(path)
    assert texts.index("predicted (sim)") < texts.index("measured (run)")
    for row in ("rank 0", "rank 1", "load", "compute0", "send0", "compute1", "back1"):
        assert texts.count(row) == 2, row
    title = next(text for text in texts if text.startswith("pipeline-2x4:"))
    assert re.search(r"predicted \(sim\) \S+ ms per step, +measured \(run\) \S+ ms per step, +error -\d+\.\d%", title)
    assert {"forward", "backward", "update", "transfer", "source (data)"} <= set(texts)
    assert "time from the start of the shown steps [ms]" in texts


def test_only_the_last_steps_are_shown_and_micro_batches_are_numbered(tmp_path):
    path = tmp_path / "g.svg"
    gantt(PLAN, [SIM], path, steps=1)
    texts = svg_texts(path)
    assert [text for text in texts if text.startswith("step")] == [f"step 2:  {SIM.step_times_s(PLAN)[-1] * 1e3:.4g} ms"]
    assert {"0", "1", "2", "3"} <= set(texts)


@pytest.mark.parametrize(("suffix", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_the_suffix_gives_the_format_and_nothing_else_is_left_behind(tmp_path, suffix: str, magic: bytes):
    path = tmp_path / f"g.{suffix}"
    gantt(PLAN, [SIM, RUN], path, steps=3)
    assert path.read_bytes().startswith(magic)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_the_same_traces_give_the_same_svg_to_the_byte(tmp_path):
    for name in ("a.svg", "b.svg"):
        gantt(PLAN, [SIM, RUN], tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_a_picture_that_cannot_be_drawn_is_refused_and_leaves_no_file(tmp_path):
    for wrong in ([], [SIM, SIM], [SIM, RUN, RUN]):
        with pytest.raises(Mismatch, match="1 trace, or 1 simulated and 1 measured"):
            gantt(PLAN, wrong, tmp_path / "g.png")
    with pytest.raises(Mismatch, match="the sim trace is of plan"):
        gantt(chain("ab", 1, 1), [SIM], tmp_path / "g.png")
    with pytest.raises(Mismatch, match="steps = 0"):
        gantt(PLAN, [SIM], tmp_path / "g.png", steps=0)
    with pytest.raises(InvalidFile, match=r"format 'docx' is not among .*png"):
        gantt(PLAN, [SIM], tmp_path / "g.docx")
    with pytest.raises(InvalidFile, match="name it"):
        gantt(PLAN, [SIM], tmp_path / "g")
    with pytest.raises(InvalidFile, match="existing, writable folder"):
        gantt(PLAN, [SIM], tmp_path / "no" / "g.png")
    assert list(tmp_path.iterdir()) == []


def test_every_kind_has_a_colour_of_its_own():
    assert set(COLOURS) == set(TaskKind)
    assert len(set(COLOURS.values())) == len(TaskKind)
