"""The laws of the simulator, each on the smallest Plan that shows it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_plans import dags, is_live, live_dags, prices
from stories import BLOCK_BYTES, Story, TableCost, chain, data_parallel, picture, pipeline

from planner.ir.actors.liveness import play
from planner.ir.actors.verify import device_bytes, verify
from planner.ir.collective import Collective
from planner.ir.errors import DeadLock, InvalidCluster, InvalidPlan, Unsupported
from planner.ir.plan import Placement, Plan, RegstKind, TaskKind
from planner.ir.text import canonical
from planner.ir.traces.trace import Act, Trace, check_trace
from simulator import simulate
from simulator.theory import bubble_fraction
from tests.tiers import examples


def acts_of(trace: Trace, task: str, rank: int = 0) -> list[Act]:
    return [act for act in trace.acts if act.task == task and act.rank == rank]


def spans(trace: Trace, task: str, rank: int = 0) -> list[tuple[float, float]]:
    return [(act.start_s, act.end_s) for act in acts_of(trace, task, rank)]


# --- messages ---------------------------------------------------------------------------------------------------------


def crossing(quota: int, acts: int = 3) -> Plan:
    """produce -> send (rank 0) ==> use (rank 1)."""
    story = Story(placements=[Placement(id="dev", ranks=(0,), mesh=(1,)), Placement(id="far", ranks=(1,), mesh=(1,))])
    story.regst("made", "produce", 4)
    story.regst("sent", "send", quota, placement="far")
    story.task("produce", produces=["made"], acts=acts, kind=TaskKind.SOURCE)
    story.task("send", ["made"], ["sent"], acts=acts, kind=TaskKind.TRANSFER)
    story.task("use", ["sent"], acts=acts, placement="far")
    return story.freeze(micro_batches=acts)


def test_a_message_between_ranks_takes_its_latency_and_on_a_rank_none():
    trace = simulate(crossing(4), TableCost(latency_s=0.25), steps=1)
    assert spans(trace, "send") == [(1.0, 2.0), (2.0, 3.0), (3.0, 4.0)]  # on rank 0 at once
    assert spans(trace, "use", 1) == [(2.25, 3.25), (3.25, 4.25), (4.25, 5.25)]


def test_an_ack_between_ranks_takes_its_latency_too():
    trace = simulate(crossing(1), TableCost(latency_s=0.25), steps=1)
    # send's one block comes back 0.25 s after use has ended at 3.25
    assert spans(trace, "send") == [(1.0, 2.0), (3.5, 4.5), (6.0, 7.0)]


def test_ready_is_before_start_when_the_stream_is_taken():
    story = Story()
    for name in ("first", "second"):
        story.regst(f"{name}_out", name)
        story.task(name, produces=[f"{name}_out"], stream="shared", kind=TaskKind.SOURCE)
    (_, second) = simulate(story.freeze(), TableCost(), steps=1).acts
    assert (second.task, second.ready_s, second.start_s) == ("second", 0.0, 1.0)


# --- streams ----------------------------------------------------------------------------------------------------------


def shared_stream(**priorities: int) -> Story:
    """Independent tasks on one stream, as many acts as micro-batches (2)."""
    story = Story()
    for name, priority in priorities.items():
        kind = TaskKind.BACKWARD if name == "backward" else TaskKind.FORWARD
        story.regst(f"{name}_out", name, 2)
        story.task(name, produces=[f"{name}_out"], acts=2, stream="compute", priority=priority, kind=kind)
    return story


def test_one_stream_performs_one_act_at_a_time():
    plan = shared_stream(a=0, b=0, c=0).freeze()
    trace = simulate(plan, TableCost({"a": 1.0, "b": 2.0, "c": 0.5}), steps=2)
    check_trace(plan, trace)
    ordered = sorted((act.start_s, act.end_s) for act in trace.acts)
    assert all(before[1] == after[0] for before, after in pairwise(ordered))
    assert trace.step_ends_s(plan)[-1] == 2 * 2 * 3.5


def test_backward_goes_before_forward_by_priority():
    plan = shared_stream(forward=1, backward=0).freeze()
    assert picture(plan, simulate(plan, TableCost(), steps=1), 4) == "forward  ..01\nbackward 01.."


def test_an_older_step_goes_before_a_better_priority():
    plan = shared_stream(forward=1, backward=0).freeze()
    assert picture(plan, simulate(plan, TableCost(), steps=2), 8) == "forward  ..01..23\nbackward 01..23.."


def test_a_stream_with_an_order_waits_for_the_turn_of_a_late_task():
    story = Story()
    story.regst("slow_out", "slow")
    story.regst("late_out", "late")
    story.regst("early_out", "early")
    story.task("slow", produces=["slow_out"], kind=TaskKind.SOURCE)
    story.task("late", ["slow_out"], ["late_out"], stream="compute")
    story.task("early", produces=["early_out"], stream="compute")
    cost = TableCost({"slow": 3.0})
    free = story.freeze()
    assert spans(simulate(free, cost, steps=1), "early") == [(0.0, 1.0)]
    story.order("compute", "late", "early")
    assert spans(simulate(story.freeze(), cost, steps=1), "early") == [(4.0, 5.0)]


# --- rates and state --------------------------------------------------------------------------------------------------


def test_repeat_reads_one_block_in_all_micro_batches_and_acks_after_the_last():
    story = Story()
    story.regst("once", "load", 1)
    story.regst("out", "use", 4)
    story.task("load", produces=["once"], kind=TaskKind.SOURCE)
    story.task("use", {"once": 4}, ["out"], acts=4)
    plan = story.freeze(micro_batches=4)
    assert picture(plan, simulate(plan, TableCost(), steps=2), 10) == "load 0....1....\nuse  .0123.4567"


def test_accumulate_sends_one_block_after_the_last_micro_batch():
    story = Story()
    story.regst("sum", "backward", 1)
    story.regst("new", "update", 1)
    story.task("backward", produces={"sum": 3}, acts=3, kind=TaskKind.BACKWARD)
    story.task("update", ["sum"], ["new"], kind=TaskKind.UPDATE)
    plan = story.freeze(micro_batches=3)
    assert picture(plan, simulate(plan, TableCost(), steps=2), 8) == "backward 012.345.\nupdate   ...0...1"


def test_state_starts_full_and_is_updated_in_place_after_all_readers_gave_it_back():
    story = Story()
    story.regst("w", "update", kind=RegstKind.STATE)
    story.regst("grad", "train", 1)
    story.task("train", {"w": 2}, {"grad": 2}, acts=2, kind=TaskKind.BACKWARD)
    story.regst("report", "watch")
    story.task("watch", ["w"], ["report"])  # a slow second reader
    story.task("update", ["grad"], ["w"], kind=TaskKind.UPDATE)
    plan = story.freeze(micro_batches=2)
    trace = simulate(plan, TableCost({"watch": 5.0}), steps=2)
    check_trace(plan, trace)
    assert picture(plan, trace, 12) == "train  01....23....\nwatch  00000.11111.\nupdate .....0.....1"
    assert trace.peak_bytes == {"0": 3 * BLOCK_BYTES}  # w once (in place), grad, report


# --- collectives ------------------------------------------------------------------------------------------------------


def test_a_collective_starts_on_all_ranks_at_the_latest_arrival_and_ends_on_all_together():
    plan = data_parallel(3)
    verify(plan)
    cost = TableCost({("backward", 1): 2.5, ("all_reduce", 0): 0.5, ("all_reduce", 2): 0.75, ("all_reduce", 1): 0.25})
    trace = simulate(plan, cost, steps=2)
    check_trace(plan, trace)
    assert [spans(trace, "all_reduce", rank)[0] for rank in range(3)] == [(4.5, 5.25)] * 3
    assert [acts_of(trace, "all_reduce", rank)[0].ready_s for rank in range(3)] == [3.0, 4.5, 3.0]


def test_ranks_of_different_axis_groups_do_not_wait_for_each_other():
    story = Story(placements=[Placement(id="dev", ranks=(0, 1, 2, 3), mesh=(2, 2))])
    story.regst("grad", "backward")
    story.regst("sum", "reduce")
    story.task("backward", produces=["grad"], kind=TaskKind.BACKWARD)
    story.task("reduce", ["grad"], ["sum"], collective=Collective.ALL_REDUCE)  # axis 0: groups (0, 2) and (1, 3)
    trace = simulate(story.freeze(), TableCost({("backward", 3): 6.0}), steps=1)
    assert [spans(trace, "reduce", rank) for rank in range(4)] == [[(1.0, 2.0)], [(6.0, 7.0)], [(1.0, 2.0)], [(6.0, 7.0)]]


def test_local_boxing_waits_for_nobody():
    story = Story(placements=[Placement(id="dev", ranks=(0, 1), mesh=(2,))])
    story.regst("a", "make")
    story.regst("b", "slice")
    story.task("make", produces=["a"], kind=TaskKind.SOURCE)
    story.task("slice", ["a"], ["b"], collective=Collective.LOCAL)
    trace = simulate(story.freeze(), TableCost({("make", 1): 9.0}), steps=1)
    assert [spans(trace, "slice", rank) for rank in (0, 1)] == [[(1.0, 2.0)], [(9.0, 10.0)]]


# --- dead-locks -------------------------------------------------------------------------------------------------------


def test_a_dead_lock_names_the_cycle_and_the_quota_that_breaks_it():
    story = Story()
    story.regst("one_by_one", "source", 1)
    story.regst("sum", "collect", 1)
    story.regst("out", "join", 1)
    story.task("source", produces=["one_by_one"], acts=2, kind=TaskKind.SOURCE)
    story.task("collect", ["one_by_one"], {"sum": 2}, acts=2)
    story.task("join", {"one_by_one": 1, "sum": 2}, ["out"], acts=2)
    with pytest.raises(DeadLock) as caught:
        simulate(story.freeze(micro_batches=2), TableCost(), steps=1)
    assert "source (rank 0) waits until join (rank 0) frees a block of regst one_by_one (quota 1)" in str(caught.value)
    assert "join (rank 0) waits for data of regst sum from collect (rank 0)" in str(caught.value)
    assert "raise the quota of regst one_by_one from 1 to 2" in str(caught.value)


def test_a_collective_that_never_completes_names_the_ranks_that_wait():
    story = Story(placements=[Placement(id="dev", ranks=(0, 1), mesh=(2,))])
    for name in ("x", "y"):
        story.regst(name, f"make_{name}")
        story.regst(f"sum_{name}", f"reduce_{name}")
        story.task(f"make_{name}", produces=[name], kind=TaskKind.SOURCE)
        story.task(f"reduce_{name}", [name], [f"sum_{name}"], collective=Collective.ALL_REDUCE, stream="comm")
    # The gradients become ready in opposite order on the two ranks, and the stream has no order to set that right.
    cost = TableCost({("make_x", 0): 1.0, ("make_y", 0): 2.0, ("make_x", 1): 2.0, ("make_y", 1): 1.0})
    with pytest.raises(DeadLock) as caught:
        simulate(story.freeze(), cost, steps=1)
    assert "reduce_x act 0: ranks [0] wait, ranks [1] never come" in str(caught.value)
    assert "reduce_y act 0: ranks [1] wait, ranks [0] never come" in str(caught.value)
    assert "reduce_x (rank 1) waits for stream comm, held by reduce_y" in str(caught.value)
    story.order("comm", "reduce_x", "reduce_y")
    simulate(story.freeze(), cost, steps=3)


@settings(max_examples=examples(60), deadline=None)
@given(dags())
def test_the_simulator_dead_locks_exactly_when_the_token_game_does(plan: Plan):
    if is_live(plan):
        simulate(plan, TableCost(), steps=1)
        return
    with pytest.raises(DeadLock, match="not live"):
        simulate(plan, TableCost(), steps=1)


# --- laws on random plans ---------------------------------------------------------------------------------------------


@settings(max_examples=examples(80), deadline=None)
@given(st.data())
def test_every_simulated_trace_of_a_live_plan_keeps_the_six_laws(data: st.DataObject):
    plan = data.draw(live_dags())
    check_trace(plan, simulate(plan, data.draw(prices(plan)), steps=data.draw(st.integers(1, 3))))


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_pipelines_and_data_parallel_steps_keep_the_six_laws_at_any_latency(data: st.DataObject):
    plan = data.draw(st.sampled_from([pipeline(1, 3), pipeline(2, 4), pipeline(3, 2), data_parallel(2), data_parallel(3)]))
    cost = replace(data.draw(prices(plan)), latency_s=data.draw(st.sampled_from([0.0, 0.25, 3.0])))
    trace = simulate(plan, cost, steps=3)
    check_trace(plan, trace)
    assert all(trace.peak_bytes[str(rank)] <= planned for rank, planned in device_bytes(plan).items())


@settings(max_examples=examples(80), deadline=None)
@given(st.data())
def test_on_one_rank_the_simulator_is_the_token_game_with_a_clock(data: st.DataObject):
    plan = data.draw(live_dags())
    cost = data.draw(prices(plan))
    simulated = {(act.task, act.number): (act.start_s, act.end_s) for act in simulate(plan, cost, steps=2).acts}
    played = {(f.task, f.act): (f.start_s, f.end_s) for f in play(plan, 2, lambda task: cost.act_s(plan, task, -1))}
    assert simulated == played


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_with_fixed_orders_a_larger_quota_never_makes_an_act_later(data: st.DataObject):
    plan = data.draw(live_dags(fixed_order=True))
    cost = data.draw(prices(plan))
    grown = data.draw(st.sampled_from([r.id for r in plan.regsts if r.kind is not RegstKind.STATE]))
    before = simulate(plan, cost, steps=2)
    after = simulate(plan.with_quotas({grown: plan.regst[grown].quota + 1}), cost, steps=2)
    late = {(act.task, act.number): act.start_s for act in before.acts}
    assert all(act.start_s <= late[act.task, act.number] for act in after.acts)


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_with_fixed_orders_a_shorter_task_never_makes_an_act_later(data: st.DataObject):
    plan = data.draw(live_dags(fixed_order=True))
    cost = data.draw(prices(plan))
    victim = data.draw(st.sampled_from([task.id for task in plan.tasks]))
    shorter = TableCost({**cost.act_times_s, victim: cost.act_times_s[victim] / 2})
    late = {(act.task, act.number): act.start_s for act in simulate(plan, cost, steps=2).acts}
    assert all(act.start_s <= late[act.task, act.number] for act in simulate(plan, shorter, steps=2).acts)


def test_the_same_plan_and_prices_give_the_same_trace_to_the_byte():
    plan, cost = pipeline(3, 5), TableCost({"F0": 0.3, "B1": 0.7}, latency_s=0.01)
    assert canonical(simulate(plan, cost)) == canonical(simulate(plan, cost))


# --- theory, memory and refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 8), (4, 4)])
def test_quotas_alone_give_the_bubble_of_1f1b(stages: int, micro_batches: int):
    plan = pipeline(stages, micro_batches)
    free = {t.id: 0.0 for t in plan.tasks if t.kind in (TaskKind.TRANSFER, TaskKind.SOURCE, TaskKind.UPDATE)}
    cost = TableCost(free | {f"B{i}": 2.0 for i in range(stages)})
    step_s = simulate(plan, cost, steps=1).step_times_s(plan)[0]
    busy_s = micro_batches * 3.0
    assert 1 - busy_s / step_s == pytest.approx(bubble_fraction(stages, micro_batches))


def test_peak_bytes_of_1f1b_count_the_activations_in_flight():
    plan = pipeline(2, 8)
    free = {t.id: 0.0 for t in plan.tasks if t.kind is TaskKind.TRANSFER}
    trace = simulate(plan, TableCost({**free, "load": 0.0}), steps=1)
    # Stage 1 during B1: w, the kept activation it reads, the gradients, the dout it writes, and the next activation, just arrived.
    # (act1 has 2 blocks, but stage 0 may run only 2 micro-batches ahead, of which one is in B1.)
    assert trace.peak_bytes["1"] == 5 * BLOCK_BYTES
    assert trace.peak_bytes["0"] <= device_bytes(plan)[0]


def test_a_running_fragment_holds_its_workspace_and_no_longer():
    story = Story()
    story.regst("out", "work", 1)
    story.regst("end", "rest", 1)
    story.task("work", produces=["out"], stream="s", workspace_bytes=5000)
    story.task("rest", ["out"], ["end"], stream="s", workspace_bytes=100)
    assert simulate(story.freeze(), TableCost(), steps=1).peak_bytes == {"0": 5000 + BLOCK_BYTES}


def test_impossible_wishes_are_refused_by_name():
    plan = chain("ab", 1, 2)
    with pytest.raises(InvalidPlan, match="steps = 0"):
        simulate(plan, TableCost(), steps=0)
    with pytest.raises(Unsupported, match="8 acts, more than max_acts = 7"):
        simulate(plan, TableCost(), steps=2, max_acts=7)
    with pytest.raises(InvalidCluster, match=r"an act of b on rank 0 takes -1\.0 s"):
        simulate(plan, TableCost({"b": -1.0}))
    with pytest.raises(InvalidCluster, match="nan"):
        simulate(plan, TableCost({"b": float("nan")}))
