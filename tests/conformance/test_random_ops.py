"""Random ops: N devices draw what one device draws, in every layout, pipeline and micro-batching."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest
import torch
from matrix import assert_transparent, roomy_cluster
from oracle import Outcome as Eager
from oracle import train_eagerly
from torch import Tensor, nn

import regista
from backend import perform, run
from backend.checkpoint import Saved
from planner.frontend import AdamW, Program
from planner.ir.plan import Plan
from planner.parallelism.make import PlanOptions, make_plan
from planner.schedule import Schedule

STEPS = 3


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.inner, self.outer = nn.Dropout(0.1), nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.outer(self.down(self.inner(torch.relu(self.up(x)))))
        return out


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(x)
        return out


@cache
def program() -> Program:
    torch.manual_seed(0)
    batch = torch.randn(16, 16), torch.randn(16, 4)
    return Program(Net(), batch, nn.functional.mse_loss, AdamW(lr=1e-2, eps=1e-3), seed=5)


@cache
def expected(micro_batches: int) -> Eager:
    return train_eagerly(program(), micro_batches, STEPS)


COLUMNS = ("input.0={1}", "blocks.*.up.weight={0}S(0)", "blocks.*.up.bias={0}S(0)", "blocks.*.down.weight={0}S(1)")
WAYS: Mapping[str, tuple[int, Mapping[str, object]]] = {
    "one": (1, {}),
    "data2": (2, {"pins": ("input.0=S(0)",)}),
    "tensor2": (2, {"pins": tuple(pin.format("", "B") for pin in COLUMNS)}),
    "data2_tensor2": (4, {"mesh": (2, 2), "pins": tuple(pin.format("B,", "S(0),B") for pin in COLUMNS)}),
    "features2": (2, {"pins": ("out:blocks.?=S(1)",)}),
    "accumulated": (2, {"pins": ("input.0=S(0)",), "micro_batches": 4}),
    "zero1": (2, {"pins": ("input.0=S(0)",), "zero": 1}),
    "zero2": (2, {"pins": ("input.0=S(0)",), "zero": 2, "micro_batches": 2}),
    "zero3": (2, {"pins": ("input.0=S(0)",), "zero": 3}),
    "recompute": (2, {"pins": ("input.0=S(0)",), "recompute": True}),
    "recompute_share": (2, {"pins": ("input.0=S(0)",), "recompute": "60%"}),
    "pipeline2": (2, {"stages": 2, "micro_batches": 4}),
    "pipeline2_data2": (4, {"stages": 2, "micro_batches": 2, "pins": ("input.0=S(0)",)}),
    "gpipe2": (2, {"stages": 2, "micro_batches": 4, "schedule": Schedule.GPIPE}),
    "recompute_pipeline2": (2, {"stages": 2, "micro_batches": 4, "recompute": True}),
    "interleaved2": (2, {"stages": 2, "micro_batches": 4, "schedule": Schedule.INTERLEAVED, "interleave": 2}),
    "zb_h1": (2, {"stages": 2, "micro_batches": 4, "schedule": Schedule.ZB_H1}),
}


@cache
def planned(way: str) -> Plan:
    devices, options = WAYS[way]
    asked = PlanOptions(**options)  # type: ignore[arg-type]
    graph = program().graph(asked.micro_batches or 1)
    return make_plan(graph, model="net", batch_size=16, cluster=roomy_cluster(devices), options=asked)


@pytest.mark.parametrize("way", WAYS)
def test_a_plan_with_dropout_equals_plain_pytorch_with_the_same_draws(way: str) -> None:
    plan, made = planned(way), program()
    outcome = perform(plan, made.initial_state(plan.micro_batches), made.batch, STEPS, gradients=True)
    assert_transparent(outcome, expected(plan.micro_batches))
    assert int(outcome.states["random:steps"]) == STEPS and int(outcome.states["random:seed"]) == 5


def test_the_number_of_micro_batches_changes_no_mask() -> None:
    """The loss is a mean over samples, so only the masks could make one pass over the batch another function than four over its slices."""
    assert expected(4).losses == pytest.approx(expected(1).losses, rel=1e-6)


def test_steps_and_seeds_draw_differently() -> None:
    other = Program(program().module, program().example_inputs, nn.functional.mse_loss, AdamW(lr=0.0), seed=6)
    still = Program(program().module, program().example_inputs, nn.functional.mse_loss, AdamW(lr=0.0), seed=5)
    losses = [*train_eagerly(still, 1, STEPS).losses, *train_eagerly(other, 1, STEPS).losses]
    assert len(set(losses)) == 2 * STEPS


@pytest.mark.processes
@pytest.mark.representatives("pipeline2")
@pytest.mark.parametrize("way", ["pipeline2", "zero3", "data2_tensor2", "interleaved2"])
def test_a_plan_with_dropout_on_processes_equals_plain_pytorch_with_the_same_draws(way: str) -> None:
    plan, made = planned(way), program()
    outcome = run(plan, made.initial_state(plan.micro_batches), made.batch, STEPS, gradients=True, timeout_s=120)
    assert_transparent(outcome, expected(plan.micro_batches))


@pytest.mark.processes
def test_a_run_that_resumes_draws_on_to_the_last_bit_and_in_another_layout(tmp_path: Path) -> None:
    plan, made = planned("data2"), program()
    whole = run(plan, made.initial_state(1), made.batch, 4, timeout_s=120)
    first = regista.run(plan, made, steps=2, checkpoint=str(tmp_path), timeout_s=120)
    moved = perform(planned("pipeline2"), Saved(str(tmp_path / "step-00000002")), made.batch, 2)
    rest = regista.run(plan, made, steps=4, checkpoint=str(tmp_path), resume=True, timeout_s=120)
    assert first.losses + rest.losses == whole.losses
    assert int(rest.states["random:steps"]) == 4
    for name, value in whole.states.items():
        assert torch.equal(rest.states[name], value), name
    assert moved.losses == pytest.approx(whole.losses[2:], rel=1e-5)
