"""A mean whose count depends on the data is the whole batch's, or refused: never a mean of means over different counts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from interpret import interpret
from oracle import train_eagerly
from torch import Tensor, nn

from planner.frontend import SGD, Program
from planner.ir.errors import InvalidProgram

_RNG = torch.Generator().manual_seed(0)
X = torch.randn(8, 6, generator=_RNG)
FULL = torch.tensor([0, 1, 2, 3, 3, 2, 1, 0])
PADDED = torch.tensor([0, -100, -100, -100, 3, 2, 1, 0])
BALANCED = torch.tensor([0, -100, 2, 3, 3, 2, -100, 0])


def _weighted(y: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(y, target, weight=torch.arange(1.0, 5.0))


def _masked(y: Tensor, target: Tensor) -> Tensor:
    mask = (target >= 0).to(y.dtype)
    return (y.square().mean(1) * mask).sum() / mask.sum().clamp(min=1)


def _program(
    loss: Callable[[Tensor, Tensor], Tensor], target: Tensor, data: Callable[[int], tuple[Tensor, Tensor]] | None = None
) -> Program:
    torch.manual_seed(0)
    return Program(nn.Linear(6, 4), (X, target), loss, SGD(lr=0.1), data=data)


REFUSED: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Tensor, str]] = {
    "ignored targets": (F.cross_entropy, PADDED, "count 1, 4 "),
    "class weights": (_weighted, torch.tensor([0, 0, 0, 0, 3, 3, 3, 3]), "count 4, 16 "),
    "a mask of one's own": (_masked, PADDED, "count 1, 4 "),
}


@pytest.mark.parametrize(("loss", "target", "counts"), REFUSED.values(), ids=list(REFUSED))
def test_micro_batches_of_different_counts_are_refused_with_the_counts(
    loss: Callable[[Tensor, Tensor], Tensor], target: Tensor, counts: str
) -> None:
    program = _program(loss, target)
    with pytest.raises(InvalidProgram, match=rf"the loss takes a mean .* 2 micro-batches of example_inputs {counts}.*micro_batches=1"):
        program.graph(2)
    found = interpret(program, program.graph(1), 1, 2)
    assert found.losses == pytest.approx(train_eagerly(program, 1, 2).losses, rel=1e-5)


@pytest.mark.parametrize(("loss", "target"), [(F.cross_entropy, FULL), (F.cross_entropy, BALANCED), (_masked, FULL), (_masked, BALANCED)])
def test_micro_batches_of_equal_counts_give_the_mean_of_the_whole_batch(loss: Callable[[Tensor, Tensor], Tensor], target: Tensor) -> None:
    program = _program(loss, target)
    assert interpret(program, program.graph(2), 2, 2).losses == pytest.approx(train_eagerly(program, 1, 2).losses, rel=1e-5)


def test_a_later_batch_of_different_counts_is_refused_with_its_step() -> None:
    program = _program(F.cross_entropy, FULL, lambda step: (X, PADDED if step == 3 else FULL))
    program.graph(2)
    batches = program.batches(2)
    assert torch.equal(batches(2)[1], FULL)
    with pytest.raises(InvalidProgram, match=r"2 micro-batches of the batch of step 3 count 1, 4 "):
        batches(3)
    assert torch.equal(program.batches(1)(3)[1], PADDED)


def test_a_mean_over_shapes_has_nothing_to_check() -> None:
    program = _program(lambda y, target: F.cross_entropy(y, target, reduction="none").mean(), PADDED)
    program.graph(2)
    program.batches(2)(0)
