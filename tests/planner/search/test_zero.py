"""ZeRO: what each level sends and holds, and that level 3 is chosen only where memory binds.

n devices, m micro-batches; T bytes of parameters, T' of those that the backward part reads (every matrix but the first, no bias).  A tensor of
T bytes costs each device T (n-1)/n in an all-gather or a reduce-scatter, twice that in an all-reduce (SEMANTICS 2).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
import torch
from matrix import STEPS, assert_transparent, expected, plan_for, program, roomy_cluster
from traffic import SCALAR, cluster, layouts, moves

import simulator
from backend import perform
from planner.cost import AnalyticCost
from planner.frontend import AdamW, Program
from planner.ir.actors.actor import Actor
from planner.ir.actors.game import Observer
from planner.ir.actors.liveness import play
from planner.ir.actors.peak import live_bytes
from planner.ir.collective import Collective
from planner.ir.errors import Unsupported
from planner.ir.plan import Plan, RegstKind, TaskKind
from planner.parallelism.make import PlanOptions, make_plan
from regista.analysis.planned import retrace
from zoo import ZOO

N = 4
ROWS, WIDTH, HIDDEN, CLASSES = 4096, 256, 512, 16
MATRIX = 4 * WIDTH * HIDDEN
BLOCK = 2 * MATRIX + 4 * (WIDTH + HIDDEN)
HEAD = 4 * CLASSES * (WIDTH + 1)
PART = (N - 1) / N


@cache
def mlp(depth: int, micro_batches: int = 1) -> Program:
    """Many rows per micro-batch: a block's activations are many times its weights, so data parallelism is right at every level."""
    return ZOO["mlp"](batch=ROWS * micro_batches, width=WIDTH, hidden=HIDDEN, depth=depth, classes=CLASSES, optimizer="adamw")


@cache
def plan_at(zero: int | None, depth: int = 3, micro_batches: int = 1, memory_bytes: int | None = None) -> Plan:
    source, where = mlp(depth, micro_batches), cluster(N)
    if memory_bytes is not None:
        where = replace(where, device=replace(where.device, memory_bytes=memory_bytes))
    options = PlanOptions(mesh=(N,), micro_batches=micro_batches, zero=zero, recompute=False)
    return make_plan(source.graph(micro_batches), model="mlp", batch_size=source.batch_size, cluster=where, options=options)


def peak(plan: Plan) -> int:
    return max(live_bytes(plan, AnalyticCost(plan.cluster).folded_s(plan)).values())


def sent_by(plan: Plan) -> dict[Collective, float]:
    """Bytes per device and step by collective, scalars aside."""
    total: Counter[Collective] = Counter()
    for move in moves(plan):
        if move.sent > 2 * SCALAR:
            total[move.collective] += move.sent  # type: ignore[assignment]
    return dict(total)


def gathered_again(plan: Plan) -> dict[str, int]:
    """Parameter -> how often a step gathers it for a part of its block."""
    gathers: Counter[str] = Counter()
    for task in plan.tasks:
        if ".again." in task.id:
            for access in task.writes:
                gathers[access.name.partition("@")[0].removeprefix("parameter:")] += task.acts
    return dict(gathers)


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_each_level_sends_what_its_closed_form_says(micro_batches: int) -> None:
    """Rajbhandari et al. 2020: levels 0 to 2 send 2 T (n-1)/n, level 3 half as much again: 3 T (n-1)/n where the backward part reads all of T.

    With m micro-batches level 2 reduces the gradients of each of them, and level 3 gathers the parameters for each of them.
    """
    m, whole = micro_batches, 3 * BLOCK + HEAD
    read_backward = 5 * MATRIX + HEAD - 4 * CLASSES
    all_reduce, scatter, gather = Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.ALL_GATHER
    assert sent_by(plan_at(0, 3, m)) == {all_reduce: 2 * whole * PART}
    assert sent_by(plan_at(1, 3, m)) == {scatter: whole * PART, gather: whole * PART}
    assert sent_by(plan_at(2, 3, m)) == {scatter: m * whole * PART, gather: whole * PART}
    assert sent_by(plan_at(3, 3, m)) == {scatter: m * whole * PART, gather: m * (whole + read_backward) * PART}


def test_each_level_stores_what_it_says() -> None:
    for level, parameter, slot in ((0, "B", "B"), (1, "B", "S"), (2, "B", "S"), (3, "S", "S")):
        stored = layouts(plan_at(level))
        assert {sbp[0] for name, sbp in stored.items() if ":" not in name} == {parameter}, level
        assert {sbp[0] for name, sbp in stored.items() if ":exp_avg" in name} == {slot}, level


def growth(level: int) -> int:
    """Bytes by which the peak grows with a block more."""
    return peak(plan_at(level, 5)) - peak(plan_at(level, 4))


ACTIVATIONS = 4 * (ROWS // N) * (WIDTH + HIDDEN)
"""What a block keeps for the backward part: its input and what its first layer makes."""


def test_level_3_holds_its_share_of_the_states_the_activations_and_two_blocks_whatever_the_depth() -> None:
    """Each block more costs 1/n of its parameters and of AdamW's two slots, four step counters, and its activations; no whole copy."""
    assert growth(3) == 3 * BLOCK // N + 4 * SCALAR + ACTIVATIONS


@pytest.mark.parametrize(("level", "states"), [(0, 3 * BLOCK), (1, BLOCK + 2 * BLOCK // N)])
def test_below_level_3_each_block_more_costs_its_parameters_whole(level: int, states: int) -> None:
    assert growth(level) >= states + 4 * SCALAR + ACTIVATIONS


class _Gathered(Observer):
    """Blocks of gathered parameters that are there at once."""

    def __init__(self, plan: Plan) -> None:
        self.again = {regst.id for regst in plan.regsts if ".again." in regst.id and regst.kind is RegstKind.DATA}
        self.most = 0
        self.actors: dict[str, Actor] = {}

    def began(self, actor: Actor) -> None:
        self.actors[actor.task.id] = actor
        held = 0
        for known in self.actors.values():
            for regst, port in known.outputs.items():
                held += (port.produced - min(port.acked.values()) + known.busy) if regst in self.again else 0
        self.most = max(self.most, held)


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_no_more_than_two_blocks_are_gathered_at_once(micro_batches: int) -> None:
    plan = plan_at(3, 5, micro_batches)
    seen = _Gathered(plan)
    play(plan, 2, AnalyticCost(plan.cluster).folded_s(plan), seen)
    assert seen.most == 2


def test_with_ample_memory_nothing_is_gathered_again() -> None:
    """2 T (n-1)/n: reduce-scatter and all-gather of matrices, an all-reduce of what is not worth cutting."""
    plan = plan_at(None)
    assert not gathered_again(plan)
    assert sum(sent_by(plan).values()) == 2 * (3 * BLOCK + HEAD) * PART
    assert plan.search.lower_bound_s == plan.search.objective_s


def test_zero_3_appears_where_memory_binds_and_only_as_far_as_it_does() -> None:
    """Three devices' memories between what level 1 and what level 3 hold: the less there is, the more is gathered again.

    Every plan fits, in the plan's count and in the simulator's; what is gathered again costs one all-gather more and nothing else does.
    """
    depth = 4
    large, small = peak(plan_at(None, depth)), peak(plan_at(3, depth))
    shares = []
    for part in (0.9, 0.5, 0.2):
        memory_bytes = int(small + part * (large - small))
        plan = plan_at(None, depth, 1, memory_bytes)
        again = gathered_again(plan)
        twice = sum(MATRIX for times in again.values() if times == 2)
        assert sum(sent_by(plan).values()) == pytest.approx((2 * (depth * BLOCK + HEAD) + twice) * PART, rel=1e-12)
        assert peak(plan) <= memory_bytes
        assert max(simulator.simulate(plan, AnalyticCost(plan.cluster)).peak_bytes.values()) <= memory_bytes
        assert plan_at(None, depth).search.objective_s < plan.search.objective_s <= plan_at(3, depth).search.objective_s
        assert plan.search.lower_bound_s <= plan.search.objective_s
        shares.append(twice)
    assert 0 < shares[0] <= shares[1] <= shares[2]
    assert shares[0] < shares[2]


@pytest.mark.parametrize("way", ["zero3", "zero3_accumulated", "zero3_pipeline2"])
@pytest.mark.parametrize("model", ["mlp", "gpt"])
def test_what_a_zero_3_plan_holds_is_what_the_simulator_finds_to_the_byte(model: str, way: str) -> None:
    plan = plan_for(model, way)
    cost = AnalyticCost(plan.cluster)
    planned = live_bytes(plan, cost.folded_s(plan), steps=4)
    assert {str(rank): size for rank, size in planned.items()} == dict(simulator.simulate(plan, cost, steps=4).peak_bytes)


def test_gathers_wait_for_the_block_before_the_last_one() -> None:
    """g_j waits for the fragment that uses g_{j-2}: a control Regst without bytes."""
    plan = plan_at(3)
    gathers = [task for task in plan.tasks if ".again." in task.id and task.kind is TaskKind.BOXING]
    controls = {regst.id for regst in plan.regsts if regst.kind is RegstKind.CONTROL}
    held_back = [[port.regst for port in task.consumes if port.regst in controls] for task in gathers]
    assert [len(waits) for waits in held_back] == [0, 0] + [1] * (len(gathers) - 2)
    users = [
        next(t.id for t in plan.tasks if t.kind.is_compute and g.id in {p.regst.rpartition(".out")[0] for p in t.consumes}) for g in gathers
    ]
    assert [plan.regst[waits[0]].producer for waits in held_back[2:]] == users[:-2]


def test_an_unknown_level_is_refused_with_those_there_are() -> None:
    with pytest.raises(Unsupported, match="no ZeRO level 4; levels are 0, 1, 2, 3"):
        plan_at(4)


def test_level_1_reads_pinned_parameters_where_they_are_stored() -> None:
    """Weights that the user cuts are used in parts, as in tensor parallelism: no parameter is ever gathered."""
    options = PlanOptions(zero=1, pins=("input.*=S(0)", "blocks.?.*.weight=S(0)"))
    plan = make_plan(mlp(3).graph(1), model="mlp", batch_size=ROWS, cluster=cluster(N), options=options)
    assert not [m for m in moves(plan) if m.part == "param" and m.name.endswith(".weight") and "blocks" in m.name]


def test_a_pinned_parameter_is_gathered_again_when_level_3_asks_for_it() -> None:
    pins = ("input.*=S(0)", "blocks.?.up.weight=S(1)")
    options = PlanOptions(zero=3, pins=pins)
    plan = make_plan(mlp(3).graph(1), model="mlp", batch_size=ROWS, cluster=cluster(N), options=options)
    assert layouts(plan)["blocks.1.up.weight"] == "S(1)"
    assert gathered_again(plan)["blocks.1.up.weight"] == 2


@pytest.mark.representatives("False-mesh0")
@pytest.mark.parametrize("mesh", [(2,), (2, 2)])
@pytest.mark.parametrize("recompute", [False, True])
def test_level_3_on_several_axes_and_with_recomputation_equals_training_on_one_device(mesh: tuple[int, ...], recompute: bool) -> None:
    source = program("gpt")
    pin = ",".join(["S(0)"] + ["B"] * (len(mesh) - 1))
    options = PlanOptions(mesh=mesh, micro_batches=2, pins=(f"input.0={pin}", f"out:h.?={pin}"), zero=3, recompute=recompute)
    plan = make_plan(source.graph(2), model="gpt", batch_size=source.batch_size, cluster=roomy_cluster(2 * len(mesh)), options=options)
    assert gathered_again(plan)
    outcome = perform(plan, source.initial_state(2), source.batch, STEPS, gradients=True)
    assert_transparent(outcome, expected("gpt", 2))


@cache
def tight() -> tuple[Program, Plan]:
    """A plan that gathers again because memory is between what the levels hold."""
    made = mlp(4)
    source = Program(made.module, made.example_inputs, made.loss, AdamW(lr=1e-2, eps=1e-3), name="mlp", data=made.data)
    where = cluster(N)
    memory_bytes = (peak(plan_at(None, 4)) + peak(plan_at(3, 4))) // 2
    where = replace(where, device=replace(where.device, memory_bytes=memory_bytes))
    options = PlanOptions(mesh=(N,), recompute=False)
    return source, make_plan(source.graph(1), model="mlp", batch_size=ROWS, cluster=where, options=options)


@pytest.mark.thorough
def test_what_the_search_gathers_again_changes_not_one_bit() -> None:
    """The data-parallel plan of ample memory does the same sums in the same order."""
    source, plan = tight()
    roomy = make_plan(source.graph(1), model="mlp", batch_size=ROWS, cluster=cluster(N), options=PlanOptions(mesh=(N,), recompute=False))
    assert gathered_again(plan)
    assert not gathered_again(roomy)
    outcome, wanted = (perform(p, source.initial_state(1), source.batch, 2) for p in (plan, roomy))
    assert outcome.losses == wanted.losses
    assert all(torch.equal(outcome.states[name], value) for name, value in wanted.states.items())


def test_a_plan_that_gathers_again_is_traced_back_to_the_choice_it_came_from() -> None:
    source, plan = tight()
    retraced = retrace(plan, source.graph(1))
    assert retraced.is_whole
    again = {value for value, _ in retraced.model.decode(retraced.choice, "", 0.0, 0.0).regathered}
    assert {value.removeprefix("parameter:") for value in again} == set(gathered_again(plan))
