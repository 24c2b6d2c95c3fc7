"""Modules as they come, performed with memory that is given to kernels for their results: equal to plain PyTorch.

The reference performer, which most laws of modules are told with, gives none.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from matrix import roomy_cluster
from oracle import train_eagerly
from torch import Tensor, nn

import regista
from planner.frontend import SGD, Program
from planner.parallelism.make import PlanOptions, make_plan
from tests.planner.frontend.test_user_models import BATCH, ROWS
from tests.planner.frontend.test_user_models import program as user_program

STEPS = 2


def assert_trains_as_in_torch(source: Program, options: PlanOptions, micro_batches: int = 1) -> None:
    plan = make_plan(source.graph(micro_batches), model="m", batch_size=BATCH, cluster=roomy_cluster(2), options=options)
    outcome = regista.run(plan, source, steps=STEPS, performer=regista.Performer.THREADS, gradients=True)
    wanted = train_eagerly(source, micro_batches, STEPS)
    assert outcome.losses == pytest.approx(wanted.losses, rel=1e-5)
    for name, value in (wanted.parameters | wanted.buffers).items():
        torch.testing.assert_close(outcome.states[name], value, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")  # type: ignore[misc]


@pytest.mark.representatives(*list(ROWS)[1::3])
@pytest.mark.parametrize("name", ROWS)
def test_modules_of_users_train_as_in_torch(name: str) -> None:
    assert_trains_as_in_torch(user_program(name), PlanOptions(pins=("input.0=S(0)",)))


def part_of_channels(x: Tensor) -> Tensor:
    return x.split([4, 2], 1)[0]


def channels_from_the_end(x: Tensor) -> Tensor:
    return x.transpose(1, 3)


def every_second_row(x: Tensor) -> Tensor:
    return x[:, :, ::2]


def channels_of_a_sequence(x: Tensor) -> Tensor:
    return x.flatten(2).transpose(1, 2)


class NormOfAView(nn.Module):
    """Features, of which a view is normalised; the result is kept for the backward part."""

    def __init__(self, view: Callable[[Tensor], Tensor], norm: nn.Module) -> None:
        super().__init__()
        self.features, self.norm, self.view = nn.Conv2d(3, 6, 1), norm, view

    def forward(self, x: Tensor) -> Tensor:
        return (self.norm(self.view(self.features(x))) ** 3).flatten(1).mean(1)


VIEWS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[], nn.Module]]] = {
    "batch norm of a part of the channels": (part_of_channels, lambda: nn.BatchNorm2d(4)),
    "batch norm of the last dim": (channels_from_the_end, lambda: nn.BatchNorm2d(6)),
    "batch norm of every second row": (every_second_row, lambda: nn.BatchNorm2d(6)),
    "batch norm of a sequence": (channels_of_a_sequence, lambda: nn.BatchNorm1d(36)),
    "group norm of a part of the channels": (part_of_channels, lambda: nn.GroupNorm(2, 4)),
    "instance norm of a part of the channels": (part_of_channels, lambda: nn.InstanceNorm2d(4, affine=True)),
    "layer norm of the first dim": (channels_from_the_end, lambda: nn.LayerNorm(6)),
}


@pytest.mark.parametrize("options", [PlanOptions(), PlanOptions(stages=2)], ids=["one stage", "two stages"])
@pytest.mark.parametrize("row", VIEWS)
def test_a_norm_of_a_view_trains_as_in_torch(row: str, options: PlanOptions) -> None:
    torch.manual_seed(0)
    view, norm = VIEWS[row]
    source = Program(NormOfAView(view, norm()), (torch.randn(BATCH, 3, 6, 6), torch.randn(BATCH)), nn.functional.mse_loss, SGD(lr=0.05))
    assert_trains_as_in_torch(source, options)
