"""CTC loss trains as in plain PyTorch: a mean of per-sample losses, each by its target's length, whatever cuts the batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from oracle import train_eagerly
from six_ways import assert_trains_alike, quick_ways
from torch import Tensor, nn

from planner.frontend import SGD, Program
from planner.frontend.recurrent import ctc_losses
from planner.ir.errors import InvalidProgram

STEPS = 2
_RNG = torch.Generator().manual_seed(0)
X = torch.randn(8, 12, 5, generator=_RNG)
TARGETS = torch.randint(1, 7, (8, 4), generator=_RNG)
INPUT_LENGTHS = torch.tensor([12, 11, 10, 12, 9, 12, 8, 2])
TARGET_LENGTHS = torch.tensor([4, 3, 2, 4, 1, 0, 2, 4])
"""The last sample has fewer steps than targets: its loss is infinite."""

Loss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class Listener(nn.Module):
    """Logarithms of probabilities, time first; x [batch, 12, 5] -> [12, batch, 7]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.GRU(5, 8, batch_first=True)
        self.head = nn.Linear(8, 7)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x)[0]).log_softmax(-1).transpose(0, 1)
        return out


LOSSES: dict[str, Loss] = {
    "mean": partial(F.ctc_loss, zero_infinity=True),
    "sum": partial(F.ctc_loss, zero_infinity=True, reduction="sum"),
    "per sample": lambda y, t, of_x, of_t: F.ctc_loss(y, t, of_x, of_t, zero_infinity=True, reduction="none").square().mean(),
    "module": nn.CTCLoss(zero_infinity=True),
}


@quick_ways
@pytest.mark.parametrize("loss", [loss if loss == "mean" else pytest.param(loss, marks=pytest.mark.thorough) for loss in LOSSES])
def test_ctc_loss_trains_as_in_plain_pytorch(way: str, loss: str) -> None:
    program = Program(Listener(), (X, TARGETS, INPUT_LENGTHS, TARGET_LENGTHS), LOSSES[loss], optimizer=SGD(lr=0.1))
    assert_trains_alike(program, way, lambda micro_batches: train_eagerly(program, micro_batches, STEPS), STEPS)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("zero_infinity", [False, True])
@pytest.mark.parametrize("listed", [False, True], ids=["lengths as tensors", "lengths as lists"])
def test_ctc_loss_computes_what_torch_computes(reduction: str, zero_infinity: bool, listed: bool) -> None:
    def computed() -> tuple[Tensor, Tensor]:
        x = X.transpose(0, 1).repeat(1, 1, 2)[..., :7].double().detach().requires_grad_()
        lengths = (INPUT_LENGTHS.tolist(), TARGET_LENGTHS.tolist()) if listed else (INPUT_LENGTHS, TARGET_LENGTHS)
        loss = F.ctc_loss(x.log_softmax(-1), TARGETS, *lengths, reduction=reduction, zero_infinity=zero_infinity)
        loss.sum().backward()
        assert x.grad is not None
        return loss.detach(), x.grad

    expected = computed()
    with ctc_losses():
        torch.testing.assert_close(computed(), expected, rtol=0, atol=0, equal_nan=True)


def test_one_sequence_without_a_batch_has_the_loss_of_torch() -> None:
    given = X[0].repeat(1, 2)[:, :7].log_softmax(-1), TARGETS[0], torch.tensor(12), torch.tensor(4)
    expected = [F.ctc_loss(*given, reduction=reduction) for reduction in ("none", "mean")]
    with ctc_losses():
        assert expected == [F.ctc_loss(*given, reduction=reduction) for reduction in ("none", "mean")]


def test_targets_in_one_row_and_lengths_of_another_batch_are_refused_with_the_rewrite() -> None:
    flat = torch.cat([row[:length] for row, length in zip(TARGETS, TARGET_LENGTHS.tolist(), strict=True)])

    def in_one_row(y: Tensor, input_lengths: Tensor, target_lengths: Tensor) -> Tensor:
        return F.ctc_loss(y, flat, input_lengths, target_lengths)

    def listed(y: Tensor, targets: Tensor) -> Tensor:
        return F.ctc_loss(y, targets, [12] * 8, [2] * 8)

    with pytest.raises(InvalidProgram, match=r"of shape \[20\], lets a value decide .* of shape \[N, S\]"):
        Program(Listener(), (X, INPUT_LENGTHS, TARGET_LENGTHS), in_one_row).graph()
    with pytest.raises(InvalidProgram, match=r"8 lengths for 4 samples; .* a tensor among the inputs"):
        Program(Listener(), (X, TARGETS), listed).graph(2)
