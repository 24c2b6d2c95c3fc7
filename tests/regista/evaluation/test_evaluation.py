"""An evaluation gives, in every way to distribute it, the loss and the outputs that one device gives in eval mode (SEMANTICS 8)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regista
from planner.ir.actors.verify import device_bytes, verify
from planner.ir.errors import InvalidPlan
from planner.ir.graph import InputKind, Mode, Role
from planner.ir.plan import TaskKind
from regista import Performer
from regista.clusters import resolve_cluster
from tests.regista.evaluation.evaluated import WAYS, batch_of, classifier, eager, planned

CLOSE = {"rtol": 1e-5, "atol": 1e-6}
QUICK = "pipeline"


@pytest.mark.parametrize("way", [way if way == QUICK else pytest.param(way, marks=pytest.mark.thorough) for way in WAYS])
def test_loss_and_outputs_are_those_of_one_device_in_eval_mode(way: str) -> None:
    program = classifier()
    plan = planned(program, way)
    outcome = regista.run(plan, program, steps=2, performer=Performer.REFERENCE)
    for step, found in enumerate(outcome.outputs):
        loss, outputs = eager(program, {}, step)
        assert list(found) == ["logits", "hidden.0", "hidden.1"]
        torch.testing.assert_close(torch.tensor(outcome.losses[step]), loss, **CLOSE)
        for name, value in outputs.items():
            torch.testing.assert_close(found[name], value, **CLOSE)


@pytest.mark.thorough
@pytest.mark.processes
@pytest.mark.parametrize("performer", [Performer.THREADS, Performer.GLOO])
@pytest.mark.parametrize("way", WAYS)
def test_every_performer_gives_the_outputs_of_the_reference_bit_for_bit(way: str, performer: Performer) -> None:
    program = classifier()
    plan = planned(program, way)
    wanted = regista.run(plan, program, steps=3, performer=Performer.REFERENCE)
    outcome = regista.run(plan, program, steps=3, performer=performer)
    assert len(outcome.outputs) == 3
    for found, of_reference in zip(outcome.outputs, wanted.outputs, strict=True):
        assert all(torch.equal(found[name], of_reference[name]) for name in of_reference)


def test_an_evaluation_plan_has_no_backward_pass_no_update_and_the_memory_of_neither() -> None:
    program = classifier(optimizer="adamw")
    evaluation, training = planned(program, QUICK), regista.plan(program, "local:2", stages=2, micro_batches=4)
    assert evaluation.mode is Mode.EVAL and training.mode is Mode.TRAIN
    assert {task.kind for task in evaluation.tasks}.isdisjoint({TaskKind.BACKWARD, TaskKind.WEIGHT, TaskKind.UPDATE})
    assert not evaluation.gradients and {state.kind for state in evaluation.states} <= {InputKind.PARAMETER, InputKind.BUFFER}
    graph = program.evaluating().graph(4)
    assert not graph.updates and {op.role for op in graph.ops} == {Role.FORWARD, Role.ACCUMULATE}
    held = [max(regista.simulate(plan).peak_bytes.values()) for plan in (evaluation, training)]
    assert held[0] * 3 < held[1]


def test_planning_an_evaluation_leaves_the_module_in_training() -> None:
    program = classifier()
    program.module.blocks[1].norm.eval()
    before = {name: (child.training, id(child)) for name, child in program.module.named_modules()}
    planned(program, "one device")
    assert {name: (child.training, id(child)) for name, child in program.module.named_modules()} == before


@pytest.mark.thorough
@pytest.mark.processes
def test_the_state_of_a_training_run_is_evaluated_in_other_layouts_on_other_numbers_of_devices(tmp_path: Path) -> None:
    program = classifier(optimizer=regista.AdamW(lr=0.05))
    training = regista.plan(program, "local:2", pins=["input.*=S(0)"])
    trained = regista.run(training, program, steps=4, checkpoint=str(tmp_path))
    loss, outputs = eager(program, trained.states, 9)
    assert abs(float(loss) - float(eager(program, {}, 9)[0])) > 1e-3
    for way in WAYS:
        plan = planned(program, way)
        for start in ({"state": trained.states}, {"init": f"checkpoint:{tmp_path}"}):
            outcome = regista.run(plan, program, steps=1, data=[batch_of(9)], performer=Performer.REFERENCE, **start)
            torch.testing.assert_close(torch.tensor(outcome.losses[0]), loss, **CLOSE)
            torch.testing.assert_close(outcome.outputs[0]["logits"], outputs["logits"], **CLOSE)


@pytest.mark.thorough
@pytest.mark.processes
def test_moving_averages_take_the_place_of_the_parameters(tmp_path: Path) -> None:
    program = classifier(optimizer=regista.AdamW(lr=0.05), ema=0.5)
    trained = regista.run(regista.plan(program, "local:2"), program, steps=4, checkpoint=str(tmp_path))
    averaged = {name: trained.states.get(f"{name}:ema", value) for name, value in trained.states.items()}
    loss, _ = eager(program, averaged, 0)
    assert abs(float(loss) - float(eager(program, trained.states, 0)[0])) > 1e-4
    plan = planned(program, "pipeline")
    for performer in (Performer.REFERENCE, Performer.GLOO):
        for start in ({"state": trained.states}, {"init": f"checkpoint:{tmp_path}"}):
            outcome = regista.run(plan, program, steps=1, ema=True, performer=performer, **start)
            torch.testing.assert_close(torch.tensor(outcome.losses[0]), loss, **CLOSE)


@pytest.mark.parametrize("shape", [{}, pytest.param({"stages": None, "micro_batches": None}, marks=pytest.mark.thorough)])
def test_parameters_are_split_where_they_do_not_fit_whole_and_the_numbers_stay(shape: dict[str, None]) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4))
    x, target = torch.randn(8, 64), torch.randint(4, (8,))
    program = regista.Program(module, (x, target), loss=F.cross_entropy)
    cluster = resolve_cluster("local:2")
    share = int(0.7 * sum(parameter.nbytes for parameter in module.parameters()))
    small = replace(cluster, device=replace(cluster.device, memory_bytes=share))
    plan = regista.plan(program, small, mode="eval", **shape)
    assert max(device_bytes(plan).values()) <= share
    outcome = regista.run(plan, program, steps=1, performer=Performer.REFERENCE)
    torch.testing.assert_close(torch.tensor(outcome.losses[0]), F.cross_entropy(module(x), target).detach(), **CLOSE)


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["data parallel", "pipeline"])
def test_in_mixed_precision_it_computes_as_autocast_does_and_holds_low_precision_parameters_alone(way: str) -> None:
    program = classifier(optimizer=regista.AdamW(lr=0.05), precision="bf16-mixed")
    trained = regista.run(regista.plan(program, "local:2"), program, steps=3, performer=Performer.REFERENCE)
    with torch.autocast("cpu", torch.bfloat16):
        loss, outputs = eager(program, trained.states, 0)
    plan = planned(program, way)
    outcome = regista.run(plan, program, steps=1, state=trained.states, performer=Performer.REFERENCE)
    torch.testing.assert_close(torch.tensor(outcome.losses[0]), loss.float(), rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(outcome.outputs[0]["logits"], outputs["logits"], rtol=2e-2, atol=2e-2)
    copies = {state.copy_of for state in plan.states if state.kind is InputKind.WORKING_COPY}
    assert copies >= {name for name, _ in program.module.named_parameters() if ".norm." not in name}
    assert {state.name for state in plan.states if state.kind is InputKind.PARAMETER}.isdisjoint(copies)


def test_a_damaged_plan_whose_outputs_cannot_be_put_together_is_refused() -> None:
    plan = planned(classifier(), QUICK)
    first, *others = plan.outputs
    for damaged, says in (
        (replace(first, batch_dim=None), "is put together along dim None of 4 micro-batches"),
        (replace(first, batch_dim=2), "is put together along dim 2"),
        (replace(first, regst=plan.loss.regst, index=plan.loss.index), "no task hands over output logits in each of 4"),
    ):
        with pytest.raises(InvalidPlan, match=says):
            verify(replace(plan, outputs=(damaged, *others)))
