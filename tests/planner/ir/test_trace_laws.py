"""Each of the six laws of a trace catches its planted violation, and says its number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from stories import TableCost, chain, data_parallel, pipeline

from planner.ir.errors import InvalidFile, InvalidTrace, Mismatch
from planner.ir.files import load_trace, save_trace
from planner.ir.plan import Plan
from planner.ir.traces.trace import Act, Source, Trace, check_trace
from simulator import simulate

PLAN = pipeline(2, 3)
TRACE = simulate(PLAN, TableCost(latency_s=0.25), steps=2)


def changed(trace: Trace, task: str, number: int, change: Callable[[Act], Act], rank: int = 0) -> Trace:
    """The trace with one act replaced."""
    hit = [act for act in trace.acts if (act.task, act.number, act.rank) == (task, number, rank)]
    assert len(hit) == 1
    return replace(trace, acts=tuple(change(act) if act is hit[0] else act for act in trace.acts))


def shift(by_s: float) -> Callable[[Act], Act]:
    return lambda act: replace(act, ready_s=act.ready_s + by_s, start_s=act.start_s + by_s, end_s=act.end_s + by_s)


def refused(plan: Plan, trace: Trace, law: str, *said: str) -> None:
    with pytest.raises(InvalidTrace) as caught:
        check_trace(plan, trace)
    for words in (law, *said):
        assert words in str(caught.value)


def test_the_unchanged_trace_keeps_all_laws():
    check_trace(PLAN, TRACE)


def test_law_1_catches_a_missing_act():
    short = replace(TRACE, acts=tuple(act for act in TRACE.acts if (act.task, act.number) != ("F1", 4)))
    refused(PLAN, short, "law 1", "F1 on rank 1 acted 5 times in 2 steps; the plan says 6")


def test_law_1_catches_an_act_that_stands_twice():
    double = replace(TRACE, acts=(*TRACE.acts, TRACE.acts[0]))
    refused(PLAN, double, "law 1")


def test_law_2_catches_two_acts_at_once_on_one_stream():
    # Nothing but the stream forbids it: F0's inputs have been there for long, the act before it still runs.
    early = changed(TRACE, "F0", 1, lambda act: replace(act, start_s=act.start_s - 0.5))
    refused(PLAN, early, "law 2", "F0 act 1", "compute0 of rank 0")


def test_law_3_catches_a_consumer_that_starts_before_its_producer_ended():
    plan = chain("ab", 2, 3)
    trace = simulate(plan, TableCost(), steps=1)
    refused(plan, changed(trace, "b", 0, shift(-0.5)), "law 3", "b act 0", "a act 0", "regst Regst_a")


def test_law_3_catches_a_reader_of_state_before_its_update_ended():
    plan = data_parallel(1)
    trace = simulate(plan, TableCost(), steps=2)
    # The forward pass of step 1 on a stream free of acts, but in the middle of the all-reduce: w is the old one.
    refused(plan, changed(trace, "forward", 1, shift(-2.0)), "law 3", "forward act 1", "update act 0", "regst w")


def test_law_4_catches_a_producer_that_writes_a_block_still_held():
    plan = chain("ab", 1, 3)
    trace = simulate(plan, TableCost(), steps=1)
    refused(plan, changed(trace, "a", 1, shift(-0.5)), "law 4", "a act 1", "all 1 blocks of Regst_a are held", "b act 0")


def test_law_5_catches_more_bytes_than_the_device_has_or_the_plan_reserves():
    refused(PLAN, replace(TRACE, peak_bytes={"0": 2 * 10**9}), "law 5", "rank 0 held 2000000000 bytes")
    refused(PLAN, replace(TRACE, peak_bytes={"1": 10**6}), "law 5", "more than the", "that the plan reserves")
    # A run's resident bytes hold more than registers; only the device bounds them.
    check_trace(PLAN, replace(TRACE, source=Source.RUN, peak_bytes={"1": 10**6}))


def test_law_6_catches_an_id_that_does_not_stand_in_the_plan():
    refused(PLAN, changed(TRACE, "load", 0, lambda act: replace(act, task="ghost")), "law 6", "ghost")
    refused(PLAN, changed(TRACE, "load", 0, lambda act: replace(act, rank=1)), "law 6", "load on rank 1")
    refused(PLAN, replace(TRACE, plan_id="0" * 16), "law 6", "0" * 16, PLAN.plan_id)
    refused(PLAN, changed(TRACE, "load", 0, lambda act: replace(act, end_s=act.start_s - 1)), "law 6", "ends before it starts")


def test_slack_forgives_clock_skew_up_to_its_size_and_no_more():
    plan = chain("ab", 3, 2)
    skewed = changed(simulate(plan, TableCost(), steps=1), "b", 0, shift(-0.01))
    check_trace(plan, skewed, slack_s=0.02)
    with pytest.raises(InvalidTrace, match="law 3"):
        check_trace(plan, skewed, slack_s=0.005)


def test_a_trace_file_comes_back_equal_and_a_damaged_one_is_refused(tmp_path):
    path = tmp_path / "trace.json"
    save_trace(PLAN, TRACE, str(path))
    assert load_trace(str(path)) == (PLAN, TRACE)
    text = path.read_text()
    path.write_text(text[: len(text) // 2])
    with pytest.raises(InvalidFile, match="truncated or damaged"):
        load_trace(str(path))
    path.write_text(text.replace('"number":0', '"number":"zero"', 1))
    with pytest.raises(InvalidFile, match=r'number: expected int, found "zero"'):
        load_trace(str(path))


def test_a_trace_file_whose_plan_was_edited_is_refused(tmp_path):
    path = tmp_path / "trace.json"
    with pytest.raises(Mismatch, match="cannot be saved with plan"):
        save_trace(chain("ab", 1, 1), TRACE, str(path))
    save_trace(PLAN, TRACE, str(path))
    path.write_text(path.read_text().replace('"batch_size":24', '"batch_size":48'))
    with pytest.raises(InvalidFile, match="the file was edited, write it anew"):
        load_trace(str(path))


def test_step_times_are_the_gaps_between_the_ends_of_steps():
    plan = chain("ab", 2, 2)
    trace = simulate(plan, TableCost(), steps=3)
    assert trace.step_ends_s(plan) == (3.0, 5.0, 7.0)
    assert trace.step_times_s(plan) == (3.0, 2.0, 2.0)


def test_a_run_on_several_hosts_is_granted_the_slack_that_it_states_and_no_trace_talks_its_way_past_the_laws():
    plan = chain("ab", 3, 2)
    simulated = changed(simulate(plan, TableCost(), steps=1), "b", 0, shift(-0.01))
    skewed = replace(simulated, source=Source.RUN, performer="gloo")
    check_trace(plan, replace(skewed, about={"clock_slack_s": "0.02"}))
    refused(plan, replace(skewed, about={"clock_slack_s": "0.005"}), "law 3")
    for trace, said in ((skewed, "1e9"), (skewed, "nan"), (skewed, "-1"), (skewed, "a little"), (simulated, "0.02")):
        refused(plan, replace(trace, about={"clock_slack_s": said}), "clock_slack_s is", said)


def test_a_settled_step_leaves_out_the_one_that_fills_and_the_one_that_nothing_follows():
    """A pipeline's first step also fills it; its last shares the streams with no next one."""
    plan = pipeline(3, 4)
    times = simulate(plan, TableCost(latency_s=0.25), steps=8).step_times_s(plan)
    trace = simulate(plan, TableCost(latency_s=0.25), steps=8)
    assert times[1] == pytest.approx(times[4]) == pytest.approx(trace.settled_step_s(plan))
    assert simulate(plan, TableCost(latency_s=0.25), steps=1).settled_step_s(plan) > trace.settled_step_s(plan)
