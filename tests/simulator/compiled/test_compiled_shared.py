"""Where acts feel each other, the compiled engine gives what SimPy gives, bit for bit, folded or not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from random_plans import is_live, meshed
from stories import BLOCK_BYTES, Story, TableCost, data_parallel, pipeline, tensor

from planner.ir.collective import Collective
from planner.ir.errors import DeadLock
from planner.ir.plan import Placement, Plan, TaskKind
from planner.ir.sbp import NdSbp
from planner.ir.text import canonical
from simulator import Engine, simulate_shared
from simulator.compiled import compile_plan, times
from simulator.compiled.flow_tables import KnownSets
from simulator.network import Sharing
from simulator.network.act_flows import contention_with
from tests.tiers import examples

ALONE_S = BLOCK_BYTES / 1e9
"""The story cluster's ports pass 1e9 bytes/s: an act that moves a block fills them for this long."""


def outcome(plan: Plan, cost: TableCost, engine: Engine, fold: bool, slowdown: float, sharing: Sharing, steps: int) -> str:
    try:
        trace = simulate_shared(plan, cost, steps=steps, engine=engine, fold=fold, compute_slowdown=slowdown, sharing=sharing)
        return canonical(replace(trace, about={}))
    except DeadLock as error:
        return str(error)


def same(plan: Plan, cost: TableCost, slowdown: float = 1.0, sharing: Sharing = Sharing.MAX_MIN, steps: int = 2) -> None:
    expected = outcome(plan, cost, Engine.SIMPY, True, slowdown, sharing, steps)
    for fold in (False, True):
        assert outcome(plan, cost, Engine.COMPILED, fold, slowdown, sharing, steps) == expected


@st.composite
def tight_costs(draw: st.DrawFn, plan: Plan) -> TableCost:
    """Prices at which acts fill a good part of their links, in halves, which tie, or in thirds, whose sums are rounded; some ranks slower."""
    unit = draw(st.sampled_from([ALONE_S / 2, ALONE_S / 3, ALONE_S * 0.7]))
    times_s: dict[str | tuple[str, int], float] = {task.id: draw(st.integers(0, 6)) * unit for task in plan.tasks}
    for task in draw(st.lists(st.sampled_from(plan.tasks), max_size=2)):
        times_s[task.id, draw(st.sampled_from(plan.ranks_of(task)))] = draw(st.integers(0, 9)) * unit
    return TableCost(times_s, latency_s=draw(st.sampled_from([0.0, 0.0, unit, ALONE_S * 0.21])))


@st.composite
def crossing(draw: st.DrawFn) -> Plan:
    """Up to five collectives on streams of their own, along either axis of a mesh or over parts of it, and computing meanwhile."""
    mesh = draw(st.sampled_from([(2,), (4,), (2, 2), (2, 3)]))
    size = mesh[0] * (mesh[1] if len(mesh) > 1 else 1)
    ranks = tuple(draw(st.permutations(range(size))))
    story = Story(placements=[Placement(id="all", ranks=ranks, mesh=mesh)])
    half = draw(st.booleans()) and size > 2
    if half:
        story.placements.append(Placement(id="part", ranks=ranks[: size // 2], mesh=(size // 2,)))
    acts = draw(st.sampled_from([1, 2, 3]))
    for number in range(draw(st.integers(1, 5))):
        at = draw(st.sampled_from(["all", "part"])) if half else "all"
        story.regst(f"made{number}", f"load{number}", draw(st.integers(1, 2)), placement=at)
        story.task(f"load{number}", produces=[f"made{number}"], kind=TaskKind.SOURCE, acts=acts, placement=at)
        story.regst(f"out{number}", f"compute{number}", draw(st.integers(1, 2)), placement=at)
        story.task(
            f"compute{number}", [f"made{number}"], [f"out{number}"], kind=TaskKind.BACKWARD, acts=acts, placement=at,
            stream=draw(st.sampled_from(["compute", f"compute{number}"])) + at,
        )  # fmt: skip
        story.regst(f"sum{number}", f"reduce{number}", placement=at)
        story.task(
            f"reduce{number}", [draw(st.sampled_from([f"made{number}", f"out{number}"]))], [f"sum{number}"], acts=acts, placement=at,
            collective=draw(st.sampled_from([Collective.ALL_REDUCE, Collective.ALL_REDUCE, Collective.ALL_TO_ALL])),
        )  # fmt: skip
    plan = story.freeze(micro_batches=acts)
    return in_nodes(plan, 2) if draw(st.booleans()) and size % 2 == 0 else plan


def in_nodes(plan: Plan, devices: int) -> Plan:
    """The Plan on nodes of so many devices, whose nics pass what the story's ports pass."""
    where = plan.cluster
    return replace(plan, cluster=replace(where, num_nodes=where.num_devices // devices, devices_per_node=devices, nic=where.node))


SLOWDOWNS = st.sampled_from([1.0, 1.0, 1.5, 1.1])


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), SLOWDOWNS)
def test_on_collectives_that_cross_both_engines_give_one_trace_folded_or_not(data: st.DataObject, slowdown: float):
    plan = data.draw(crossing())
    assume(is_live(plan))
    same(plan, data.draw(tight_costs(plan)), slowdown)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), SLOWDOWNS, st.sampled_from(list(Sharing)[::2]))
def test_on_stages_of_several_ranks_both_engines_give_one_trace_folded_or_not(data: st.DataObject, slowdown: float, sharing: Sharing):
    plan = data.draw(meshed())
    assume(is_live(plan))
    same(plan, data.draw(tight_costs(plan)), slowdown, sharing)


@settings(max_examples=examples(40), deadline=None)
@given(st.data(), SLOWDOWNS)
def test_on_pipelines_and_data_parallel_steps_both_engines_give_one_trace(data: st.DataObject, slowdown: float):
    plan = data.draw(st.sampled_from([pipeline(2, 4), pipeline(4, 6), data_parallel(2), data_parallel(5)]))
    same(plan, data.draw(tight_costs(plan)), slowdown, steps=3)


# --- what may be folded ---------------------------------------------------------------------------------------------------


def senders(*pairs: tuple[tuple[int, ...], tuple[int, ...]]) -> Plan:
    """Per pair a task on the first ranks that sends a part each to the second ones; two devices per node, so ranks 2n and 2n + 1 share nics."""
    story = Story(placements=[])
    for number, (here, there) in enumerate(pairs):
        story.placements += [
            Placement(id=f"{way}{number}", ranks=ranks, mesh=(len(ranks),)) for way, ranks in (("from", here), ("to", there))
        ]
        story.regst(f"made{number}", f"load{number}", placement=f"from{number}")
        story.task(f"load{number}", produces=[f"made{number}"], kind=TaskKind.SOURCE, placement=f"from{number}")
        story.regst(f"come{number}", f"send{number}", placement=f"to{number}")
        story.task(f"send{number}", [f"made{number}"], [f"come{number}"], kind=TaskKind.TRANSFER, placement=f"from{number}")
        story.regst(f"used{number}", f"use{number}", placement=f"to{number}")
        story.task(f"use{number}", [f"come{number}"], [f"used{number}"], kind=TaskKind.BACKWARD, placement=f"to{number}")
    story.regsts = [replace(r, tensors=(tensor(r.id, 1, NdSbp.parse("S(0)")),)) for r in story.regsts]
    return in_nodes(story.freeze(), 2)


def classes(plan: Plan, cost: TableCost) -> tuple[int, ...]:
    return compile_plan(plan, cost, contention=contention_with(plan, cost, sharing=True, slowdown=1.0)).ranks.of


FULL = {"load0": 0.0, "load1": 0.0, "send0": ALONE_S / 2, "send1": ALONE_S / 2}


def test_ranks_that_are_alike_but_for_who_shares_their_nic_are_not_folded():
    # 0 -> 4 shares the nics of nodes 0 and 2 with 1 -> 5; 2 -> 6 has those of nodes 1 and 3 to itself, as 3 -> 7 takes no time
    plan, cost = senders(((0, 2), (4, 6)), ((1,), (5,)), ((3,), (7,))), TableCost({**FULL, "send1": ALONE_S}, default_s=0.0)
    assert compile_plan(plan, cost).ranks.of[0] == compile_plan(plan, cost).ranks.of[2]
    of = classes(plan, cost)
    assert of[0] != of[2] and of[4] != of[6]
    trace = simulate_shared(plan, cost, steps=1, engine=Engine.COMPILED)
    ends = {act.rank: act.end_s for act in trace.acts if act.task == "send0"}
    assert ends == {0: ALONE_S, 2: ALONE_S / 2}
    same(plan, cost)


def test_ranks_whose_links_are_shared_alike_are_folded():
    plan, cost = senders(((0, 2), (4, 6)), ((1, 3), (5, 7))), TableCost(FULL, default_s=0.0)
    of = classes(plan, cost)
    assert of[0] == of[2] and of[5] == of[7] and len(set(of)) == 4
    same(plan, cost)


def test_ends_that_no_longer_hold_never_fill_the_heap_of_events():
    """A long transfer beside many short ones: its end is foreseen anew at each of theirs, 400 times, on a heap for some 40 events."""
    plan, cost = collectives_beside_one(200), TableCost({"long": 200 * ALONE_S, "short": ALONE_S * 0.7}, default_s=0.0)
    same(plan, cost, steps=1)


def collectives_beside_one(acts: int) -> Plan:
    story = Story(placements=[Placement(id="dev", ranks=(0, 1), mesh=(2,))])
    for name, total in (("long", 1), ("short", acts)):
        story.regst(f"{name}.made", f"{name}.load")
        story.task(f"{name}.load", produces=[f"{name}.made"], kind=TaskKind.SOURCE, acts=total)
        story.regst(f"{name}.sum", name)
        story.task(name, [f"{name}.made"], [f"{name}.sum"], collective=Collective.ALL_REDUCE, acts=total)
    story.regsts = [replace(r, tensors=r.tensors * (150 if r.id.startswith("long") else 1)) for r in story.regsts]
    return story.freeze(micro_batches=acts)


def test_a_search_is_told_the_shared_times_and_learns_each_set_of_acts_once():
    plan, cost = senders(((0, 2), (4, 6)), ((1, 3), (5, 7))), TableCost(FULL, default_s=0.0)
    compiled = compile_plan(plan, cost, contention=contention_with(plan, cost, sharing=True, slowdown=1.0))
    first = times(compiled, steps=50)
    assert first.step_ends_s == simulate_shared(plan, cost, steps=50).step_ends_s(plan)
    assert compiled.flows is not None and int((compiled.flows.known.arrays.size > 0).sum()) == 1
    assert times(compiled, steps=50) == first


def test_a_hundred_sets_are_found_again():
    """More sets than the table begins with, of random sizes."""
    users = [[(flow, 0.3, 1) for flow in range(12)]]
    known = KnownSets(users, np.random.default_rng(1).integers(-(2**62), 2**62, size=12))
    wanted = [[f for f in range(12) if number >> f & 1] for number in range(1, 600)]
    for flows in wanted:
        known.learn(flows)
    assert int((known.arrays.size > 0).sum()) == len(wanted)
    for slot in np.flatnonzero(known.arrays.size):
        span = slice(known.arrays.first[slot], known.arrays.first[slot] + known.arrays.size[slot])
        here = known.arrays.flow[span].tolist()
        assert known.arrays.speed[span].tolist() == pytest.approx([min(1.0, 1 / (0.3 * len(here)))] * len(here), rel=1e-9)
