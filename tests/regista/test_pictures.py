"""Pictures of traces: Gantt files with the rows they promise, and trace events that other tools read."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from stories import TableCost, chain, data_parallel, pipeline

from planner.ir.errors import InvalidFile, Mismatch
from planner.ir.plan import TaskKind
from planner.ir.trace import Source
from regista.gantt import COLOURS, gantt, gantt_rows
from regista.perfetto import save_perfetto, trace_events
from simulator import simulate

PLAN = pipeline(2, 4)
SIM = simulate(PLAN, TableCost({"F0": 0.5}, latency_s=0.1), steps=3)
RUN = replace(simulate(PLAN, TableCost({"F0": 0.75}, latency_s=0.2), steps=5), source=Source.RUN, performer="story")


def svg_texts(path) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text())


# --- Gantt ------------------------------------------------------------------------------------------------------------


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


# --- Perfetto ---------------------------------------------------------------------------------------------------------


def test_trace_events_have_the_fields_that_the_format_asks_for(tmp_path):
    path = tmp_path / "t.json"
    save_perfetto(PLAN, [SIM, RUN], path)
    data = json.loads(path.read_text())
    assert data["otherData"] == {"plan_id": PLAN.plan_id, "model": PLAN.model}
    for event in data["traceEvents"]:
        assert event["ph"] in ("X", "M")
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            assert {"act", "step", "micro_batch"} <= set(event["args"])
    assert [p.name for p in tmp_path.iterdir()] == ["t.json"]


def test_processes_are_ranks_of_a_source_and_threads_are_streams():
    events = trace_events(PLAN, [SIM, RUN])
    named = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert list(named.values()) == ["rank 0 (sim)", "rank 1 (sim)", "rank 0 (run)", "rank 1 (run)"]
    threads = {(named[e["pid"]], e["args"]["name"]) for e in events if e["name"] == "thread_name"}
    assert threads == {(f"rank {r} ({s})", stream) for s in ("sim", "run") for r, stream in gantt_rows(PLAN, [SIM])}


def test_durations_add_up_to_those_of_the_trace_in_microseconds():
    for trace in (SIM, RUN):
        acts = [event for event in trace_events(PLAN, [trace]) if event["ph"] == "X"]
        assert len(acts) == len(trace.acts)
        assert sum(event["dur"] for event in acts) == pytest.approx(1e6 * sum(act.duration_s for act in trace.acts))
        assert max(event["ts"] + event["dur"] for event in acts) == pytest.approx(1e6 * max(act.end_s for act in trace.acts))
        for event in acts:
            assert event["args"]["act"] == event["args"]["step"] * PLAN.task[event["name"]].acts + event["args"]["micro_batch"]


def test_both_traces_start_at_zero_whatever_their_clocks_said():
    late = replace(RUN, acts=tuple(replace(a, ready_s=a.ready_s + 9, start_s=a.start_s + 9, end_s=a.end_s + 9) for a in RUN.acts))
    starts = [event["ts"] for event in trace_events(PLAN, [late]) if event["ph"] == "X"]
    assert min(starts) == 0


def test_names_with_quotes_and_backslashes_survive_the_file(tmp_path):
    name = 'a "quoted" \\ näme\n</script>'
    plan = chain([name, "b"], 1, 1)
    save_perfetto(plan, [simulate(plan, TableCost())], tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))["traceEvents"]
    assert name in {event["name"] for event in events}


def test_events_of_another_plan_are_refused_and_leave_no_file(tmp_path):
    with pytest.raises(Mismatch, match="the run trace is of plan"):
        save_perfetto(chain("ab", 1, 1), [RUN], tmp_path / "t.json")
    with pytest.raises(Mismatch, match="no trace"):
        save_perfetto(PLAN, [], tmp_path / "t.json")
    assert list(tmp_path.iterdir()) == []
