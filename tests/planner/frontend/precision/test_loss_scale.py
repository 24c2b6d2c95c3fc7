"""fp16-mixed: a Plan scales the loss, skips the same steps and moves the scale as torch.amp.GradScaler does."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cache
from math import inf
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regista
from planner.frontend import AdamW, Program
from planner.frontend.optim.clipping import ClipNorm
from planner.frontend.optim.loss_scale import GOOD_STEPS, SCALE, LossScaling, next_scale
from planner.ir.errors import InvalidProgram, Unsupported
from planner.ir.plan import Fragment, TaskKind

STEPS, WIDTH = 9, 16
LARGE = (2, 5)
"""Steps whose samples are so large that gradients overflow."""
SCALING = LossScaling(init_scale=2.0**15, growth_interval=2)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = x + self.narrow(self.wide(x).tanh())
        return made


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.h = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.h:
            x = block(x)
        return x.float().square().mean()


def data(step: int) -> Tensor:
    samples = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(step))
    return samples * (500 if step in LARGE else 1)


def program(**options: Any) -> Program:
    torch.manual_seed(0)
    given = {"precision": "fp16-mixed", "loss_scale": SCALING, "optimizer": AdamW(lr=1e-2, eps=1e-3), **options}
    return Program(Net(), data(0), data=lambda step: data(step), **given)


@dataclass(frozen=True)
class Scaled:
    """What plain PyTorch makes of it: losses, scales after each step, optimizer steps that were taken, parameters at the end."""

    losses: list[float]
    scales: list[float]
    taken: int
    parameters: dict[str, Tensor]


@cache
def with_grad_scaler(micro_batches: int, max_norm: float = inf) -> Scaled:
    source = program()
    module = copy.deepcopy(source.module)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2, eps=1e-3, weight_decay=0.01, foreach=False)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALING.init_scale, growth_interval=SCALING.growth_interval)
    losses, scales = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        total = 0.0
        for index in range(micro_batches):
            loss = source.loss_of(module, source.micro_batch(source.batch(step), micro_batches, index))
            torch.autograd.backward(scaler.scale(loss / micro_batches))
            total += loss.item() / micro_batches
        scaler.unscale_(optimizer)
        if max_norm < inf:
            torch.nn.utils.clip_grad_norm_(module.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()
        losses.append(total)
        scales.append(scaler.get_scale())
    (taken,) = {int(state["step"]) for state in optimizer.state.values()}
    return Scaled(losses, scales, taken, {name: p.detach() for name, p in module.named_parameters()})


WAYS: dict[str, tuple[int, dict[str, Any]]] = {
    "one device": (1, {}),
    "data": (2, {"pins": ["input.0=S(0)", "*:exp_avg*=B"]}),
    "tensor": (2, {"pins": ["h.*.wide.weight=S(0)", "h.*.narrow.weight=S(1)", "input.0=B"]}),
    "pipeline": (2, {"stages": 2, "micro_batches": 4}),
    "zero 1": (2, {"pins": ["input.0=S(0)"], "zero": 1}),
    "zero 2": (2, {"pins": ["input.0=S(0)"], "zero": 2, "micro_batches": 2}),
    "zero 3": (2, {"pins": ["input.0=S(0)"], "zero": 3}),
    "recompute": (2, {"stages": 2, "micro_batches": 2, "recompute": True}),
    "mixed": (4, {"stages": 2, "micro_batches": 2, "pins": ["input.0=S(0)"], "zero": 1}),
}


@pytest.mark.filterwarnings("ignore:.*devices on .* cores", "ignore:.*ranks on .* cores")
@pytest.mark.representatives("mixed")
@pytest.mark.parametrize("way", WAYS)
def test_a_plan_skips_the_steps_that_grad_scaler_skips(way: str) -> None:
    devices, options = WAYS[way]
    made = program()
    plan = regista.plan(made, f"local:{devices}", **options)
    wanted = with_grad_scaler(plan.micro_batches)
    assert wanted.taken < STEPS - 1 and max(wanted.scales) > SCALING.init_scale, "overflows were planted, and the scale grows too"
    outcome = regista.run(plan, made, steps=STEPS, performer=regista.Performer.REFERENCE)
    assert float(outcome.states[SCALE]) == wanted.scales[-1]
    assert {int(value) for name, value in outcome.states.items() if name.endswith(":step")} == {wanted.taken}
    assert outcome.losses == pytest.approx(wanted.losses, rel=2e-3)
    for name, value in wanted.parameters.items():
        torch.testing.assert_close(outcome.states[name], value, rtol=2e-3, atol=2e-3)


def test_a_skipped_step_leaves_everything_but_the_scale_as_it_was() -> None:
    made = program()
    plan = regista.plan(made, "local:1")
    before, after = (
        regista.run(plan, made, steps=steps, performer=regista.Performer.REFERENCE).states for steps in (LARGE[0], LARGE[0] + 1)
    )
    changed = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert changed == {SCALE}
    assert float(after[SCALE]) == float(before[SCALE]) / 2


@pytest.mark.thorough
def test_gradients_are_clipped_after_they_are_unscaled() -> None:
    made = program(clip_norm=0.05)
    outcome = regista.run(regista.plan(made, "local:1"), made, steps=STEPS, performer=regista.Performer.REFERENCE)
    wanted = with_grad_scaler(1, 0.05)
    assert outcome.losses == pytest.approx(wanted.losses, rel=2e-3)


@pytest.mark.processes
@pytest.mark.thorough
def test_real_processes_skip_them_too() -> None:
    made = program()
    plan = regista.plan(made, "local:2", pins=["input.0=S(0)"], zero=1)
    outcome = regista.run(plan, made, steps=STEPS, timeout_s=120)
    wanted = with_grad_scaler(1)
    assert float(outcome.states[SCALE]) == wanted.scales[-1]
    assert outcome.losses == pytest.approx(wanted.losses, rel=2e-3)


def test_one_number_per_placement_says_whether_a_gradient_overflowed() -> None:
    plan = regista.plan(program(), "local:2", pins=["input.0=S(0)"], zero=1)
    reduced = [task for task in plan.tasks if task.kind is TaskKind.BOXING and "all_reduce.param" in task.id]
    shapes = [plan.regst[w.regst].tensors[w.index].shape for task in reduced for w in task.writes]
    measured = sum(op.target == "regista.overflow" for task in plan.tasks if isinstance(task.body, Fragment) for op in task.body.ops)
    assert measured == 8 and set(shapes) == {()}


@pytest.mark.parametrize("overflow", [0.0, 1.0])
@pytest.mark.parametrize("good", [0, 1, 2])
@pytest.mark.parametrize("scale", [2.0**-3, 2.0**127])
def test_the_next_scale_is_that_of_torch(scale: float, good: int, overflow: float) -> None:
    theirs, tracker = torch.tensor(scale), torch.tensor(good, dtype=torch.int32)
    mine = next_scale(theirs.clone(), tracker.clone(), torch.tensor(overflow), 2.0, 0.5, 3)
    torch._amp_update_scale_(theirs, tracker, torch.tensor(overflow), 2.0, 0.5, 3)
    assert (float(mine[0]), int(mine[1])) == (float(theirs), int(tracker))


def test_a_grad_scaler_is_taken_with_its_numbers_and_its_state() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=5, backoff_factor=0.25)
    made = program(loss_scale=scaler)
    assert made.loss_scaling == LossScaling(init_scale=8.0, growth_interval=5, backoff_factor=0.25)
    assert {name: value.item() for name, value in made.initial_state().items() if name in (SCALE, GOOD_STEPS)} == {
        SCALE: 8.0,
        GOOD_STEPS: 0,
    }


def test_what_cannot_be_scaled_is_refused() -> None:
    with pytest.raises(InvalidProgram, match=r"a loss scale belongs to precision fp16-mixed; the program computes in bf16-mixed"):
        program(precision="bf16-mixed")
    with pytest.raises(InvalidProgram, match=r"the scale of the loss is 0; give a number above 0"):
        program(loss_scale=0.0)
    with pytest.raises(InvalidProgram, match=r"this GradScaler is disabled"):
        program(loss_scale=torch.amp.GradScaler("cpu", enabled=False))
    with pytest.raises(Unsupported, match=r"error_if_nonfinite ends the run at an overflow, which fp16-mixed skips"):
        program(clip_norm=ClipNorm(max_norm=1.0, error_if_nonfinite=True))


@pytest.mark.parametrize(
    "scaling",
    [
        LossScaling(),
        LossScaling.fixed(128.0),
        LossScaling(init_scale=8.0, growth_interval=7, growth_factor=4.0, backoff_factor=0.1, good_steps=3),
    ],
    ids=["default", "fixed", "other numbers"],
)
def test_a_scale_in_words_is_the_same_scale(scaling: LossScaling) -> None:
    assert LossScaling.parsed(scaling.text) == scaling
    assert program(loss_scale=scaling.text).loss_scaling == scaling


def test_a_number_alone_is_the_first_scale() -> None:
    assert LossScaling.parsed("1024") == program(loss_scale=1024).loss_scaling == LossScaling(init_scale=1024.0)


def test_a_fixed_scale_stays_and_steps_that_overflow_are_skipped() -> None:
    made = program(loss_scale="fixed:32768")
    outcome = regista.run(regista.plan(made, "local:1"), made, steps=LARGE[0] + 2, performer=regista.Performer.REFERENCE)
    assert float(outcome.states[SCALE]) == 32768
    assert {int(value) for name, value in outcome.states.items() if name.endswith(":step")} == {LARGE[0] + 1}
