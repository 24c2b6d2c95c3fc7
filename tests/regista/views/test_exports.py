"""Traces for other tools: Perfetto and Kineto."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from stories import TableCost, chain, data_parallel

from planner.ir.errors import InvalidFile, Mismatch
from planner.ir.plan import StreamKind
from regista.views.exports.kineto import kineto_trace, save_kineto
from regista.views.exports.perfetto import save_perfetto, trace_events
from regista.views.pictures.gantt import gantt_rows
from simulator import simulate
from simulator.analysis.curve import memory_curves
from simulator.analysis.replay import message_times
from tests.regista.views.view_cases import PLAN, RUN, SIM


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
    with_messages = replace(SIM, message_s=message_times(PLAN, lambda src, dst: 0.1))
    first = next(event for event in trace_events(PLAN, [with_messages]) if event["name"] == "F1")
    assert first["args"]["idle_before"] == (
        "1.500 s waits for data: out0, from F0 0 (rank 0); 1.100 s waits for the link: act1, moved by send0 0 (rank 0)"
    )


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
