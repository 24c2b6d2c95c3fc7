"""Idle time explained: every gap has a reason, and acts and gaps tile every stream."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_plans import live_dags, prices
from stories import Story, TableCost, chain, data_parallel, pipeline

from planner.ir.errors import Mismatch
from planner.ir.plan import Plan, TaskKind
from planner.ir.protocols import CostModel
from planner.ir.traces.trace import Source, Trace
from simulator import simulate
from simulator.analysis.idle import Idle, Reason, idle_times
from simulator.analysis.replay import message_times
from tests.tiers import examples


def simulated(plan: Plan, cost: CostModel, steps: int = 1) -> Trace:
    return replace(simulate(plan, cost, steps=steps), message_s=message_times(plan, cost.message_s))


def said(plan: Plan, trace: Trace, stream: str, rank: int = 0) -> list[tuple[float, float, str]]:
    return [(i.begin_s, i.end_s, str(i)) for i in idle_times(plan, trace, [rank]) if i.stream == stream]


def assert_tiled(plan: Plan, trace: Trace) -> None:
    """On every stream of every rank the acts and the idle intervals lie end to end, from the first begin to the last end."""
    pieces: dict[tuple[int, str], list[tuple[float, float]]] = defaultdict(list)
    for act in trace.acts:
        pieces[act.rank, plan.task[act.task].stream].append((act.start_s, act.end_s))
    for idle in idle_times(plan, trace):
        assert idle.end_s > idle.begin_s
        pieces[idle.rank, idle.stream].append((idle.begin_s, idle.end_s))
    lanes = {(rank, stream.id) for stream in plan.streams for rank in plan.placement[stream.placement].ranks}
    first_s, last_s = min(act.start_s for act in trace.acts), max(act.end_s for act in trace.acts)
    for lane in lanes:
        spans = sorted(pieces[lane])
        assert [begin_s for begin_s, _ in spans] + [last_s] == [first_s] + [end_s for _, end_s in spans], lane


# --- tiling -----------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(80))
@given(st.data())
def test_busy_and_idle_tile_every_stream_of_a_random_plan(data: st.DataObject):
    plan = data.draw(live_dags())
    assert_tiled(plan, simulated(plan, data.draw(prices(plan)), steps=2))


@settings(max_examples=examples(40))
@given(st.data())
def test_busy_and_idle_tile_every_stream_of_a_pipeline(data: st.DataObject):
    plan = pipeline(data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5)))
    cost = replace(data.draw(prices(plan)), latency_s=data.draw(st.sampled_from([0.0, 0.25, 2.0])))
    trace = simulated(plan, cost, steps=2)
    assert_tiled(plan, trace)
    assert_tiled(plan, replace(trace, source=Source.RUN, message_s={}))


@settings(max_examples=examples(40))
@given(st.data())
def test_busy_and_idle_tile_every_stream_of_ranks_that_meet(data: st.DataObject):
    plan = data_parallel(3)
    quarter = st.integers(0, 12).map(lambda n: n / 4)
    cost = TableCost({(task.id, rank): data.draw(quarter) for task in plan.tasks for rank in range(3)})
    trace = simulated(plan, cost, steps=2)
    assert_tiled(plan, trace)
    assert not [idle for idle in idle_times(plan, trace) if idle.reason is Reason.START]  # the simulator begins what can begin


# --- reasons, written out ---------------------------------------------------------------------------------------------


def test_a_consumer_waits_for_data_and_a_producer_for_a_free_block():
    plan = chain("ab", 1, acts=2)
    trace = simulated(plan, TableCost({"a": 1.0, "b": 2.0}))
    # a 0.  .1      (its one block is free again when b has read it)
    # b  . 00  11
    assert said(plan, trace, "a") == [
        (1.0, 3.0, "waits for a free block: Regst_a, held by b 0 (rank 0)"),
        (4.0, 6.0, "nothing left to do"),
    ]
    assert said(plan, trace, "b") == [
        (0.0, 1.0, "waits for data: Regst_a, from a 0 (rank 0)"),
        (3.0, 4.0, "waits for data: Regst_a, from a 1 (rank 0)"),
    ]


def test_behind_a_transfer_stands_what_the_transfer_waited_for():
    plan = pipeline(2, 1)
    trace = simulated(plan, TableCost({"load": 0.5, "F0": 2.0, "send0": 3.0}, latency_s=0.25))
    # F0 runs from 0.5 to 2.5, send0 from 2.5 to 5.5, and its message arrives at 5.75.
    assert said(plan, trace, "compute1", 1) == [
        (0.0, 2.5, "waits for data: out0, from F0 0 (rank 0)"),
        (2.5, 5.75, "waits for the link: act1, moved by send0 0 (rank 0)"),
        (8.75, 11.0, "nothing left to do"),
    ]
    assert said(plan, trace, "compute0") == [
        (0.0, 0.5, "waits for data: batch, from load 0 (rank 0)"),
        (2.5, 7.75, "waits for data: dout1, from B1 0 (rank 1)"),
        (7.75, 9.0, "waits for the link: dact0, moved by back1 0 (rank 1)"),
    ]


def test_a_transfer_that_waits_for_its_stream_is_the_link_too():
    story = Story()
    for name in ("one", "two"):
        story.regst(f"{name}_made", name)
        story.regst(f"{name}_sent", f"{name}_send")
        story.task(name, produces=[f"{name}_made"], kind=TaskKind.SOURCE)
        story.task(f"{name}_send", [f"{name}_made"], [f"{name}_sent"], kind=TaskKind.TRANSFER, stream="link")
        story.regst(f"{name}_out", f"{name}_use")
        story.task(f"{name}_use", [f"{name}_sent"], [f"{name}_out"])
    plan = story.freeze()
    trace = simulated(plan, TableCost({"one_send": 3.0}))
    assert said(plan, trace, "two_use") == [
        (0.0, 1.0, "waits for data: two_made, from two 0 (rank 0)"),
        (1.0, 5.0, "waits for the link: two_sent, moved by two_send 0 (rank 0)"),  # 3 of these 4 s on the other's transfer
    ]


def test_ranks_that_meet_wait_for_the_last_one():
    plan = data_parallel(2)
    trace = simulated(plan, TableCost({("backward", 1): 4.0}))
    # Rank 0 is at the all-reduce at 3, rank 1 at 6.
    assert said(plan, trace, "collective", 0) == [
        (0.0, 3.0, "waits for data: grad, from backward 0 (rank 0)"),
        (3.0, 6.0, "waits for its partner in all_reduce 0 (rank 1)"),
        (7.0, 8.0, "nothing left to do"),
    ]
    assert said(plan, trace, "compute", 0) == [
        (0.0, 1.0, "waits for data: batch, from load 0 (rank 0)"),
        (3.0, 6.0, "waits for its partner in all_reduce 0 (rank 1)"),
        (6.0, 7.0, "waits for the link: sum, moved by all_reduce 0 (rank 0)"),
    ]
    assert said(plan, trace, "compute", 1)[-1] == (6.0, 7.0, "waits for the link: sum, moved by all_reduce 0 (rank 1)")


def test_in_a_measured_trace_the_time_between_ready_and_begin_is_the_performers_own():
    plan = chain("ab", 2, acts=1)
    a, b = simulate(plan, TableCost(), steps=1).acts
    run = replace(simulate(plan, TableCost(), steps=1), source=Source.RUN, acts=(a, replace(b, start_s=1.5, end_s=2.5)))
    assert said(plan, run, "b") == [
        (0.0, 1.0, "waits for data: Regst_a, from a 0 (rank 0)"),
        (1.0, 1.5, "ready, not yet begun"),
    ]


def test_the_bubble_of_1f1b_is_idle_time_that_waits_for_data():
    p, m = 4, 8
    plan = pipeline(p, m, update=False)
    cost = TableCost({"load": 0.0, **{f"{t}{i}": 0.0 for t in ("send", "back", "upd") for i in range(p)}})
    trace = simulated(plan, cost)
    sums: dict[tuple[int, str], dict[Reason, float]] = {}
    for idle in idle_times(plan, trace):
        of_stream = sums.setdefault((idle.rank, idle.stream), dict.fromkeys(Reason, 0.0))
        of_stream[idle.reason] += idle.duration_s
    # Equal stages, free links: every stage is idle for (p - 1) (F + B), of a makespan of (m + p - 1) (F + B).
    for i in range(p):
        reasons = sums[i, f"compute{i}"]
        assert sum(reasons.values()) == 2.0 * (p - 1)
        assert reasons[Reason.BLOCK] == 0.0
    assert sums[0, "compute0"][Reason.DATA] == 2.0 * (p - 1)


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_ranks_and_plans_that_do_not_fit_are_refused():
    plan = pipeline(2, 2)
    with pytest.raises(Mismatch, match=r"ranks \[7\] is asked for; the plan has ranks 0 \.\. 1"):
        idle_times(plan, simulate(plan, TableCost()), ranks=[7])
    with pytest.raises(Mismatch, match="the sim trace is of plan"):
        idle_times(chain("ab", 1, 1), simulate(plan, TableCost()))


def test_an_interval_knows_how_long_it_is_and_which_act_ended_it():
    plan = chain("ab", 1, acts=1)
    (wait, _) = sorted(idle_times(plan, simulated(plan, TableCost())), key=lambda idle: idle.begin_s)
    assert isinstance(wait, Idle)
    assert (wait.duration_s, wait.act.task, wait.blame.task) == (1.0, "b", "a")
