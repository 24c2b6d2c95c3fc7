"""Batch norm of bfloat16 and float16 as one kernel, without the casts to float32 before it and back behind it.

    y = short(batch_norm(wide(x)))                    ->  short_batch_norm(x, ...)
    dx = short(batch_norm_gradient(wide(g), wide(x))) ->  short_batch_norm_gradient(g, x, ...)

Mixed precision normalises in float32, so that a Plan has a cast before and one after; torch's kernel computes in float32 by itself.  A step of
ResNet-50 took 45.8 ms with the casts and 35.7 without (64 images, bf16-mixed, one H200, torch 2.11; ``make gpu``) [2026-11-26].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from backend.ops.fused.batch_norm import BATCH_NORM, batch_norm, in_one_kernel
from backend.ops.fused.batch_norm_gradient import BATCH_NORM_GRADIENT, batch_norm_gradient, gradient_in_one_kernel
from backend.ops.fused.uses import Uses, uses_of
from planner.ir.graph import Dt, Op, Ref
from planner.ir.tensor import DType

__all__ = ["SHORT_BATCH_NORM", "SHORT_BATCH_NORM_GRADIENT", "short_batch_norm", "short_batch_norm_gradient", "without_casts"]

SHORT_BATCH_NORM, SHORT_BATCH_NORM_GRADIENT = "fused.short_batch_norm", "fused.short_batch_norm_gradient"

_Given = Tensor | None
_CAST = "aten._to_copy.default"
_SHORT = (DType.BFLOAT16, DType.FLOAT16)


def short_batch_norm(
    x: Tensor,
    weight: _Given,
    bias: _Given,
    mean: _Given,
    var: _Given,
    momentum: float,
    eps: float,
    dtype: torch.dtype,
    *,
    out: _Given = None,
) -> tuple[Tensor, Tensor, Tensor, _Given, _Given]:
    """``batch_norm`` of x in float32, y in ``dtype``: a format of 16 bits, in one pass where it is x's too.

    Args:
        mean, var: the running ones.   out: memory of x's shape, of ``dtype``, for y.
    """
    if weight is None or x.dtype is not dtype or any(v is not None and v.dtype is not torch.float32 for v in (weight, bias, mean, var)):
        y, *others = batch_norm(x.float(), weight, bias, mean, var, momentum, eps)
        return (y.to(dtype) if out is None else out.copy_(y)), *others  # type: ignore[return-value]  # four of them
    return in_one_kernel(x, weight, bias, (mean, var), momentum, eps, out)


def short_batch_norm_gradient(
    g: Tensor, x: Tensor, mean: Tensor, root: Tensor, weight: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor | None, ...]:
    """``batch_norm_gradient`` of g and x in float32, the gradient by x in ``dtype``: in one pass where it is that of g and x too."""
    vectors = [value for value in (mean, root, weight) if value is not None]
    if weight is None or g.dtype is not dtype or x.dtype is not dtype or any(value.dtype is not torch.float32 for value in vectors):
        by_x, *others = batch_norm_gradient(g.float(), x.float(), mean, root, weight)
        return (by_x.to(dtype) if by_x is not None else None), *others
    return gradient_in_one_kernel(g, x, mean, root, weight)


def without_casts(ops: Sequence[Op], leaving: frozenset[str]) -> tuple[Op, ...]:
    """The fragment's ops, whole batch norms among them, with those between casts as one op each.

    Args:
        leaving: values that leave the fragment.
    """
    if not any(op.target in (BATCH_NORM, BATCH_NORM_GRADIENT) for op in ops):
        return tuple(ops)
    uses = uses_of(ops, leaving)
    wholes: dict[str, Op] = {}
    gone: set[str] = set()
    for op in ops:
        number = {BATCH_NORM: 1, BATCH_NORM_GRADIENT: 2}.get(op.target, 0)
        wide = [_widened(value, uses) for value in op.args[:number]]
        narrow = _narrowed(op.outputs[0], uses)
        if number == 0 or narrow is None or any(cast is None for cast in wide):
            continue
        after, dtype = narrow
        before = [cast for cast in wide if cast is not None]
        args = (*(cast.args[0] for cast in before), *op.args[number:], Dt(dtype))
        target = SHORT_BATCH_NORM if number == 1 else SHORT_BATCH_NORM_GRADIENT
        wholes[op.id] = replace(op, target=target, args=args, outputs=(after.outputs[0], *op.outputs[1:]))
        gone |= {after.id, *(cast.id for cast in before)}
    return tuple(wholes.get(op.id, op) for op in ops if op.id not in gone)


def _cast(op: Op | None) -> DType | None:
    """The dtype that an op casts to and nothing else."""
    match op.kwargs if op is not None and op.target == _CAST else ():
        case (("dtype", Dt(dtype)),):
            return dtype
        case _:
            return None


def _widened(value: object, uses: Uses) -> Op | None:
    """The cast to float32 that makes the value, which nothing else reads."""
    maker = uses.makers.get(value.value) if isinstance(value, Ref) else None
    alone = isinstance(value, Ref) and uses.reads[value.value] == 1
    return maker if alone and _cast(maker) is DType.FLOAT32 else None


def _narrowed(value: str | None, uses: Uses) -> tuple[Op, DType] | None:
    """The cast to a format of 16 bits that alone reads the value."""
    readers = uses.readers[value] if value is not None and uses.reads[value] == 1 else ()
    dtype = _cast(readers[0]) if len(readers) == 1 else None
    return (readers[0], dtype) if dtype in _SHORT and dtype is not None else None
