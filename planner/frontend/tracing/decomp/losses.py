"""Losses and look-ups, so that the classes and the vocabulary can be split.

log softmax     s = x - max(x);  y = s - log sum exp s;   dx = g - exp(y) sum(g)
nll             -sum(mask pick(y, target)) / sum(mask);   dy = place(-mask, target)     (lookup.py: the classes can be split)
embedding       rows of a table by an op that knows which rows it holds (lookup.py: the vocabulary can be split)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from planner.frontend.tracing.decomp.precision import LOW_PRECISION
from planner.frontend.tracing.lookup import slots_of

__all__ = [
    "embedding",
    "embedding_backward",
    "log_softmax",
    "log_softmax_backward",
    "mse_loss",
    "mse_loss_backward",
    "nll_loss_backward",
    "nll_loss_forward",
]

regista = torch.ops.regista


def _reduced(value: Tensor, reduction: int, count: int | Tensor) -> Tensor:
    """torch's reduction codes: 0 none, 1 mean, 2 sum."""
    if reduction == 0:
        return value
    total = torch.sum(value)
    return total / count if reduction == 1 else total


def mse_loss(x: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    difference = x - target
    return _reduced(difference * difference, reduction, difference.numel())


def mse_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    difference = x - target
    return difference * (2.0 / difference.numel() if reduction == 1 else 2.0) * grad


def log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    wide = x.to(torch.float32) if x.dtype in LOW_PRECISION else x
    shifted = wide - torch.amax(wide, [dim], True) if x.ndim else wide - wide
    result = shifted - torch.log(torch.sum(torch.exp(shifted), [dim], True))
    return result if half_to_float else result.to(x.dtype)


def log_softmax_backward(grad: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    return (grad - torch.exp(output) * torch.sum(grad, [dim], True)).to(input_dtype)


@dataclass(frozen=True, slots=True)
class _Targets:
    """class_dim; ignored: mask of targets that do not count; index: legal indices with the class dim; weight of each target."""

    class_dim: int
    ignored: Tensor
    index: Tensor
    weight: Tensor


def _targets(x: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int) -> _Targets:
    class_dim = 1 if x.ndim > 1 else 0
    ignored = torch.eq(target, ignore_index)
    legal = torch.masked_fill(target, ignored, 0)
    if weight is None:
        each = torch.ne(target, ignore_index).to(x.dtype)
    else:
        each = torch.masked_fill(torch.gather(weight, 0, torch.reshape(legal, [-1])).view(target.shape), ignored, 0)
    return _Targets(class_dim, ignored, torch.unsqueeze(legal, class_dim), each)


def nll_loss_forward(x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int) -> tuple[Tensor, Tensor]:
    t = _targets(x, target, weight, ignore_index)
    classes = x.shape[t.class_dim]
    slots, _ = slots_of(classes)
    picked = torch.neg(torch.squeeze(regista.pick(x, t.class_dim, t.index, slots, classes), t.class_dim))
    # masked_fill and not a product: an ignored target's -inf would turn into nan
    losses = torch.masked_fill(picked if weight is None else picked * t.weight, t.ignored, 0)
    count = torch.sum(t.weight)
    return _reduced(losses, reduction, count), count


def nll_loss_backward(
    grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int, total_weight: Tensor
) -> Tensor:
    t = _targets(x, target, weight, ignore_index)
    scale = grad / total_weight if reduction == 1 else grad
    each = (t.weight if weight is not None or reduction else torch.ones_like(grad)) * scale
    source = torch.unsqueeze(torch.neg(torch.masked_fill(each, t.ignored, 0)), t.class_dim)
    classes = x.shape[t.class_dim]
    slots, step = slots_of(classes)
    return regista.place(source, t.class_dim, t.index, slots, classes, step)  # type: ignore[no-any-return]


def embedding(weight: Tensor, index: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False) -> Tensor:
    rows = weight.shape[0]
    return regista.embedding(weight, index, slots_of(rows)[0], rows)  # type: ignore[no-any-return]


def embedding_backward(grad: Tensor, index: Tensor, rows: int, padding_idx: int, scale_grad_by_freq: bool) -> Tensor:
    if scale_grad_by_freq:  # counts all indices, and stays what it is
        return NotImplemented  # type: ignore[no-any-return]
    slots, step = slots_of(rows)
    return regista.embedding_backward(grad, index, slots, rows, padding_idx, step)  # type: ignore[no-any-return]
