"""Updates of the rows of a table that the batch looked up: what torch.optim does with sparse gradients, without a tensor of the table's shape.

    regista.rows_sgd        table, gradients, indices, slots, lr, table's numbers                                        -> table
    regista.rows_adagrad    table, gradients, indices, slots, sum, step, lr, lr_decay, eps, table's numbers              -> table, sum, step
    regista.rows_adam       table, gradients, indices, slots, exp_avg, exp_avg_sq, step, lr, betas, eps, table's numbers -> table, ..., step

One gradient [*i, D] and one index [*i] per look-up of the step, whole; slots as in planner.frontend.tracing.lookup: a part of the table updates
its own rows.  The table's numbers are its rows (``extent``) and the padding index of each look-up (-1: none).  Rows that were looked up several
times take the sum of their gradients once (SparseAdam and Adagrad coalesce).

Source: torch.optim._functional.sparse_adam; torch.optim.adagrad._single_tensor_adagrad and sgd, the branches of sparse gradients; torch 2.13.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from planner.frontend.optim.updates import Rate, number
from planner.frontend.tracing.lookup import mine_of

__all__ = ["KERNELS", "in_place"]


def _looked_up(
    table: Tensor, gradients: Sequence[Tensor], indices: Sequence[Tensor], slots: Tensor, extent: int, padding: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """(rows of this part in rising order, each once; the sum of the gradients of each)."""
    rows, values = [], []
    for gradient, index, left_out in zip(gradients, indices, padding, strict=True):
        flat, value = index.reshape(-1), gradient.reshape(-1, gradient.shape[-1])
        if table.shape[0] == extent:
            mine, place = flat != left_out, flat
        else:
            mine, place = mine_of(flat, slots, table.shape[0], extent)
            mine = mine & (flat != left_out)
        rows.append(place[mine])
        values.append(value[mine])
    shape = (table.shape[0], gradients[0].shape[-1])
    summed = torch.sparse_coo_tensor(torch.cat(rows)[None], torch.cat(values), shape, check_invariants=False).coalesce()
    return summed.indices()[0], summed.values()


def _sgd(table: Tensor, rows: Tensor, values: Tensor, lr: Rate) -> list[Tensor]:
    """[new table]; ``table`` is written to."""
    return [table.index_add_(0, rows, values, alpha=-number(lr))]


def _adagrad(
    table: Tensor, rows: Tensor, values: Tensor, total: Tensor, step: Tensor, lr: Rate, lr_decay: float, eps: float
) -> list[Tensor]:
    """[new table, new sum, new step]; ``table`` and ``total`` are written to."""
    step = step + 1
    rate = number(lr) / (1 + (step.item() - 1) * lr_decay)
    sums = total[rows] + values.pow(2)
    total.index_copy_(0, rows, sums)
    return [table.index_add_(0, rows, values / sums.sqrt_().add_(eps), alpha=-rate), total, step]


def _adam(
    table: Tensor, rows: Tensor, values: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, step: Tensor, lr: Rate, *numbers: float
) -> list[Tensor]:
    """[new table, new exp_avg, new exp_avg_sq, new step]; ``table`` and both moments are written to."""
    beta1, beta2, eps = numbers
    step = step + 1
    old, old_square = exp_avg[rows], exp_avg_sq[rows]
    average = values.sub(old).mul_(1 - beta1).add_(old)
    square = values.pow(2).sub_(old_square).mul_(1 - beta2).add_(old_square)
    exp_avg.index_copy_(0, rows, average)
    exp_avg_sq.index_copy_(0, rows, square)
    count = step.item()
    size = number(lr) * math.sqrt(1 - beta2**count) / (1 - beta1**count)
    return [table.index_add_(0, rows, average.div_(square.sqrt_().add_(eps)), alpha=-size), exp_avg, exp_avg_sq, step]


_UPDATES: Mapping[str, tuple[Callable[..., list[Tensor]], tuple[int, ...]]] = {
    "regista.rows_sgd": (_sgd, (0,)),
    "regista.rows_adagrad": (_adagrad, (0, 4)),
    "regista.rows_adam": (_adam, (0, 4, 5)),
}
"""Target -> what it computes of (table, rows, their gradients, states and numbers), and the places of the op's arguments that it writes to."""


def in_place(target: str, own: Sequence[bool]) -> Callable[..., list[Tensor]] | None:
    """The function that performs a row update (``regista.rows_sgd`` and its like), writing to the table and its states; None: another target.

    Args:
        own: for each argument, whether the kernel may write to its memory; what it writes to is copied where it is False.
    """
    if target not in _UPDATES:
        return None
    function, written = _UPDATES[target]
    copied = [place for place in written if not own[place]]

    def kernel(*args: object) -> list[Tensor]:
        given: list[Any] = list(args)
        for place in copied:
            given[place] = given[place].clone(memory_format=torch.contiguous_format)
        table, gradients, indices, slots, *others, extent, padding = given
        return function(table, *_looked_up(table, gradients, indices, slots, extent, padding), *others)

    return kernel


def _functional(target: str) -> Callable[..., list[Tensor]]:
    kernel = in_place(target, (False,) * 6)
    assert kernel is not None
    return kernel


KERNELS: Mapping[str, Callable[..., list[Tensor]]] = {target: _functional(target) for target in _UPDATES}
"""Target -> what it computes, as a function of values."""
