"""The order of a steady step is the same whoever plays: SimPy or the compiled engine; and the graph's arcs are the ones of its definition."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_plans import live_dags, prices
from stories import Story, TableCost, data_parallel, pipeline

from planner.ir.errors import DeadLock, Unsupported
from planner.ir.plan import Plan, RegstKind, TaskKind
from planner.ir.protocols import CostModel
from simulator.compiled import compile_plan
from simulator.steady import marked_graph, observed_order
from simulator.steady.graph import ArcKind, MarkedGraph, OrderPolicy
from simulator.steady.observed_order import Place, observed_orders
from tests.tiers import examples

ALWAYS_SIMPY, NEVER_SIMPY = 10**9, -1


def free_streams(plan: Plan) -> list[str]:
    members = Counter(task.stream for task in plan.tasks)
    return [s.id for s in plan.streams if not s.order and members[s.id] > 1]


def orders(plan: Plan, cost: CostModel, *, few_acts: int, folded: bool) -> dict[tuple[str, int], tuple[Place, ...]] | None:
    """None: the acts settle into no one order."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(observed_order, "FEW_ACTS", few_acts)
        try:
            return dict(observed_orders(plan, cost, free_streams(plan), folded=folded))
        except Unsupported:
            return None


@settings(max_examples=examples(80), deadline=None)
@given(st.data())
def test_the_compiled_engine_sees_the_orders_that_simpy_sees(data: st.DataObject):
    plan = data.draw(st.one_of(live_dags(), st.sampled_from([data_parallel(2), data_parallel(3), pipeline(2, 4), pipeline(3, 5)])))
    cost = replace(data.draw(prices(plan)), latency_s=data.draw(st.sampled_from([0.0, 0.25])))
    folded = data.draw(st.booleans())
    assert orders(plan, cost, few_acts=NEVER_SIMPY, folded=folded) == orders(plan, cost, few_acts=ALWAYS_SIMPY, folded=folded)


@settings(max_examples=examples(80), deadline=None)
@given(st.data())
def test_whole_lanes_are_equal_and_left_to_simpy_only_where_acts_without_duration_end_together(data: st.DataObject):
    plan = data.draw(live_dags())
    cost = data.draw(prices(plan))
    streams = free_streams(plan)
    played = observed_order._played(compile_plan(plan, cost, sizes=False), streams, 8)
    if played is None:
        instant = [task.id for task in plan.tasks if task.stream in streams and cost.act_s(plan, task, plan.ranks_of(task)[0]) == 0.0]
        assert instant
    else:
        assert {lane: list(acts) for lane, acts in played.items()} == {
            lane: list(acts) for lane, acts in observed_order._simulated(plan, cost, streams, 8).items()
        }


def test_acts_without_duration_keep_the_order_in_which_they_happened():
    # b is ready as soon as a has ended, in the same instant; by name or by place the compiled engine could not tell who was first.
    story = Story()
    story.regst("x", "z_first", 2)
    story.task("a_second", ["x"], stream="shared")
    story.task("z_first", produces=["x"], stream="shared", kind=TaskKind.SOURCE)
    plan, cost = story.freeze(), TableCost({"a_second": 0.0, "z_first": 0.0})
    assert observed_order._played(compile_plan(plan, cost, sizes=False), ["shared"], 8) is None
    (chain,) = (orders(plan, cost, few_acts=NEVER_SIMPY, folded=False) or {}).values()
    seen = [(actor[0], step) for actor, _, step in chain]
    assert seen.index(("z_first", seen[0][1])) < seen.index(("a_second", seen[0][1]))


def test_a_plan_that_is_not_live_is_refused_with_simpys_words_whoever_played():
    story = Story()
    story.regst("one_by_one", "source", 1)
    story.regst("sum", "collect", 1)
    story.task("source", produces=["one_by_one"], acts=2, stream="shared", kind=TaskKind.SOURCE)
    story.task("collect", ["one_by_one"], {"sum": 2}, acts=2, stream="shared")
    story.task("join", {"one_by_one": 1, "sum": 2}, acts=2)
    plan = story.freeze(micro_batches=2)
    said = []
    for few_acts in (ALWAYS_SIMPY, NEVER_SIMPY):
        with pytest.raises(DeadLock) as refusal:
            orders(plan, TableCost(), few_acts=few_acts, folded=False)
        said.append(str(refusal.value))
    assert said[0] == said[1]


# --- the graph --------------------------------------------------------------------------------------------------------

_Arc = tuple[int, int, int, float, ArcKind, str | None, int]


def by_definition(graph: MarkedGraph, cost: CostModel) -> Counter[_Arc]:
    """(1) to (4) of simulator.steady.graph, act by act, for a Plan on one rank without collectives or TRANSFERs."""
    plan = graph.plan
    arcs: Counter[_Arc] = Counter()

    def add(src: tuple[str, int], dst: tuple[str, int], tokens: int, kind: ArcKind, regst: str | None = None, block: int = -1) -> None:
        rank = plan.ranks_of(plan.task[src[0]])[0]
        ends = graph.first[src[0], rank] + src[1], graph.first[dst[0], rank] + dst[1]
        arcs[*ends, tokens, cost.act_s(plan, plan.task[src[0]], rank), kind, regst, block] += 1

    for consumer in plan.tasks:
        for port in consumer.consumes:
            regst = plan.regst[port.regst]
            if regst.producer is None:
                continue
            producer = plan.task[regst.producer]
            (a,) = (p.acts_per_block for p in producer.produces if p.regst == regst.id)
            b, n = port.acts_per_block, producer.acts // a
            state = regst.kind is RegstKind.STATE
            for j in range(n):
                read_step, read = divmod(j + state, n)
                kind = ArcKind.STATE if state else ArcKind.DATA
                add((producer.id, (j + 1) * a - 1), (consumer.id, read * b), read_step, kind, regst.id)
                write_step, write = divmod(j if state else j + regst.quota, n)
                kind = ArcKind.STATE if state else ArcKind.QUOTA
                add((consumer.id, (j + 1) * b - 1), (producer.id, write * a), write_step, kind, regst.id, j)
    for stream in plan.streams:
        tasks = [task for task in plan.tasks if task.stream == stream.id]
        for rings in [[stream.order]] if stream.order else [[(task.id,) * task.acts] for task in tasks]:
            for ring in rings:
                done: Counter[str] = Counter()
                turns = []
                for task_id in ring:
                    turns.append((task_id, done[task_id]))
                    done[task_id] += 1
                for i, turn in enumerate(turns):
                    last = i == len(turns) - 1
                    add(turn, turns[0] if last else turns[i + 1], int(last), ArcKind.STREAM if stream.order else ArcKind.TASK)
    return arcs


@settings(max_examples=examples(120), deadline=None)
@given(st.data())
def test_the_arcs_of_the_graph_are_those_of_its_definition_act_by_act(data: st.DataObject):
    plan = data.draw(live_dags(fixed_order=data.draw(st.booleans())))
    cost = data.draw(prices(plan))
    graph = marked_graph(plan, cost, order_policy=OrderPolicy.NONE)
    regsts = [None if (regst := graph.regst_of(arc)) is None else regst.id for arc in range(graph.num_arcs)]
    columns = (graph.src, graph.dst, graph.tokens, graph.weight_s, graph.kind)
    rows = zip(*(column.tolist() for column in columns), regsts, graph.block.tolist(), strict=True)
    assert Counter(rows) == by_definition(graph, cost)
