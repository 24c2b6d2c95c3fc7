"""Ops that a traced fragment calls as they are, so that inductor neither opens nor reorders them: draws, and products where MKL is slow.

A draw follows from the micro-batch's number too, which changes from act to act: here it is a tensor (int64, no dims, on the CPU), an operand like
others, so one compiled fragment serves all micro-batches.  The kernels are those of fragments op by op, so the bits are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from backend.ops.products import product
from planner.frontend.random import kernels as random

__all__ = ["DRAWN", "whole_product"]


@torch.library.custom_op("regista::drawn_dropout", mutates_args=())
def _dropout(
    x: Tensor,
    seed: Tensor,
    steps: Tensor,
    p: float,
    divisor: float,
    whole: Sequence[int],
    offsets: Sequence[int],
    draw: int,
    micro_batch: Tensor,
) -> Tensor:
    return random.dropout(x, seed, steps, p, divisor, whole, offsets, draw, int(micro_batch)).contiguous()


@torch.library.custom_op("regista::drawn_uniform", mutates_args=())
def _uniform(
    seed: Tensor,
    steps: Tensor,
    size: Sequence[int],
    dtype: torch.dtype,
    whole: Sequence[int],
    offsets: Sequence[int],
    draw: int,
    micro_batch: Tensor,
) -> Tensor:
    return random.uniform(seed, steps, size, dtype, whole, offsets, draw, int(micro_batch)).contiguous()


@torch.library.custom_op("regista::drawn_bernoulli", mutates_args=())
def _bernoulli(
    seed: Tensor,
    steps: Tensor,
    size: Sequence[int],
    dtype: torch.dtype,
    p: float,
    whole: Sequence[int],
    offsets: Sequence[int],
    draw: int,
    micro_batch: Tensor,
) -> Tensor:
    return random.bernoulli(seed, steps, size, dtype, p, whole, offsets, draw, int(micro_batch)).contiguous()


@torch.library.custom_op("regista::whole_product", mutates_args=())
def whole_product(x: Tensor, w: Tensor) -> Tensor:
    """x w: x [M, K], w [K, N]."""
    return product(x, w)


@_dropout.register_fake
def _dropout_type(x: Tensor, *_: object) -> Tensor:
    return x.new_empty(x.shape)


@_uniform.register_fake
@_bernoulli.register_fake
def _drawn_type(seed: Tensor, steps: Tensor, size: Sequence[int], dtype: torch.dtype, *_: object) -> Tensor:
    return seed.new_empty(list(size), dtype=dtype)


@whole_product.register_fake
def _product_type(x: Tensor, w: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], w.shape[1])


DRAWN: dict[str, Callable[..., Tensor]] = {
    "regista.dropout": _dropout,
    "regista.uniform": _uniform,
    "regista.bernoulli": _bernoulli,
}
"""Target of a random op -> what draws it; the micro-batch's number, as a tensor, comes last."""
