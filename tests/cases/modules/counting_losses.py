"""Losses that are means whose count depends on the data, written in the ways in which people write them."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["COUNTING_LOSSES", "Loss", "flat"]

Loss = Callable[[Tensor, Tensor], Tensor]
"""Of outputs [batch, positions, 4] and targets [batch, positions], classes or -100."""


def flat(loss: Loss) -> Loss:
    """The loss of all positions in one dim."""
    return lambda y, target: loss(y.flatten(0, 1), target.flatten())


def _masked(y: Tensor, target: Tensor) -> Tensor:
    mask = (target >= 0).to(y.dtype)
    return (y.square().mean(-1) * mask).sum() / mask.sum()


def _mean_by_mean(y: Tensor, target: Tensor) -> Tensor:
    mask = (target >= 0).to(y.dtype)
    return (y.exp().mean(-1) * mask).mean() / mask.mean()


def _divided_first(y: Tensor, target: Tensor) -> Tensor:
    mask = (target >= 0).to(y.dtype)
    return (y.square().sum(-1) * (mask / mask.sum())).sum()


def _times_the_inverse(y: Tensor, target: Tensor) -> Tensor:
    mask = (target >= 0).to(y.dtype)
    return (y.square().sum(-1) * mask).sum() * mask.sum().reciprocal() * 0.5


def _two_and_a_rest(y: Tensor, target: Tensor) -> Tensor:
    few = F.cross_entropy(y.flatten(0, 1), target.where(target < 2, -100).flatten())
    return 0.3 * F.cross_entropy(y.flatten(0, 1), target.flatten()) + few - y.square().mean()


COUNTING_LOSSES: dict[str, Loss] = {
    "ignored targets": flat(F.cross_entropy),
    "ignored targets, unflattened": lambda y, target: F.cross_entropy(y.transpose(1, 2), target),
    "class weights": flat(lambda y, target: F.cross_entropy(y, target, weight=torch.arange(1.0, 5.0))),
    "label smoothing": flat(lambda y, target: F.cross_entropy(y, target, label_smoothing=0.1)),
    "a mask": _masked,
    "a mean by a mean": _mean_by_mean,
    "divided first": _divided_first,
    "times the inverse": _times_the_inverse,
    "two means and a rest": _two_and_a_rest,
}
