"""Pictures of traces: Gantt files with the rows they promise, and trace events that other tools read."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from command_line import TINY, commands
from stories import Story, TableCost, chain, data_parallel, pipeline

import regista.api as api
from planner.ir.errors import InvalidFile, InvalidTrace, Mismatch
from planner.ir.files import load_trace, save_trace
from planner.ir.plan import Placement, Plan, StreamKind, TaskKind
from planner.ir.traces.trace import Source, check_trace
from regista.analysis.chunks import chunk_of
from regista.views.exports.kineto import kineto_trace, save_kineto
from regista.views.exports.perfetto import save_perfetto, trace_events
from regista.views.pictures.gantt import COLOURS, gantt, gantt_rows
from regista.views.pictures.panels import CATEGORY_COLOURS, link_rows, link_use
from regista.views.pictures.schedule_gantt import act_colour, bubble_share, schedule_gantt, shown_ranks
from regista.views.pictures.window import show_last
from simulator import simulate
from simulator.analysis.category import Category
from simulator.analysis.curve import memory_curves
from simulator.analysis.replay import message_times
from simulator.theory import bubble_fraction

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
        assert event["ph"] in ("X", "M", "C")
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


def test_counters_say_the_live_bytes_of_every_rank_and_reach_its_peak():
    events = [event for event in trace_events(PLAN, [SIM, RUN]) if event["ph"] == "C"]
    assert {(event["pid"], event["name"]) for event in events} == {(pid, "live bytes") for pid in range(1, 5)}
    for number, trace in enumerate((SIM, RUN)):
        for rank, curve in memory_curves(PLAN, trace).items():
            levels = [sum(e["args"].values()) for e in events if e["pid"] == number * PLAN.num_ranks + rank + 1]
            lasting = [n for i, n in enumerate(curve.total_bytes) if curve.times_s[i] != curve.times_s[min(i + 1, len(curve.times_s) - 1)]]
            assert max(levels) == max(lasting)
            assert levels[-1] == curve.total_bytes[-1]


def test_an_act_says_what_its_stream_waited_for_before_it():
    told = replace(SIM, message_s=message_times(PLAN, lambda src, dst: 0.1))
    first = next(event for event in trace_events(PLAN, [told]) if event["name"] == "F1")
    assert first["args"]["idle_before"] == (
        "1.500 s waits for data: out0, from F0 0 (rank 0); 1.100 s waits for the link: act1, moved by send0 0 (rank 0)"
    )


# --- the picture of a schedule ----------------------------------------------------------------------------------------


def test_the_schedule_has_one_row_per_device_with_its_bubble_and_its_micro_batches(tmp_path):
    plan = pipeline(3, 4)
    trace = simulate(plan, TableCost(default_s=1e-3))
    schedule_gantt(plan, [trace], tmp_path / "s.svg", steps=1)
    texts = svg_texts(tmp_path / "s.svg")
    assert [text for text in texts if text.startswith("rank ")] == ["rank 0", "rank 1", "rank 2"]
    window = show_last(plan, trace, 1)
    assert [text for text in texts if text.endswith("% bubble")] == [f"{bubble_share(plan, window, rank):.0%} bubble" for rank in range(3)]
    # Each of 3 stages shows each of 4 micro-batches once forward and once backward.
    assert all(texts.count(str(micro_batch)) >= 6 for micro_batch in range(4))
    assert {"forward", "backward", "update", "transfer", "bubble"} <= set(texts)
    assert not {category.value for category in Category} & set(texts)


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 4), (4, 8)])
def test_the_bubble_of_the_last_step_is_that_of_the_closed_form(stages: int, micro_batches: int):
    plan = pipeline(stages, micro_batches, update=False)
    free = {"load": 0.0, **{f"{task}{i}": 0.0 for task in ("send", "back", "upd") for i in range(stages)}}
    trace = simulate(plan, TableCost(free), steps=1)
    for rank in range(stages):
        assert bubble_share(plan, show_last(plan, trace, 1), rank) == pytest.approx(bubble_fraction(stages, micro_batches))


def test_memory_and_links_stand_beneath_each_trace(tmp_path):
    schedule_gantt(PLAN, [RUN, SIM], tmp_path / "s.svg", steps=1, memory=True, links=True)
    texts = svg_texts(tmp_path / "s.svg")
    assert texts.index("predicted (sim)") < texts.index("measured (run)")
    assert texts.count("memory") == 2
    assert texts.count("rank 0") == texts.count("rank 1") == 4  # the row and its memory, in both panels
    assert len([text for text in texts if text.startswith("peak ")]) == 4
    assert [text for text in texts if text.startswith("rank 0  send0")] == ["rank 0  send0"] * 2
    assert {category.value for category in Category} <= set(texts)


def test_of_many_devices_the_fullest_have_a_memory_panel(tmp_path):
    plan = pipeline(10, 2)
    schedule_gantt(plan, [simulate(plan, TableCost(), steps=1)], tmp_path / "s.svg", steps=1, memory=True)
    texts = svg_texts(tmp_path / "s.svg")
    assert "memory of the 8 fullest of 10 devices" in texts
    assert [texts.count(f"rank {rank}") for rank in range(10)] == [2] * 8 + [1] * 2  # early stages keep more


def test_a_schedule_that_cannot_be_drawn_is_refused_and_leaves_no_file(tmp_path):
    with pytest.raises(Mismatch, match="1 trace, or 1 simulated and 1 measured"):
        schedule_gantt(PLAN, [SIM, SIM], tmp_path / "g.png")
    with pytest.raises(Mismatch, match="steps = 0"):
        schedule_gantt(PLAN, [SIM], tmp_path / "g.png", steps=0)
    with pytest.raises(InvalidFile, match="name it"):
        schedule_gantt(PLAN, [SIM], tmp_path / "g", memory=True)
    assert list(tmp_path.iterdir()) == []


def test_too_many_devices_are_shown_by_one_of_each_placement():
    assert shown_ranks(data_parallel(32)) == tuple(range(32))
    assert shown_ranks(data_parallel(33)) == (0,)


def test_the_use_of_a_link_is_its_busy_share_of_each_bin():
    plan = pipeline(2, 2)
    trace = simulate(plan, TableCost({"send0": 0.5}), steps=1)
    window = show_last(plan, trace, 1)
    rows = link_rows(plan, window, (0, 1))
    assert rows == ((0, "send0"), (1, "back1"))
    use = link_use(plan, window, rows, window.length_s, bins=int(window.length_s / 0.25))
    for number, (rank, stream) in enumerate(rows):
        busy_s = sum(act.duration_s for act in trace.acts if (act.rank, act.task) == (rank, stream))
        assert use[number].sum() * 0.25 == pytest.approx(busy_s)
        assert set(use[number].round(9)) == {0.0, 1.0}  # these acts begin and end with a bin
    half = link_use(plan, window, rows, window.length_s, bins=1)
    assert half[0, 0] == pytest.approx(2 * 0.5 / window.length_s)


def test_every_category_has_a_colour_of_its_own_that_no_act_has():
    assert set(CATEGORY_COLOURS) == set(Category)
    assert len({*CATEGORY_COLOURS.values(), *COLOURS.values()}) == len(Category) + len(TaskKind)


def interleaved() -> Plan:
    """Four stages on two ranks, forward and backward: F0, F2 on rank 0, F1, F3 on rank 1."""
    story = Story(placements=[Placement(id=f"dev{rank}", ranks=(rank,), mesh=(1,)) for rank in range(2)])
    order = ["F0", "F1", "F2", "F3", "B3", "B2", "B1", "B0"]
    for number, name in enumerate(order):
        rank, kind = int(name[1]) % 2, TaskKind.FORWARD if name[0] == "F" else TaskKind.BACKWARD
        story.regst(f"out_{name}", name, placement=f"dev{rank}")
        inputs = [f"in_{name}" if int(order[number - 1][1]) % 2 != rank else f"out_{order[number - 1]}"] if number else []
        story.task(name, inputs, [f"out_{name}"], kind=kind, stream=f"compute{rank}", placement=f"dev{rank}")
        if number + 1 < len(order) and int(order[number + 1][1]) % 2 != rank:
            story.regst(f"in_{order[number + 1]}", f"send_{name}", placement=f"dev{1 - rank}")
            story.task(f"send_{name}", [f"out_{name}"], [f"in_{order[number + 1]}"], kind=TaskKind.TRANSFER, placement=f"dev{rank}")
    return story.freeze()


def test_the_second_chunk_of_a_device_has_a_lighter_shade_of_its_own(tmp_path):
    plan = interleaved()
    assert chunk_of(plan) == {"F0": 0, "F1": 0, "F2": 1, "F3": 1, "B3": 1, "B2": 1, "B1": 0, "B0": 0}
    assert set(chunk_of(pipeline(3, 2)).values()) == {0}
    shades = {act_colour(kind, chunk) for kind in TaskKind if kind.is_compute for chunk in (0, 1)}
    assert len(shades) == 2 * sum(kind.is_compute for kind in TaskKind)
    schedule_gantt(plan, [simulate(plan, TableCost(), steps=1)], tmp_path / "s.svg")
    for kind in (TaskKind.FORWARD, TaskKind.BACKWARD):
        for chunk in (0, 1):
            assert act_colour(kind, chunk).lower() in (tmp_path / "s.svg").read_text()


# --- Kineto -----------------------------------------------------------------------------------------------------------


def kernels(profile) -> list[dict]:
    return [event for event in profile["traceEvents"] if event.get("cat") == "kernel"]


def test_every_act_of_a_device_is_a_kernel_that_meets_its_launch_and_by_it_its_step():
    for rank in range(PLAN.num_ranks):
        profile = kineto_trace(PLAN, SIM, rank)
        events = profile["traceEvents"]
        steps = {e["name"]: (e["ts"], e["ts"] + e["dur"]) for e in events if e.get("cat") == "user_annotation"}
        assert list(steps) == [f"ProfilerStep#{step}" for step in range(SIM.steps)]
        launches = {e["args"]["correlation"]: e for e in events if e.get("cat") == "cuda_runtime"}
        assert len(launches) == len(kernels(profile)) == sum(act.rank == rank for act in SIM.acts)
        for kernel in kernels(profile):
            launch = launches[kernel["args"]["correlation"]]
            begin, end = steps[f"ProfilerStep#{kernel['args']['step']}"]
            assert begin <= launch["ts"] < end
            assert launch["ts"] <= kernel["ts"]
            assert kernel["args"]["stream"] == kernel["tid"] > 0
            assert (kernel["pid"], kernel["args"]["device"]) == (rank, rank)


def test_kernels_take_as_long_as_the_acts_they_are():
    profile = kineto_trace(PLAN, SIM, 1)
    assert sum(kernel["dur"] for kernel in kernels(profile)) == pytest.approx(1e6 * sum(a.duration_s for a in SIM.acts if a.rank == 1))
    begins = sorted(kernel["ts"] for kernel in kernels(profile))
    assert begins == pytest.approx(sorted(1e6 * act.start_s for act in SIM.acts if act.rank == 1))


def test_collectives_and_transfers_are_named_as_nccl_names_them_and_nothing_else_is():
    plan = data_parallel(4)
    profile = kineto_trace(plan, simulate(plan, TableCost(), steps=1), 2)
    (reduce,) = [kernel for kernel in kernels(profile) if re.match(r"^nccl.*Kernel", kernel["name"])]
    assert reduce["name"] == "ncclDevKernel_AllReduce: all_reduce"
    assert reduce["args"] | {"Collective name": "allreduce", "Group size": 4, "In msg nelems": 256, "dtype": "float32"} == reduce["args"]
    sends = {kernel["name"] for kernel in kernels(kineto_trace(PLAN, SIM, 0)) if re.match(r"^nccl.*Kernel", kernel["name"])}
    assert sends == {"ncclDevKernel_SendRecv: send0"}


def test_host_streams_are_operators_of_the_host():
    streams = tuple(replace(s, kind=StreamKind.HOST) if s.id == "load" else s for s in PLAN.streams)
    plan = replace(PLAN, streams=streams)
    events = kineto_trace(plan, simulate(plan, TableCost(), steps=1), 0)["traceEvents"]
    loads = [event for event in events if event["name"] == "source: load"]
    assert {event["cat"] for event in loads} == {"cpu_op"}
    assert len(loads) == 4
    assert not [event for event in loads if "stream" in event["args"]]


def test_one_file_per_rank_says_its_rank_as_readers_look_for_it(tmp_path):
    paths = save_kineto(PLAN, SIM, tmp_path / "profile")
    assert [path.name for path in paths] == ["rank0.json", "rank1.json"] == sorted(p.name for p in (tmp_path / "profile").iterdir())
    for rank, path in enumerate(paths):
        assert re.findall(r'"rank":\s+(\d+)', path.read_text()) == [str(rank)]
        assert json.loads(path.read_text()) == json.loads(json.dumps(kineto_trace(PLAN, SIM, rank)))
    with pytest.raises(InvalidFile, match="cannot make the folder"):
        save_kineto(PLAN, SIM, tmp_path / "no" / "profile")
    with pytest.raises(Mismatch, match=r"rank 2 is asked for; the plan has ranks 0 \.\. 1"):
        kineto_trace(PLAN, SIM, 2)


# --- on the command line ----------------------------------------------------------------------------------------------


def test_a_simulated_trace_file_gives_the_peak_of_its_simulation_again(tmp_path):
    plan = api.plan(TINY, "local:2", stages=2, micro_batches=4, cuts=["blocks.1"])
    save_trace(plan, api.simulate(plan, steps=2), str(tmp_path / "sim.json"))
    plan, trace = load_trace(str(tmp_path / "sim.json"))
    assert trace.message_s
    for rank, curve in memory_curves(plan, trace).items():
        assert max(curve.total_bytes) == trace.peak_bytes[str(rank)]
        assert max(curve.register_bytes) == trace.register_bytes[str(rank)]
        sizes = {owner.category for owner in curve.owners}
        assert {Category.PARAMETERS, Category.ACTIVATIONS} <= sizes


def test_a_trace_file_of_version_2_is_read_as_if_messages_took_no_time(tmp_path):
    path = tmp_path / "old.json"
    save_trace(PLAN, replace(SIM, message_s={"0->1": 0.1}), str(path))
    data = json.loads(path.read_text())
    assert data["version"] == 3
    del data["trace"]["message_s"]
    path.write_text(json.dumps(data | {"version": 2}))
    assert load_trace(str(path)) == (PLAN, SIM)
    path.write_text(json.dumps(data))
    with pytest.raises(InvalidFile, match=r"missing fields \['message_s'\]"):
        load_trace(str(path))


@pytest.mark.parametrize("wrong", [{"0->7": 0.1}, {"0": 0.1}, {"0->1": -0.1}])
def test_message_times_that_cannot_be_are_refused(wrong: dict):
    with pytest.raises(InvalidTrace, match="law 6: a message"):
        check_trace(PLAN, replace(SIM, message_s=wrong))


def test_the_verbs_draw_and_export_what_their_options_say(capsys, tmp_path):
    command = commands(capsys)
    save_trace(PLAN, SIM, str(tmp_path / "sim.json"))
    save_trace(PLAN, RUN, str(tmp_path / "run.json"))
    assert command("gantt", tmp_path / "sim.json", "--streams", "-o", tmp_path / "streams.svg").code == 0
    assert "load" in svg_texts(tmp_path / "streams.svg")
    assert command("gantt", tmp_path / "sim.json", "--links", "-o", tmp_path / "devices.svg").code == 0
    assert "load" not in svg_texts(tmp_path / "devices.svg")
    refused = command("gantt", tmp_path / "sim.json", "--streams", "--memory", "-o", tmp_path / "no.svg")
    assert (refused.code, "leave out --streams" in refused.err) == (2, True)
    exported = command("export", tmp_path / "sim.json", "--format", "kineto", "-o", tmp_path / "profile", "--json")
    assert exported.json["files"] == [f"{tmp_path}/profile/rank{rank}.json" for rank in range(2)]
    refused = command("export", tmp_path / "sim.json", tmp_path / "run.json", "--format", "kineto", "-o", tmp_path / "two")
    assert (refused.code, "got 2 traces" in refused.err) == (2, True)
    assert not (tmp_path / "two").exists()
