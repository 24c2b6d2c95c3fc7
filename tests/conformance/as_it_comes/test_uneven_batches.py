"""A batch that does not divide: the plan equals plain PyTorch on the whole batch, whatever cuts it, and what padding would change is refused."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from counting_losses import COUNTING_LOSSES, Loss
from matrix import assert_transparent
from oracle import train_eagerly
from rich.console import Console
from torch import Tensor, nn

import regista
from planner.frontend import SGD, AdamW, Program
from planner.frontend.padding import PaddedProgram
from planner.ir.errors import InvalidProgram, RegistaError, Unsupported
from regista.views.tables.show import show_plan

pytestmark = pytest.mark.filterwarnings("ignore:.*devices on .* cores", "ignore:.*leaves .* states whole", "ignore:.*splits nothing")

STEPS = 2
SAMPLES = 7

WAYS: dict[str, tuple[int, dict[str, Any]]] = {
    "three micro-batches": (1, {"micro_batches": 3}),
    "data": (4, {"pins": ["input.*=S(0)"]}),
    "zero 1": (4, {"zero": 1}),
    "zero 3": (2, {"zero": 3}),
    "stages": (2, {"stages": 2, "micro_batches": 3}),
    "stages of data": (4, {"stages": 2, "micro_batches": 2, "pins": ["input.*=S(0)"]}),
    "data, micro-batches": (2, {"micro_batches": 4, "pins": ["input.*=S(0)"]}),
}


class Tagger(nn.Module):
    """Classes of each position; x [batch, 3, 6] -> [batch, 3, 4]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


class Pixels(nn.Module):
    """Batch norm between convolutions; x [batch, 2, 4, 4] -> [batch, 4]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(16, 4)
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


_RNG = torch.Generator().manual_seed(0)
X, IMAGES = torch.randn(SAMPLES, 3, 6, generator=_RNG), torch.randn(SAMPLES, 2, 4, 4, generator=_RNG)
TARGETS, CLASSES = torch.randint(0, 4, (SAMPLES, 3), generator=_RNG), torch.randint(0, 4, (SAMPLES,), generator=_RNG)
TARGETS[1], TARGETS[0, 0], TARGETS[6, 2] = -100, -100, -100

LOSSES: dict[str, Loss] = {
    **COUNTING_LOSSES,
    "mean square": lambda y, target: F.mse_loss(y, target.unsqueeze(-1).expand_as(y).to(y.dtype)),
    "mean of means": lambda y, target: (y.square().sum(-1) * target.clamp(0)).mean(1).mean(0) + 0.1 * y.abs().mean(),
    "by the batch": lambda y, target: (y.square().sum(-1) * target.clamp(0)).sum() / y.shape[0],
}

CHEAP = {("ignored targets", "stages of data"), ("mean square", "three micro-batches")}


def assert_equals_plain_pytorch(program: Program, way: str, performer: regista.Performer = regista.Performer.REFERENCE) -> regista.Plan:
    devices, options = WAYS[way]
    plan = regista.plan(program, f"local:{devices}", **options)
    outcome = regista.run(plan, program, steps=STEPS, performer=performer, gradients=True)
    assert_transparent(outcome, train_eagerly(program, 1, STEPS))
    assert plan.options["samples"] == str(program.batch_size) and plan.batch_size > program.batch_size
    return plan


@pytest.mark.parametrize(
    ("name", "way"),
    [pytest.param(name, way, marks=() if (name, way) in CHEAP else pytest.mark.thorough) for name in LOSSES for way in WAYS],
)
def test_a_batch_that_does_not_divide_trains_as_plain_pytorch_trains_it_whole(name: str, way: str) -> None:
    assert_equals_plain_pytorch(Program(Tagger(), (X, TARGETS), LOSSES[name], SGD(lr=0.1)), way)


@pytest.mark.thorough
@pytest.mark.parametrize("samples", [5, 6, 9, 10])
@pytest.mark.parametrize("way", WAYS)
def test_any_number_of_samples_trains_as_plain_pytorch_trains_them(samples: int, way: str) -> None:
    rng = torch.Generator().manual_seed(samples)
    batch = torch.randn(samples, 3, 6, generator=rng), torch.randint(0, 4, (samples, 3), generator=rng)
    program = Program(Tagger(), batch, LOSSES["two means and a rest"], AdamW(lr=1e-2))
    devices, options = WAYS[way]
    plan = regista.plan(program, f"local:{devices}", **options)
    outcome = regista.run(plan, program, steps=STEPS, performer=regista.Performer.REFERENCE, gradients=True)
    assert_transparent(outcome, train_eagerly(program, 1, STEPS))


def test_zero_alone_pads_no_batch_that_is_smaller_than_the_devices() -> None:
    """Most devices would compute on nothing but padding."""
    program = Program(Tagger(), (X[:3], TARGETS[:3]), LOSSES["mean square"], AdamW(lr=1e-2))
    plan = regista.plan(program, "local:4", zero=1)
    assert plan.batch_size == 3 and "samples" not in plan.options
    outcome = regista.run(plan, program, steps=STEPS, performer=regista.Performer.REFERENCE, gradients=True)
    assert_transparent(outcome, train_eagerly(program, 1, STEPS))


@pytest.mark.parametrize("way", ["data", *(pytest.param(way, marks=pytest.mark.thorough) for way in ("zero 1", "zero 3"))])
def test_batch_norm_of_one_padded_micro_batch_sees_its_own_samples_alone(way: str) -> None:
    assert_equals_plain_pytorch(Program(Pixels(), (IMAGES, CLASSES), F.cross_entropy, SGD(lr=0.1)), way)


@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
def test_threads_train_a_batch_that_does_not_divide(way: str) -> None:
    assert_equals_plain_pytorch(
        Program(Tagger(), (X, TARGETS), LOSSES["two means and a rest"], AdamW(lr=1e-2)), way, regista.Performer.THREADS
    )


@pytest.mark.thorough
@pytest.mark.processes
@pytest.mark.parametrize("way", ["data", "zero 3", "stages"])
def test_processes_train_a_batch_that_does_not_divide(way: str) -> None:
    assert_equals_plain_pytorch(
        Program(Tagger(), (X, TARGETS), LOSSES["two means and a rest"], AdamW(lr=1e-2)), way, regista.Performer.GLOO
    )


def test_a_plan_that_counts_padded_samples_is_seen_by_this_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(Tagger(), (X, TARGETS), LOSSES["mean square"], SGD(lr=0.1))
    ours = PaddedProgram.batch
    monkeypatch.setattr(PaddedProgram, "batch", lambda self, step: (*ours(self, step)[:-1], torch.ones(9)))
    with pytest.raises(AssertionError):
        assert_equals_plain_pytorch(program, "three micro-batches")


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (
            Program(Pixels(), (IMAGES, CLASSES), F.cross_entropy),
            r"module layers\.1\) computes samples from a sum over their micro-batch; .* choose a number of micro-batches that divides",
        ),
        (
            Program(Tagger(), (X, TARGETS), lambda y, target: (y.square().sum(-1) * target.clamp(0)).mean().sqrt()),
            "is not linear in a sum over the samples of a micro-batch; .* choose a number of micro-batches that divides",
        ),
        (
            Program(Tagger(), (X, TARGETS), lambda y, target: ((y[:, 0] @ y[:, 1].t()) * target[:, :1]).square().mean()),
            r"aten\.mm.* may compute a sample's values from those of others",
        ),
        (
            Program(Tagger(), (X, TARGETS), lambda y, target: (y.square().sum(-1) * target.clamp(0)).sum() + y.new_full((), y.shape[0])),
            "follows from the size of the batch, and is no mean",
        ),
    ],
    ids=["batch norm", "a root of a mean", "pairs of samples", "a number of the batch"],
)
def test_what_padding_would_change_is_refused_by_name(program: Program, says: str) -> None:
    with pytest.raises(Unsupported, match=says):
        regista.plan(program, "local:1", micro_batches=3)


def test_more_micro_batches_than_samples_are_refused_with_the_divisors() -> None:
    with pytest.raises(InvalidProgram, match=r"8 micro-batches do not divide a batch of 7; choose one of \[1, 7\]"):
        regista.plan(Program(Tagger(), (X, TARGETS), LOSSES["mean square"]), "local:1", micro_batches=8)


def test_outputs_of_a_padded_evaluation_and_described_data_are_refused() -> None:
    program = Program(Tagger(), (X, TARGETS), LOSSES["mean square"])
    with pytest.raises(Unsupported, match="a batch of 7 samples would be padded to 9, and outputs are of its own samples alone"):
        regista.plan(program, "local:1", micro_batches=3, mode="eval", outputs=True)
    plan = regista.plan(program, "local:1", micro_batches=3)
    with pytest.raises(RegistaError, match="a description of data serves whole batches"):
        regista.run(plan, program, steps=1, performer=regista.Performer.REFERENCE, data="synthetic:x=float32[3,6],y=int64[3]")


@pytest.mark.thorough
def test_an_evaluation_of_a_batch_that_does_not_divide_has_the_loss_of_the_whole() -> None:
    program = Program(Tagger(), (X, TARGETS), LOSSES["two means and a rest"])
    plan = regista.plan(program, "local:2", stages=2, micro_batches=3, mode="eval")
    outcome = regista.run(plan, program, steps=1, performer=regista.Performer.REFERENCE)
    assert outcome.losses[0] == pytest.approx(program.loss_of(program.module, (X, TARGETS)).item(), rel=1e-5)


@pytest.mark.thorough
def test_batches_of_the_users_own_are_padded_as_they_come() -> None:
    program = Program(Tagger(), (X, TARGETS), LOSSES["ignored targets"], SGD(lr=0.1))
    plan = regista.plan(program, "local:1", micro_batches=3)
    other = X.flip(0), TARGETS.flip(0)
    outcome = regista.run(plan, program, steps=1, performer=regista.Performer.REFERENCE, data=lambda step: other)
    assert outcome.losses[0] == pytest.approx(program.loss_of(program.module, other).item(), rel=1e-5)


def _shown(plan: regista.Plan) -> str:
    console = Console(width=400, record=True, file=StringIO())
    console.print(show_plan(plan))
    return console.export_text()


def test_a_plan_says_how_its_batch_was_padded() -> None:
    shown = _shown(regista.plan(Program(Tagger(), (X, TARGETS), LOSSES["mean square"]), "local:1", micro_batches=3))
    assert (
        "3 micro-batches of 3: the batch of 7 samples does not divide, so it is padded with 2 that count nothing (22.2% of the work)"
        in shown
    )


def test_a_plan_says_over_what_batch_norm_takes_its_statistics() -> None:
    program = Program(Pixels(), (IMAGES, CLASSES), F.cross_entropy)
    assert "global: statistics of the whole micro-batch, as on one device" in _shown(regista.plan(program, "local:1"))
    even = Program(Pixels(), (IMAGES[:6], CLASSES[:6]), F.cross_entropy)
    assert "local, parts: 2: statistics of each of these parts" in _shown(regista.plan(even, "local:2", batch_norm="local"))
    tagger = Program(Tagger(), (X, TARGETS), LOSSES["mean square"])
    assert "batch norm" not in _shown(regista.plan(tagger, "local:1"))
