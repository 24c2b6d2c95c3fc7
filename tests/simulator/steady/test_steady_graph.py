"""The marked graph's period is the simulator's, and the closed forms'."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_plans import live_dags, prices
from stories import Story, TableCost, chain, data_parallel, pipeline

from planner.ir.collective import Collective
from planner.ir.errors import DeadLock, InvalidCluster, InvalidPlan, Unsupported
from planner.ir.plan import Placement, Plan, RegstKind, TaskKind
from simulator import simulate
from simulator.steady import graph, marked_graph, steady_state
from simulator.steady.graph import ArcKind
from simulator.steady.observed_order import observed_orders
from simulator.steady.state import steady_graph
from simulator.theory import bubble_fraction, chain_period_s
from tests.tiers import examples


def repeats_every(plan: Plan, cost: TableCost, period_s: float, steps: int = 60, longest: int = 24) -> bool:
    """Whether a long simulation, short of its drain, ends up repeating itself every so many steps with this period."""
    ends = simulate(plan, cost, steps=steps + 8).step_ends_s(plan)[:steps]
    return any(
        all(ends[-1 - k] - ends[-1 - k - count] == pytest.approx(count * period_s, rel=1e-9, abs=1e-9) for k in range(3))
        for count in range(1, longest + 1)
    )


def ordered_pipeline(stages: int, micro_batches: int, *, gpipe: bool) -> Plan:
    """The pipeline of the stories with the order of each compute stream written down."""
    p, m = stages, micro_batches
    plan = pipeline(p, m)
    orders = {}
    for i in range(p):
        warm = m if gpipe else min(m, p - i)
        middle = [f"{kind}{i}" for _ in range(m - warm) for kind in "BF"]
        orders[f"compute{i}"] = (*[f"F{i}"] * warm, *middle, *[f"B{i}"] * warm, f"upd{i}")
    ordered = replace(plan, streams=tuple(replace(s, order=orders.get(s.id, s.order)) for s in plan.streams))
    return ordered.with_quotas({r.id: m for r in plan.regsts if r.kind is not RegstKind.STATE}) if gpipe else ordered


def only_compute(plan: Plan, link_s: float = 0.0) -> TableCost:
    """F = 1, B = 2, a link takes link_s, everything else nothing."""
    times = {TaskKind.FORWARD: 1.0, TaskKind.BACKWARD: 2.0, TaskKind.TRANSFER: link_s}
    return TableCost({t.id: times.get(t.kind, 0.0) for t in plan.tasks})


# --- closed forms -----------------------------------------------------------------------------------------------------


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_a_chains_period_is_the_closed_form(data: st.DataObject):
    count, acts = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 5))
    durations = data.draw(st.lists(st.integers(0, 40).map(lambda n: n / 8), min_size=count, max_size=count))
    quotas = data.draw(st.lists(st.integers(1, 7), min_size=count, max_size=count))
    names = [f"a{i}" for i in range(count)]
    state = steady_state(chain(names, quotas, acts), TableCost(dict(zip(names, durations, strict=True))))
    assert state.period_s == pytest.approx(acts * chain_period_s(durations, quotas))
    assert state.graph.chosen == ()


@pytest.mark.parametrize("gpipe", [True, False], ids=["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 3), (2, 4), (4, 8), (4, 4), (8, 32)])
def test_the_period_of_gpipe_and_of_1f1b_has_the_bubble_of_the_closed_form(stages: int, micro_batches: int, gpipe: bool):
    plan = ordered_pipeline(stages, micro_batches, gpipe=gpipe)
    state = steady_state(plan, only_compute(plan))
    assert 1 - micro_batches * 3.0 / state.period_s == pytest.approx(bubble_fraction(stages, micro_batches))
    assert state.graph.chosen == ()


@pytest.mark.parametrize("link_s", [0.0, 0.125, 0.5, 2.0])
@pytest.mark.parametrize("stages", [2, 3, 4, 8])
def test_links_slow_1f1b_down_as_its_quotas_say(stages: int, link_s: float):
    # max over stages of F + B + 2c (p-1-i)/(p-i) per micro-batch: p-i tokens go p-1-i links there and back.
    p, m = stages, 16
    plan = pipeline(p, m, update=False)
    want_s = m * max(3.0 + 2 * link_s * (p - 1 - i) / (p - i) for i in range(p))
    assert steady_state(plan, only_compute(plan, link_s)).period_s == pytest.approx(want_s)


def test_a_message_between_ranks_adds_its_latency_to_the_cycle():
    story = Story(placements=[Placement(id="dev", ranks=(0,), mesh=(1,)), Placement(id="far", ranks=(1,), mesh=(1,))])
    story.regst("made", "produce", 4)
    story.regst("sent", "send", 1, placement="far")
    story.task("produce", produces=["made"], acts=3, kind=TaskKind.SOURCE)
    story.task("send", ["made"], ["sent"], acts=3, kind=TaskKind.TRANSFER)
    story.task("use", ["sent"], acts=3, placement="far")
    plan = story.freeze(micro_batches=3)
    assert steady_state(plan, TableCost(latency_s=0.25)).period_s == 3 * (1.0 + 0.25 + 1.0 + 0.25)
    assert steady_state(plan.with_quotas({"sent": 2}), TableCost(latency_s=0.25)).period_s == 3 * 1.25


# --- the simulator ----------------------------------------------------------------------------------------------------


@settings(max_examples=examples(80), deadline=None)
@given(st.data())
def test_with_fixed_orders_the_simulation_settles_into_the_period(data: st.DataObject):
    plan = data.draw(live_dags(fixed_order=True))
    cost = data.draw(prices(plan))
    state = steady_state(plan, cost)
    assert state.graph.chosen == ()
    assert repeats_every(plan, cost, state.period_s)


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_streams_that_choose_settle_into_the_period_of_the_order_seen(data: st.DataObject):
    plan = data.draw(live_dags())
    cost = data.draw(prices(plan))
    try:
        state = steady_state(plan, cost)
    except Unsupported:
        assume(False)
    assert repeats_every(plan, cost, state.period_s)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_unequal_ranks_and_latencies_settle_into_the_period(data: st.DataObject):
    plan = data.draw(st.sampled_from([data_parallel(2), data_parallel(3), two_groups(), wide_pipeline(2)]))
    quarter = st.integers(0, 12).map(lambda n: n / 4)
    ranks = [(task.id, rank) for task in plan.tasks for rank in plan.ranks_of(task)]
    cost = TableCost({key: data.draw(quarter) for key in ranks}, latency_s=data.draw(st.sampled_from([0.0, 0.25, 3.0])))
    assert repeats_every(plan, cost, steady_state(plan, cost).period_s, steps=40)


def two_groups() -> Plan:
    """Four ranks; an all-reduce of (0, 2) and of (1, 3), then one of all."""
    story = Story(placements=[Placement(id="dev", ranks=(0, 1, 2, 3), mesh=(2, 2))])
    story.regst("grad", "backward")
    story.regst("sum", "reduce", 2)
    story.regst("w", "update", kind=RegstKind.STATE)
    story.task("backward", {"w": 2}, ["grad"], acts=2, kind=TaskKind.BACKWARD)
    story.task("reduce", ["grad"], ["sum"], acts=2, collective=Collective.ALL_REDUCE)
    story.task("update", ["sum"], {"w": 2}, acts=2, kind=TaskKind.UPDATE)
    return story.freeze(micro_batches=2)


def wide_pipeline(width: int) -> Plan:
    """Two stages of ``width`` ranks; everyone holds everything, so each receiver has one sender."""
    plan = pipeline(2, 3)
    wide = tuple(replace(p, ranks=tuple(range(i * width, (i + 1) * width)), mesh=(width,)) for i, p in enumerate(plan.placements))
    cluster = replace(plan.cluster, devices_per_node=2 * width)
    return replace(plan, placements=wide, cluster=cluster)


# --- folding ----------------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_with_equal_ranks_one_per_placement_tells_the_period_of_all(data: st.DataObject):
    plan = data.draw(st.sampled_from([data_parallel(3), two_groups(), wide_pipeline(2), wide_pipeline(3)]))
    cost = replace(data.draw(prices(plan)), latency_s=data.draw(st.sampled_from([0.0, 0.25])))
    one, all_ranks = steady_state(plan, cost), steady_state(plan, cost, folded=False)
    assert one.graph.folded
    assert not all_ranks.graph.folded
    assert one.graph.num_nodes < all_ranks.graph.num_nodes
    assert one.period_s == pytest.approx(all_ranks.period_s)


def test_a_straggler_forbids_folding_and_a_forced_fold_is_an_upper_bound():
    plan, slow = data_parallel(3), TableCost({("forward", 1): 4.0, ("update", 2): 3.0})
    exact = steady_state(plan, slow)
    assert not exact.graph.folded
    assert exact.period_s == 7.0  # rank 1: 4 + 1 + 1 + 1;  rank 2: 1 + 1 + 1 + 3, its own cycle meets rank 1's in the all-reduce
    assert steady_state(plan, slow, folded=True).period_s == 9.0


def test_a_sender_that_nobody_listens_to_forbids_folding():
    plan = wide_pipeline(2)
    fewer = replace(plan, placements=(plan.placements[0], replace(plan.placements[1], ranks=(2,), mesh=(1,))))
    assert not marked_graph(fewer, TableCost()).folded


def test_ranks_that_differ_are_folded_in_a_step_of_many_acts_and_the_period_is_said_to_be_a_bound(monkeypatch: pytest.MonkeyPatch):
    plan, slow = data_parallel(3), TableCost({("forward", 1): 4.0, ("update", 2): 3.0})
    assert not steady_state(plan, slow).graph.left_out
    monkeypatch.setattr(graph, "MANY_ACTS", 1)
    bound = steady_state(plan, slow)
    assert bound.graph.folded and bound.period_s == 9.0
    assert bound.graph.left_out == graph.RANKS_LEFT_OUT and "upper bounds" in bound.about
    assert not steady_state(plan, TableCost()).graph.left_out  # equal ranks: nothing is left out


# --- quotas -----------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_a_graph_with_other_quotas_is_the_graph_of_the_plan_with_them(data: st.DataObject):
    plan = data.draw(live_dags(fixed_order=True))
    cost = data.draw(prices(plan))
    names = [r.id for r in plan.regsts if r.kind is not RegstKind.STATE]
    quotas = {name: plan.regst[name].quota + data.draw(st.integers(0, 9)) for name in names}
    moved, built = marked_graph(plan, cost).with_quotas(quotas), marked_graph(plan.with_quotas(quotas), cost)
    for field in ("src", "dst", "tokens", "weight_s", "kind", "regst", "block", "into"):
        assert (getattr(moved, field) == getattr(built, field)).all(), field


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_with_fixed_orders_a_larger_quota_never_lengthens_the_period(data: st.DataObject):
    plan = data.draw(live_dags(fixed_order=True))
    graph = marked_graph(plan, data.draw(prices(plan)))
    grown = data.draw(st.sampled_from([r.id for r in plan.regsts if r.kind is not RegstKind.STATE]))
    larger = graph.with_quotas({grown: plan.regst[grown].quota + data.draw(st.integers(1, 5))})
    assert steady_graph(larger).period_s <= steady_graph(graph).period_s + 1e-12


def test_the_arcs_of_a_quota_say_which_regst_which_block_and_which_steps():
    plan = chain("ab", [3, 1], acts=2)
    graph = marked_graph(plan, TableCost())
    arcs = [a for a in range(graph.num_arcs) if graph.kind[a] == ArcKind.QUOTA]
    said = [(int(graph.block[a]), int(graph.node_act[graph.src[a]]), int(graph.node_act[graph.dst[a]]), int(graph.tokens[a])) for a in arcs]
    # b's act 0 frees what a's act 3 of the whole run writes: act 1 of the next step;  b's act 1 frees for act 4: act 0, two steps on.
    assert said == [(0, 0, 1, 1), (1, 1, 0, 2)]
    assert {graph.regst_of(a).id for a in arcs if graph.regst_of(a) is not None} == {"Regst_a"}


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_impossible_wishes_are_refused_by_name():
    plan = data_parallel(2)
    graph = marked_graph(plan, TableCost())
    with pytest.raises(InvalidPlan, match="quota 0 for regst grad"):
        graph.with_quotas({"grad": 0})
    with pytest.raises(InvalidPlan, match="quota 2 for regst w"):
        graph.with_quotas({"w": 2})
    with pytest.raises(InvalidPlan, match="regst nobody"):
        graph.with_quotas({"nobody": 1})
    with pytest.raises(InvalidCluster, match=r"an act of forward on rank 0 takes -1\.0 s"):
        marked_graph(plan, TableCost({"forward": -1.0}))
    with pytest.raises(InvalidCluster, match="a message from rank"):
        steady_state(wide_pipeline(2), TableCost(latency_s=float("inf")))


def test_acts_that_never_settle_into_one_order_are_refused_with_the_way_out():
    # Two independent tasks share a stream; one has quota 1 towards a slow reader of 2.5 acts, so the pattern takes turns of several steps.
    story = Story()
    story.regst("x", "a", 1)
    story.regst("y", "b", 1)
    story.task("a", produces=["x"], stream="shared", kind=TaskKind.SOURCE)
    story.task("b", produces=["y"], stream="shared", kind=TaskKind.SOURCE)
    story.task("read", ["x"])
    plan = story.freeze()
    cost = TableCost({"a": 1.0, "b": 1.0, "read": 2.5})
    # a and b are not tied to each other: b runs ever further ahead of a, so no step's worth of acts holds both once.
    with pytest.raises(Unsupported, match="streams \\['shared'\\] have no order of their own, and 32 simulated steps"):
        observed_orders(plan, cost, ["shared"])


def test_a_plan_that_is_not_live_has_no_steady_state():
    with pytest.raises(DeadLock, match="not live"):
        steady_state(_stuck(), TableCost())


def _stuck() -> Plan:
    story = Story()
    story.regst("one_by_one", "source", 1)
    story.regst("sum", "collect", 1)
    story.task("source", produces=["one_by_one"], acts=2, kind=TaskKind.SOURCE)
    story.task("collect", ["one_by_one"], {"sum": 2}, acts=2)
    story.task("join", {"one_by_one": 1, "sum": 2}, acts=2)
    return story.freeze(micro_batches=2)
