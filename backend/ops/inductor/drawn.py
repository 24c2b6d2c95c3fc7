"""Ops that a traced fragment calls as they are, so that inductor neither opens nor reorders them: draws, and products where MKL is slow.

A draw follows from the micro-batch's number too, which changes from act to act: here it is a tensor (int64, no dims, on the CPU), an operand like
others, so one compiled fragment serves all micro-batches.  The kernels are those of fragments op by op, so the bits are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from backend.ops.cpu.products import product
from planner.frontend.random.kernels import KERNELS

__all__ = ["DRAWN", "whole_product"]

_PLACE = "int[] whole, int[] offsets, int draw, Tensor micro_batch) -> Tensor"


@torch.library.custom_op("regista::whole_product", mutates_args=())
def whole_product(x: Tensor, w: Tensor) -> Tensor:
    """x w: x [M, K], w [K, N]."""
    return product(x, w)


@whole_product.register_fake
def _product_type(x: Tensor, w: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], w.shape[1])


def _like(x: Tensor, *_: object) -> Tensor:
    return x.new_empty(x.shape)


def _of_size(seed: Tensor, steps: Tensor, size: Sequence[int], dtype: torch.dtype, *_: object) -> Tensor:
    return seed.new_empty(list(size), dtype=dtype)


def _op(name: str, schema: str, type_of: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def drawn(*arguments: object) -> Tensor:
        *others, micro_batch = arguments
        assert isinstance(micro_batch, Tensor)
        return KERNELS[f"regista.{name}"](*others, int(micro_batch)).contiguous()

    op = torch.library.custom_op(f"regista::drawn_{name}", drawn, mutates_args=(), schema=schema)
    op.register_fake(type_of)
    return op


DRAWN: dict[str, Callable[..., Tensor]] = {
    "regista.dropout": _op("dropout", f"(Tensor x, Tensor seed, Tensor steps, float p, float divisor, {_PLACE}", _like),
    "regista.uniform": _op("uniform", f"(Tensor seed, Tensor steps, int[] size, ScalarType dtype, {_PLACE}", _of_size),
    "regista.bernoulli": _op("bernoulli", f"(Tensor seed, Tensor steps, int[] size, ScalarType dtype, float p, {_PLACE}", _of_size),
}
"""Target of a random op -> what draws it; the micro-batch's number, as a tensor, comes last."""
