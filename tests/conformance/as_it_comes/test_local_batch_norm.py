"""Batch norm local: a plan trains as torch's DistributedDataParallel does, whose devices normalise their own part of the batch."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import pytest
import torch
import torch.nn.functional as F
from matrix import assert_transparent, roomy_cluster
from oracle import Outcome, train_eagerly
from torch import Tensor, nn

import regista
from backend import perform
from planner.frontend import SGD, Program
from planner.ir.errors import InvalidProgram, Unsupported

STEPS = 3


class Images(nn.Module):
    """Images [batch, 3, 4, 4] -> [batch, 5]; three kinds of batch norm."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.flat, self.last = nn.BatchNorm1d(64, affine=False), nn.Linear(64, 5)
        self.untracked = nn.BatchNorm1d(5, track_running_stats=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.untracked(self.last(self.flat(self.norm(self.conv(x)).relu().flatten(1))))
        return out


def _program(module: nn.Module | None = None, batch: int = 64) -> Program:
    """A batch of 64, so that a quarter has 16 samples: of 4 samples a standard deviation can be so small that rounding by itself is seen."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(batch, 3, 4, 4, generator=generator) * torch.linspace(0.5, 2, batch).view(-1, 1, 1, 1)
    return Program(module or Images(), (x, torch.randn(batch, 5, generator=generator)), F.mse_loss, SGD(lr=0.1), name="images")


def as_distributed_data_parallel(program: Program, parts: int, micro_batches: int, steps: int) -> Outcome:
    """One copy of the module per device, each on its own part of every micro-batch; gradients are averaged; buffers are the first copy's."""
    modules = [copy.deepcopy(program.module) for _ in range(parts)]
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in modules]
    losses: list[float] = []
    for step in range(steps):
        total = 0.0
        for module in modules:
            module.zero_grad()
        for index in range(micro_batches):
            micro_batch = program.micro_batch(program.batch(step), micro_batches, index)
            for module, part in zip(modules, zip(*(t.chunk(parts) for t in micro_batch), strict=True), strict=True):
                loss = program.loss_of(module, part) / micro_batches
                loss.backward()
                total += loss.item() / parts
        for given in zip(*(module.parameters() for module in modules), strict=True):
            mean = torch.stack([p.grad for p in given if p.grad is not None]).mean(0)
            for p in given:
                p.grad = mean.clone()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(total)
    first = modules[0]
    return Outcome(
        losses=tuple(losses),
        gradients_of_last_step={n: p.grad.clone() for n, p in first.named_parameters() if p.grad is not None},
        parameters={n: p.detach().clone() for n, p in first.named_parameters()},
        buffers={n: b.detach().clone() for n, b in first.named_buffers()},
    )


WAYS: Mapping[str, tuple[int, int, dict[str, object]]] = {
    "data": (2, 2, {"pins": ("input.0=S(0)",)}),
    "searched": (2, 2, {}),
    "four": (4, 4, {}),
    "micro-batches": (2, 2, {"micro_batches": 2}),
    "greedy": (2, 2, {"method": "greedy"}),
    "two axes": (4, 2, {"mesh": (2, 2)}),
    "stages": (4, 2, {"stages": 2, "micro_batches": 2}),
    "features split": (2, 2, {"pins": ("conv.weight=S(0)",)}),
}


@pytest.mark.representatives("micro-batches")
@pytest.mark.parametrize("way", WAYS)
def test_local_batch_norm_trains_as_distributed_data_parallel_does(way: str) -> None:
    devices, parts, options = WAYS[way]
    program = _program()
    plan = regista.plan(program, roomy_cluster(devices), batch_norm="local", **options)  # type: ignore[arg-type]
    assert plan.options["batch_norm"] == f"local, parts: {parts}"
    local = program.with_local_batch_norm(parts)
    outcome = perform(plan, local.initial_state(plan.micro_batches), local.batch, STEPS, gradients=True)
    assert_transparent(outcome, as_distributed_data_parallel(program, parts, plan.micro_batches, STEPS))


def test_a_run_takes_the_batch_norm_of_its_plan() -> None:
    program = _program()
    plan = regista.plan(program, roomy_cluster(2), batch_norm="local")
    losses = regista.run(plan, program, steps=2, performer=regista.Performer.REFERENCE).losses
    assert losses == pytest.approx(as_distributed_data_parallel(program, 2, 1, 2).losses, rel=1e-5)
    assert abs(losses[0] - train_eagerly(program, 1, 1).losses[0]) > 1e-3


def test_an_evaluation_has_the_running_statistics_whatever_was_asked_for() -> None:
    program = _program(nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 5)))
    assert program.with_local_batch_norm(2).evaluating().graph().ops == program.evaluating().graph().ops


@pytest.mark.parametrize(
    ("program", "options", "error", "words"),
    [
        (_program(), {"batch_norm": "lokal"}, Unsupported, "'lokal' is not known; choose global or local"),
        (_program(nn.Sequential(nn.Flatten(), nn.Linear(48, 5))), {"batch_norm": "local"}, Unsupported, "has no batch norm"),
        (
            _program(nn.Sequential(nn.SyncBatchNorm(3), nn.Flatten(), nn.Linear(48, 5))),
            {"batch_norm": "local"},
            Unsupported,
            "0 is a SyncBatchNorm",
        ),
        (_program(), {"batch_norm": "local", "stages": None}, Unsupported, "say how many stages"),
        (_program(batch=15), {"batch_norm": "local"}, InvalidProgram, "each of 2 parts .* a micro-batch has 15"),
    ],
)
def test_what_cannot_be_local_is_refused(program: Program, options: dict[str, object], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        regista.plan(program, roomy_cluster(2), **options)  # type: ignore[arg-type]
