"""A mean whose count depends on the data, where it cannot be the whole batch's: it is told with its counts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from interpret import interpret
from oracle import train_eagerly
from torch import Tensor, nn

from planner.frontend import SGD, Program

_RNG = torch.Generator().manual_seed(0)
X = torch.randn(8, 6, generator=_RNG)
FULL = torch.tensor([0, 1, 2, 3, 3, 2, 1, 0])
PADDED = torch.tensor([0, -100, -100, -100, 3, 2, 1, 0])
BALANCED = torch.tensor([0, -100, 2, 3, 3, 2, -100, 0])


def _root(y: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(y, target).sqrt()


def _product(y: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(y, target) * y.square().mean()


def _masked(y: Tensor, target: Tensor) -> Tensor:
    mask = (target >= 0).to(y.dtype)
    return (y.square().mean(1) * mask).sum() / mask.sum().clamp(min=1)


def _program(
    loss: Callable[[Tensor, Tensor], Tensor], target: Tensor, data: Callable[[int], tuple[Tensor, Tensor]] | None = None
) -> Program:
    torch.manual_seed(0)
    return Program(nn.Linear(6, 4), (X, target), loss, SGD(lr=0.1), data=data)


TOLD: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Tensor, str]] = {
    "the root of a mean": (_root, PADDED, "count 1, 4 "),
    "a mean times another": (_product, PADDED, "count 1, 4 "),
}


@pytest.mark.parametrize(("loss", "target", "counts"), TOLD.values(), ids=list(TOLD))
def test_a_mean_that_the_loss_is_not_linear_in_is_told_once_with_the_counts(
    loss: Callable[[Tensor, Tensor], Tensor], target: Tensor, counts: str, caplog: pytest.LogCaptureFixture
) -> None:
    program = _program(loss, target)
    program.graph(1)
    assert not caplog.messages  # one micro-batch is the whole batch
    program.graph(2)
    program.batches(2)(0)
    (told,) = caplog.messages
    assert "2 micro-batches of example_inputs" in told and counts in told and "plan with one micro-batch" in told
    for m in (1, 2):
        found = interpret(program, program.graph(m), m, 2)
        assert found.losses == pytest.approx(train_eagerly(program, m, 2).losses, rel=1e-5)


@pytest.mark.parametrize(("loss", "target"), [(F.cross_entropy, FULL), (F.cross_entropy, BALANCED), (_masked, FULL), (_masked, BALANCED)])
def test_micro_batches_of_equal_counts_give_the_mean_of_the_whole_batch(loss: Callable[[Tensor, Tensor], Tensor], target: Tensor) -> None:
    program = _program(loss, target)
    assert interpret(program, program.graph(2), 2, 2).losses == pytest.approx(train_eagerly(program, 1, 2).losses, rel=1e-5)


def test_a_later_batch_of_different_counts_is_told_with_its_step(caplog: pytest.LogCaptureFixture) -> None:
    program = _program(F.cross_entropy, FULL, lambda step: (X, PADDED if step == 3 else FULL))
    program.graph(2)
    batches = program.batches(2)
    batches(2)
    assert not caplog.messages
    batches(3)
    (told,) = caplog.messages
    assert "2 micro-batches of the batch of step 3 count 1, 4 " in told and "let example_inputs be such a batch" in told


def test_a_mean_over_shapes_has_nothing_to_tell(caplog: pytest.LogCaptureFixture) -> None:
    program = _program(lambda y, target: F.cross_entropy(y, target, reduction="none").mean(), PADDED)
    program.graph(2)
    program.batches(2)(0)
    assert not caplog.messages
