"""Recomputation: the same training, less kept from forward to backward."""

from __future__ import annotations

import re
from functools import cache

import pytest
import torch
from matrix import assert_transparent, roomy_cluster
from matrix import program as matrix_program
from oracle import train_eagerly

import simulator
from backend import perform
from planner.cost import AnalyticCost
from planner.frontend import Program
from planner.ir.actors.peak import live_bytes
from planner.ir.graph import Role
from planner.ir.plan import Boxing, Fragment, PlacedTensor, Plan, Task, TaskKind
from planner.parallelism.make import PlanOptions, make_plan
from planner.stages import assign_stages, prepare
from planner.stages.recompute import recompute_of
from regista.views.tables.show import computed_again_text
from zoo import ZOO

STEPS = 2
WAYS = {
    "data": {},
    "tensor": {"pins": ("h.*.mlp.c_fc.weight=S(0)", "h.*.attn.q.weight=S(0)", "input.*=B")},
    "pipeline": {"stages": 2, "micro_batches": 4},
}


@cache
def program() -> Program:
    return ZOO["gpt"](layers=3, width=64, heads=4, vocab=128, batch=8, seq=32, optimizer="sgd")


def planned(way: str, recompute: bool) -> Plan:
    options = PlanOptions(recompute=recompute, **WAYS[way])  # type: ignore[arg-type]
    graph = program().graph(options.micro_batches or 1)
    return make_plan(graph, model="gpt", batch_size=8, cluster=roomy_cluster(2), options=options)


@pytest.mark.parametrize("way", list(WAYS))
def test_recomputing_changes_nothing_but_what_is_kept(way: str) -> None:
    plan = planned(way, True)
    micro_batches = plan.micro_batches
    outcome = perform(plan, program().initial_state(micro_batches), program().batch, STEPS, gradients=True)
    assert_transparent(outcome, train_eagerly(program(), micro_batches, STEPS))


@pytest.mark.parametrize("way", list(WAYS))
def test_less_is_live_and_more_is_computed(way: str) -> None:
    kept, again = planned(way, False), planned(way, True)
    assert max(live_bytes(again).values()) < max(live_bytes(kept).values())
    assert flop_of(again) > flop_of(kept)


def test_of_a_block_only_its_inputs_are_kept() -> None:
    graph = program().graph(1)
    staged = prepare(graph, assign_stages(graph, 1, ()), 1, recompute=True)
    made = {v: op for op in staged.graph.ops if op.role is Role.FORWARD for v in op.outputs if v}
    kept = {v for op in staged.graph.ops if op.role is Role.BACKWARD for v in op.inputs if v in made and made[v].module.startswith("h.")}
    # x = x + mlp(...) ends each of the three blocks; the next block and ln_f read it.
    assert len(kept) == 3
    assert {made[v].target for v in kept} == {"aten.add.Tensor"}


@cache
def part_of(model: str, recompute: bool | str, stages: int) -> Plan:
    options = PlanOptions(recompute=recompute, stages=stages, micro_batches=stages)
    source = matrix_program(model)
    return make_plan(source.graph(stages), model=model, batch_size=source.batch_size, cluster=roomy_cluster(stages), options=options)


@pytest.mark.representatives("gpt-1", "resnet50-1", "gpt-2")
@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("model", ["gpt", "resnet50", "bert", "convnet", "llama3", "moe", "t5", "unet"])
def test_a_part_computed_again_changes_no_bit(model: str, stages: int) -> None:
    source, plan = matrix_program(model), part_of(model, False, stages)
    expected = perform(plan, source.initial_state(stages), source.batch, STEPS)
    for share in ("70%", "45%"):
        outcome = perform(part_of(model, share, stages), source.initial_state(stages), source.batch, STEPS)
        assert outcome.losses == expected.losses
        assert [name for name, value in expected.states.items() if not torch.equal(outcome.states[name], value)] == []


@pytest.mark.parametrize("model", ["gpt", "resnet50"])
def test_registers_between_the_passes_hold_what_the_choice_keeps(model: str) -> None:
    most = held_between(part_of(model, False, 1))
    for share in (0.7, 0.45):
        plan = part_of(model, f"{share:.0%}", 1)
        kept, of = (int(number.replace(",", "")) for number in re.findall(r"[\d,]+(?= of| bytes)", plan.options["kept"]))
        assert (of, kept) == (most, held_between(plan)) and kept <= share * most


@cache
def heads_split(recompute: str) -> Plan:
    """Heads and hidden rows on two devices, since parameters are large beside a sample: products leave partial values, which a collective adds."""
    pins = ("h.*.attn.?.weight=S(0)", "h.*.attn.c_proj.weight=S(1)", "h.*.mlp.c_fc.weight=S(0)", "h.*.mlp.c_proj.weight=S(1)", "input.*=B")
    options = PlanOptions(recompute=recompute_of(recompute), pins=pins)
    source = ZOO["gpt"](layers=2, width=128, heads=2, vocab=128, batch=1, seq=16, optimizer="sgd")
    return make_plan(source.graph(1), model="gpt", batch_size=1, cluster=roomy_cluster(2), options=options)


def test_collectives_of_what_is_computed_again_stand_in_the_plan_and_are_priced() -> None:
    """Attention has none inside of it; a block adds its attention's result once more."""
    none, attention, blocks = (heads_split(recompute) for recompute in ("none", "attention", "blocks"))
    assert sent_between_parts(none) == sent_between_parts(attention) < sent_between_parts(blocks)
    assert sent_between_parts(blocks, again=True) > 0 == sent_between_parts(attention, again=True)
    twice = {
        task.id for task in blocks.tasks if isinstance(task.body, Boxing) and any("~" in tensor.name for tensor in read_by(blocks, task))
    }
    played_s = [act.end_s - act.start_s for act in simulator.simulate(blocks, AnalyticCost(blocks.cluster)).acts if act.task in twice]
    assert played_s and min(played_s) > 0
    assert none.search.objective_s < attention.search.objective_s < blocks.search.objective_s


def test_a_plan_that_reshards_on_the_spot_what_it_computes_again_is_told() -> None:
    """A traceback: a slice of a value, local to its device, is no op of torch and has no rule."""
    for recompute in ("attention", "20%", "60%"):
        assert "most are" in computed_again_text(heads_split(recompute))


def sent_between_parts(plan: Plan, again: bool = False) -> int:
    """Bytes that collectives of the passes take; with ``again``, of values that the backward part makes again."""
    return sum(
        tensor.local_bytes(plan.placements[0])
        for task in plan.tasks
        if isinstance(task.body, Boxing) and (".fwd" in task.id or ".bwd" in task.id)
        for tensor in read_by(plan, task)
        if not again or "~" in tensor.name
    )


def read_by(plan: Plan, task: Task) -> list[PlacedTensor]:
    return [plan.regst[read.regst].tensors[read.index] for read in task.reads]


def held_between(plan: Plan) -> int:
    """Bytes that forward tasks write and backward ones read."""
    written = {port.regst for task in plan.tasks if task.kind is TaskKind.FORWARD for port in task.writes}
    read = {port.regst for task in plan.tasks if task.kind is TaskKind.BACKWARD for port in task.reads}
    return sum(tensor.local_bytes(plan.placements[0]) for regst in written & read for tensor in plan.regst[regst].tensors)


def flop_of(plan: Plan) -> int:
    return sum(task.acts * task.body.flop for task in plan.tasks if isinstance(task.body, Fragment))
