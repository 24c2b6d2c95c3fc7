"""A mean whose count depends on the data is the whole batch's, whatever cuts the batch: the plan equals plain PyTorch on the whole batch."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from counting_losses import COUNTING_LOSSES, Loss, flat
from oracle import train_eagerly
from rich.console import Console
from six_ways import SIX_WAYS, assert_trains_alike, planned
from torch import Tensor, nn

from backend import perform
from planner.frontend import SGD, Program
from planner.ir.errors import InvalidPlan
from regista.data import loader, with_data
from regista.views.tables.show import show_plan

STEPS = 3
_RNG = torch.Generator().manual_seed(0)
X = torch.randn(8, 3, 6, generator=_RNG)
TARGETS = torch.randint(0, 4, (8, 3), generator=_RNG)
TARGETS[1], TARGETS[0, 0], TARGETS[6, 2], TARGETS[2:4] = -100, -100, -100, -100
"""8 samples of 3 targets; some are ignored, in one half more than in the other, all of samples 2 and 3."""


class Tagger(nn.Module):
    """A class for each position; x [batch, 3, 6] -> [batch, 3, 4]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


def _masked_at_least_one(y: Tensor, target: Tensor) -> Tensor:
    mask = target >= 0
    return torch.where(mask, y.square().mean(-1), 0.0).sum() / mask.sum().clamp(min=1)


LOSSES: dict[str, Loss] = {
    **COUNTING_LOSSES,
    "nll": flat(lambda y, target: F.nll_loss(y.log_softmax(-1), target)),
    "a mask of at least one": _masked_at_least_one,
}

CASES = [
    pytest.param(name, way, marks=() if (name, way) in (("ignored targets", "stages"), ("class weights", "data")) else pytest.mark.thorough)
    for name in LOSSES
    for way in SIX_WAYS
]


@pytest.mark.parametrize(("name", "way"), CASES)
def test_a_mean_whose_count_depends_on_the_data_is_that_of_the_whole_batch(name: str, way: str, caplog: pytest.LogCaptureFixture) -> None:
    program = Program(Tagger(), (X, TARGETS), LOSSES[name], SGD(lr=0.1))
    plan = assert_trains_alike(program, way, lambda _: train_eagerly(program, 1, STEPS), STEPS)
    assert [entry.whole_of for entry in plan.batch_inputs] == [None, None, "input.1"]
    program.batches(plan.micro_batches)(0)
    assert not caplog.messages


def _saved(folder: Path) -> str:
    for name, tensor in (("x", X), ("y", TARGETS)):
        np.save(folder / f"{name}.npy", tensor.numpy())
    return f"arrays:{folder}/x.npy,{folder}/y.npy"


def test_a_reader_gives_every_micro_batch_the_whole_batchs_targets(tmp_path: Path) -> None:
    program = Program(Tagger(), (X, TARGETS), LOSSES["ignored targets"], SGD(lr=0.1))
    plan = planned(program, "stages of data")
    served = loader(plan, _saved(tmp_path))
    state = program.initial_state(plan.micro_batches)
    assert perform(plan, state, served, 1).losses == perform(plan, state, lambda step: served(step), 1).losses
    assert torch.equal(served(0)[1].sort(0).values, TARGETS.sort(0).values)


def test_a_chain_of_loading_actors_is_refused_for_counts_of_the_whole_batch(tmp_path: Path) -> None:
    program = Program(Tagger(), (X, TARGETS), LOSSES["ignored targets"], SGD(lr=0.1))
    with pytest.raises(InvalidPlan, match=r"counts over the whole of input\.1.* plan with one micro-batch"):
        with_data(planned(program, "stages"), _saved(tmp_path))


def test_a_plan_says_that_its_means_are_the_whole_batchs() -> None:
    program = Program(Tagger(), (X, TARGETS), LOSSES["ignored targets"], SGD(lr=0.1))
    console = Console(width=400, record=True, file=StringIO())
    console.print(show_plan(planned(program, "accumulated")))
    assert "input.1 whole as well (means divide by what the whole batch counts)" in console.export_text()
