"""The step that trainers run: two parameter groups, warm-up and cosine, clipping by the norm of all gradients, equal to plain PyTorch in every way."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from math import inf
from typing import Any

import pytest
import torch
from torch import Tensor
from trainer import train_plainly
from trainer_cases import small_training

import regista
from planner.frontend.optim.clipping import ClipNorm
from planner.ir.errors import WorkerFailed
from planner.ir.plan import Fragment, Plan, TaskKind

pytestmark = pytest.mark.filterwarnings("ignore:.*devices on .* cores", "ignore:.*ranks on .* cores")

STEPS, MAX_NORM = 20, 0.05
COLUMN_THEN_ROW = ["h.*.wide.weight=S(0)", "h.*.narrow.weight=S(1)", "input.*=B"]
WAYS: dict[str, tuple[int, dict[str, Any]]] = {
    "one device": (1, {}),
    "data": (2, {"pins": ["input.*=S(0)"]}),
    "tensor": (2, {"pins": COLUMN_THEN_ROW}),
    "pipeline": (2, {"stages": 2, "micro_batches": 4}),
    "zero": (2, {"pins": ["input.*=S(0)"], "zero": 3}),
    "mixed": (4, {"stages": 2, "micro_batches": 2, "pins": ["input.*=S(0)"], "zero": 1}),
    "mixed, three": (
        8,
        {
            "stages": 2,
            "micro_batches": 2,
            "mesh": (2, 2),
            "pins": ["input.*=S(0),B", "h.*.wide.weight=B,S(0)", "h.*.narrow.weight=B,S(1)"],
        },
    ),
}


def clipped_by_norm(parameters: Iterable[Tensor]) -> object:
    return torch.nn.utils.clip_grad_norm_(parameters, MAX_NORM)


@cache
def plan_of(way: str) -> Plan:
    devices, options = WAYS[way]
    return regista.plan(small_training().program(clip_norm=MAX_NORM), f"local:{devices}", **options)


def assert_equal_to_plain(outcome: regista.Outcome, way: str, clip: Callable[[Iterable[Tensor]], object] = clipped_by_norm) -> None:
    training = small_training()
    micro_batches = WAYS[way][1].get("micro_batches", 1)
    wanted = train_plainly(
        training.program(), training.optimizer, STEPS, micro_batches=micro_batches, schedulers=[training.scheduler], clip=clip
    )
    assert outcome.losses == pytest.approx(wanted.losses, rel=1e-5)
    for name, value in wanted.parameters.items():
        torch.testing.assert_close(outcome.states[name], value, rtol=1e-5, atol=1e-5)


@pytest.mark.representatives("one device", "pipeline", "mixed")
@pytest.mark.parametrize("way", WAYS)
def test_twenty_steps_with_clipping_a_schedule_and_two_groups_equal_plain_pytorch(way: str) -> None:
    program = small_training().program(clip_norm=MAX_NORM)
    outcome = regista.run(plan_of(way), program, steps=STEPS, performer=regista.Performer.REFERENCE)
    assert_equal_to_plain(outcome, way)


@pytest.mark.processes
@pytest.mark.representatives("pipeline")
@pytest.mark.parametrize("way", ["data", "tensor", "pipeline", "zero", "mixed"])
def test_in_real_processes_too(way: str) -> None:
    program = small_training().program(clip_norm=MAX_NORM)
    assert_equal_to_plain(regista.run(plan_of(way), program, steps=STEPS, timeout_s=120), way)


def test_the_comparison_sees_a_step_without_clipping() -> None:
    plan, program = plan_of("one device"), small_training().program(clip_norm=MAX_NORM)
    outcome = regista.run(plan, program, steps=STEPS, performer=regista.Performer.REFERENCE)
    with pytest.raises(AssertionError):
        assert_equal_to_plain(outcome, "one device", clip=lambda parameters: None)


@pytest.mark.representatives("pipeline")
@pytest.mark.parametrize("way", WAYS)
def test_another_schedule_keeps_the_plans_id(way: str) -> None:
    devices, options = WAYS[way]
    other = small_training().program(clip_norm=MAX_NORM, lr_schedule=lambda step: 0.5 / (step + 1))
    assert regista.plan(other, f"local:{devices}", **options).plan_id == plan_of(way).plan_id


def test_one_number_per_placement_crosses_stages_for_the_norm_and_one_comes_back() -> None:
    plan = plan_of("mixed")
    targets = {task.id: [op.target for op in task.body.ops] for task in plan.tasks if isinstance(task.body, Fragment)}
    assert sum(of_task.count("regista.clip_scale") for of_task in targets.values()) == 1
    sent = [task for task in plan.tasks if task.kind is TaskKind.TRANSFER and task.acts == 1]
    assert [(task.id, [plan.regst[a.regst].tensors[a.index].shape for a in task.writes]) for task in sent] == [
        ("s1-s0.param.0", [()]),
        ("s0-s1.param.0", [()]),
    ]
    reduced = [task for task in plan.tasks if task.kind is TaskKind.BOXING and "all_reduce.param" in task.id]
    assert [len(task.writes) for task in reduced] == [1, 1], "split gradients are not gathered for their norm"


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["data", "pipeline", "zero"])
def test_the_largest_element_is_clipped_as_in_plain_pytorch(way: str) -> None:
    devices, options = WAYS[way]
    program = small_training().program(clip_norm=ClipNorm(max_norm=0.01, norm_type=inf))
    outcome = regista.run(regista.plan(program, f"local:{devices}", **options), program, steps=STEPS, performer=regista.Performer.REFERENCE)
    assert_equal_to_plain(outcome, way, clip=lambda parameters: torch.nn.utils.clip_grad_norm_(parameters, 0.01, norm_type=inf))


def test_a_norm_that_is_no_number_ends_the_run_where_that_was_asked() -> None:
    training = small_training()
    with torch.no_grad():
        next(training.module.parameters()).fill_(torch.inf)
    program = training.program(clip_norm=ClipNorm(max_norm=1.0, error_if_nonfinite=True))
    plan = regista.plan(program, "local:1")
    with pytest.raises(WorkerFailed, match=r"the norm of all gradients is nan, so they cannot be clipped to 1.0"):
        regista.run(plan, program, steps=1, performer=regista.Performer.REFERENCE)
