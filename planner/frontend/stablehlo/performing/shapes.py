"""Operations that move elements: broadcasts, reshapes, slices, concatenations, ranges, constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from planner.frontend.stablehlo.listing import Operation
from planner.frontend.stablehlo.performing.values import Performed, Value, torch_dtype
from planner.ir.errors import Unsupported
from planner.ir.tensor import TensorType

__all__ = ["SHAPES"]


def _broadcast(operation: Operation, operands: Sequence[Value], type_: TensorType) -> Value:
    x, dims = operands[0], operation.ints("broadcast_dimensions")
    if not isinstance(x.base, Tensor):
        return Value(x.base, type_.shape, x.dtype)
    base, order = x.base, sorted(range(len(dims)), key=lambda place: dims[place])
    if order != list(range(len(dims))):
        base, dims = base.permute(order), tuple(sorted(dims))
    shape = [1] * type_.ndim
    for extent, dim in zip(base.shape, dims, strict=True):
        shape[dim] = int(extent)
    return Value(base if list(base.shape) == shape else base.reshape(shape), type_.shape, x.dtype)


def _reshape(operation: Operation, operands: Sequence[Value], type_: TensorType) -> Value:
    x = operands[0]
    return x.regrouped(type_.shape) or Value.of(x.tensor().reshape(type_.shape))


def _transpose(operation: Operation, operands: Sequence[Value], type_: TensorType) -> Value:
    x, order = operands[0], operation.ints("permutation")
    return Value(x.base.permute(order) if isinstance(x.base, Tensor) else x.base, type_.shape, x.dtype)


def _slice(operation: Operation, operands: Sequence[Value], type_: TensorType) -> Value:
    x = operands[0]
    if not isinstance(x.base, Tensor):
        return Value(x.base, type_.shape, x.dtype)
    starts, ends, steps = (operation.ints(key) for key in ("start_indices", "limit_indices", "strides"))
    made = x.base
    for dim, (start, end, step, extent) in enumerate(zip(starts, ends, steps, x.shape, strict=True)):
        if (start, end, step) != (0, extent, 1) and made.shape[dim] != 1:
            made = torch.ops.aten.slice.Tensor(made, dim, start, end, step)
    return Value(made, type_.shape, x.dtype)


def _dynamic_slice(operation: Operation, operands: Sequence[Value], type_: TensorType) -> Value:
    x, *starts = operands
    numbers = [start.number for start in starts]
    if any(number is None for number in numbers):
        raise Unsupported(f"dynamic_slice{operation.where} begins where the data say; a step has static places, take jnp.take_along_axis")
    made = x.tensor()
    for dim, (start, extent) in enumerate(zip(numbers, type_.shape, strict=True)):
        first = min(max(int(start or 0), 0), made.shape[dim] - extent)
        made = made if extent == made.shape[dim] else made.narrow(dim, first, extent)
    return Value.of(made)


def _concatenate(operation: Operation, operands: Sequence[Value], type_: TensorType) -> Value:
    (dim,) = (operation.attributes["dimension"],)
    assert isinstance(dim, int)
    return Value.of(torch.cat([x.tensor() for x in operands], dim))


def _pad(operation: Operation, operands: Sequence[Value], type_: TensorType) -> Value:
    x, fill = operands
    low, high, inner = (operation.ints(key) for key in ("edge_padding_low", "edge_padding_high", "interior_padding"))
    if any(inner):
        raise Unsupported(f"pad{operation.where} puts elements between elements (dilation), which no rule cuts; write it with jnp.repeat")
    if fill.number is None:
        raise Unsupported(f"pad{operation.where} pads with a value that is computed; pad with a constant")
    amounts = [amount for pair in reversed(list(zip(low, high, strict=True))) for amount in pair]
    return Value.of(F.pad(x.tensor(), amounts, value=fill.number))


def _reverse(operation: Operation, operands: Sequence[Value], type_: TensorType) -> Value:
    return Value.of(torch.flip(operands[0].tensor(), operation.ints("dimensions")))


def _iota(operation: Operation, operands: Sequence[Value], type_: TensorType) -> Value:
    dim = operation.attributes["iota_dimension"]
    assert isinstance(dim, int)
    shape = [1] * type_.ndim
    shape[dim] = type_.shape[dim]
    dtype = torch_dtype(type_)
    numbers = torch.arange(type_.shape[dim], dtype=dtype)
    return Value(numbers if type_.ndim == 1 else numbers.reshape(shape), type_.shape, dtype)


def _constant(operation: Operation, operands: Sequence[Value], type_: TensorType) -> Value:
    elements, dtype = operation.attributes["value"], torch_dtype(type_)
    if isinstance(elements, np.ndarray):
        return Value.of(torch.from_numpy(np.ascontiguousarray(elements)).to(dtype).reshape(type_.shape))
    assert isinstance(elements, bool | int | float)
    return Value(elements, type_.shape, dtype)


SHAPES: Mapping[str, Performed] = {
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "dynamic_slice": _dynamic_slice,
    "concatenate": _concatenate,
    "pad": _pad,
    "reverse": _reverse,
    "iota": _iota,
    "constant": _constant,
}
"""Name -> function(operation, operands, type of the result)."""
