"""Dead-locks are found before a Plan runs, named, and the quota named does break them."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from random_plans import dags, is_live
from stories import Story, TableCost, pipeline

from planner.ir.actors.verify import verify
from planner.ir.collective import Collective
from planner.ir.errors import DeadLock
from planner.ir.plan import Placement, Plan, TaskKind
from planner.ir.traces.trace import check_trace
from simulator import simulate
from simulator.steady import check_live, marked_graph
from simulator.steady.graph import ArcKind, OrderPolicy
from simulator.steady.liveness_proof import token_free_cycle, way_out
from tests.tiers import examples


def three_way_wait(quota: int = 1) -> Plan:
    """The known dead-lock of libai issue 232: stream FIFO, quota and collective wait for each other, on two ranks.

        stream A   gather 0   gather 1 ............ buffer 0 (stands behind gather 1)
        stream B                        reduce 0 (waits for buffer 0)
        repeat     block 0 ... (quota 1: block 1 waits until backward 0 has given block 0 back, and backward 0 waits for reduce 0)

    gather 1 waits for forward 1, that for block 1 of the repeat, that for backward 0, that for reduce 0, that for buffer 0, that for gather 1.
    """
    story = Story(placements=[Placement(id="dev", ranks=(0, 1), mesh=(2,))])
    acts = 3
    story.regst("batch", "load", 2)
    story.regst("repeated", "repeat", quota)
    story.regst("hidden", "forward", 1)
    story.regst("gathered", "gather", 3)
    story.regst("kept", "buffer", 3)
    story.regst("reduced", "reduce", 1)
    story.regst("grad", "backward", 1)
    story.task("load", produces=["batch"], acts=acts, kind=TaskKind.SOURCE)
    story.task("repeat", ["batch"], ["repeated"], acts=acts)
    story.task("forward", ["repeated"], ["hidden"], acts=acts, stream="compute")
    story.task("gather", ["hidden"], ["gathered"], acts=acts, collective=Collective.ALL_GATHER, stream="A")
    story.task("buffer", ["gathered"], ["kept"], acts=acts, stream="A")
    story.task("reduce", ["kept"], ["reduced"], acts=acts, collective=Collective.ALL_REDUCE, stream="B")
    story.task("backward", ["repeated", "reduced"], {"grad": acts}, acts=acts, kind=TaskKind.BACKWARD, stream="compute")
    story.task("update", ["grad"], kind=TaskKind.UPDATE)
    story.order("A", "gather", "gather", "buffer", "gather", "buffer", "buffer")
    story.order("B", "reduce", "reduce", "reduce")
    return story.freeze(micro_batches=acts)


def test_the_three_way_wait_is_refused_before_it_runs_and_named():
    with pytest.raises(DeadLock) as caught:
        check_live(three_way_wait())
    said = str(caught.value)
    # All three kinds of wait stand in the cycle: the stream's order, the quota, and the collectives between them.
    for part in ("all_gather act 1 -> next on stream A", "all_reduce act 0", "backward act 0 -> quota 1 of `repeated`"):
        assert part in said, said
    assert said.endswith("the way out: raise the quota of regst repeated from 1 to 2")


def test_the_three_way_wait_really_dead_locks_and_the_smallest_quota_named_breaks_it():
    with pytest.raises(DeadLock):
        simulate(three_way_wait(1), TableCost(), steps=1)
    mended = three_way_wait(2)
    check_live(mended)
    verify(mended)
    trace = simulate(mended, TableCost({("forward", 1): 2.5}, latency_s=0.1), steps=3)
    check_trace(mended, trace)
    assert len(trace.acts) == 3 * 2 * (7 * 3 + 1)


def test_a_stream_of_its_own_for_the_buffer_breaks_the_three_way_wait_too():
    plan = three_way_wait()
    tasks = tuple(replace(t, stream="own") if t.id == "buffer" else t for t in plan.tasks)
    own = replace(plan.stream["A"], id="own", order=())
    streams = tuple(replace(s, order=("gather",) * 3) if s.id == "A" else s for s in plan.streams)
    check_live(replace(plan, tasks=tasks, streams=(*streams, own)))


def test_the_wait_crosses_ranks_in_the_graph_of_all_ranks_too():
    graph = marked_graph(three_way_wait(), TableCost(), folded=False, order_policy=OrderPolicy.NONE)
    cycle = token_free_cycle(graph)
    assert cycle is not None
    assert {ArcKind.STREAM, ArcKind.QUOTA, ArcKind.DATA} <= {ArcKind(int(graph.kind[a])) for a in cycle}
    shared = {graph.first[task, 0] == graph.first[task, 1] for task in ("gather", "reduce")}
    assert shared == {True}  # both ranks of a collective are one node, so waiting for it is waiting for both


# --- laws -------------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(200), deadline=None)
@given(dags())
def test_a_plan_is_found_live_exactly_when_the_token_game_ends(plan: Plan):
    if is_live(plan):
        check_live(plan)
        return
    with pytest.raises(DeadLock, match="not live"):
        check_live(plan)


@pytest.mark.thorough
@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(dags())
def test_the_quota_named_breaks_the_dead_lock_and_one_less_does_not(plan: Plan):
    plan = plan.with_quotas({r.id: 1 for r in plan.regsts})
    assume(not is_live(plan))
    with pytest.raises(DeadLock) as caught:
        check_live(plan)
    named = re.findall(r"raise the quota of regst (\S+) from (\d+) to (\d+)", str(caught.value))
    assert named  # without stream orders a quota always helps
    quotas = {name: int(to) for name, _, to in named}
    assert is_live(plan.with_quotas(quotas))
    for name, quota in quotas.items():
        assert quota > plan.regst[name].quota
        assert not is_live(plan.with_quotas(quotas | {name: quota - 1}))


@settings(max_examples=examples(100), deadline=None)
@given(dags())
def test_the_cycle_named_closes_and_carries_no_token(plan: Plan):
    graph = marked_graph(plan, TableCost(), folded=True, order_policy=OrderPolicy.NONE)
    cycle = token_free_cycle(graph)
    assert (cycle is None) == is_live(plan)
    if cycle is not None:
        assert all(graph.dst[a] == graph.src[b] for a, b in zip(cycle, cycle[1:] + cycle[:1], strict=True))
        assert sum(int(graph.tokens[a]) for a in cycle) == 0


def test_orders_that_contradict_each_other_have_no_quota_as_a_way_out():
    story = Story()
    for name in ("x", "y"):
        story.regst(name, f"make_{name}")
        story.task(f"make_{name}", produces=[name], stream="first")
        story.task(f"use_{name}", [name], stream="second")
    story.regst("back", "use_x")
    story.tasks[1] = replace(story.tasks[1], produces=(*story.tasks[1].produces, replace(story.tasks[0].produces[0], regst="back")))
    story.tasks[0] = replace(story.tasks[0])
    story.order("first", "make_y", "make_x")
    story.order("second", "use_x", "use_y")
    check_live(story.freeze())
    # y is to be made after x was used, but before x is made.
    story.tasks[2] = replace(story.tasks[2], consumes=(replace(story.tasks[0].produces[0], regst="back"),))
    with pytest.raises(DeadLock, match="no quota breaks it, so the stream orders or the edges themselves contradict each other"):
        check_live(story.freeze())


def test_a_plan_that_needs_two_quotas_is_told_both():
    story = Story()
    for side in "ab":  # two dead-locks that have nothing to do with each other
        story.regst(f"one_{side}", f"source_{side}", 1)
        story.regst(f"sum_{side}", f"collect_{side}", 1)
        story.task(f"source_{side}", produces=[f"one_{side}"], acts=4, kind=TaskKind.SOURCE)
        story.task(f"collect_{side}", [f"one_{side}"], {f"sum_{side}": 4}, acts=4)
        story.task(f"join_{side}", {f"one_{side}": 1, f"sum_{side}": 4}, acts=4)
    plan = story.freeze(micro_batches=4)
    assert way_out(marked_graph(plan, TableCost(), order_policy=OrderPolicy.NONE)) == {"one_a": 4, "one_b": 4}
    with pytest.raises(DeadLock, match=r"regst one_a from 1 to 4 and raise the quota of regst one_b from 1 to 4"):
        check_live(plan)


def test_a_live_plan_needs_no_way_out():
    assert way_out(marked_graph(pipeline(3, 4), TableCost(), order_policy=OrderPolicy.NONE)) == {}
