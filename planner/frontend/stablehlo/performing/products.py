"""Products: dot_general as a matrix product over flattened dims, convolution as torch has it, and sums and maxima over dims."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf, prod

import torch
import torch.nn.functional as F
from torch import Tensor

from planner.frontend.stablehlo.listing import Operation
from planner.frontend.stablehlo.performing.values import Performed, Value
from planner.ir.errors import Unsupported
from planner.ir.tensor import TensorType

__all__ = ["PRODUCTS"]


def _ints(value: tuple[int, ...] | int) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else value


def _dot_general(operation: Operation, operands: Sequence[Value], type_: TensorType) -> Value:
    """Results have the batch dims, then the free dims of the left, then those of the right."""
    numbers = operation.record("dot_dimension_numbers")
    batch, others = ([_ints(numbers[f"{side}_{kind}_dimensions"]) for side in ("lhs", "rhs")] for kind in ("batching", "contracting"))
    left, right = (operand.tensor() for operand in operands)
    free = [[d for d in range(x.ndim) if d not in (*batch[i], *others[i])] for i, x in enumerate((left, right))]
    if not batch[0] and len(others[0]) == 1 and right.ndim == 2 and others[0][0] == left.ndim - 1:
        return Value.of(torch.matmul(left, right if others[1] == (0,) else right.t()))
    batches = [left.shape[d] for d in batch[0]]
    a = _grouped(left, (*batch[0],), (free[0], others[0]))
    b = _grouped(right, (*batch[1],), (others[1], free[1]))
    made = torch.matmul(a, b)
    shape = [*batches, *(left.shape[d] for d in free[0]), *(right.shape[d] for d in free[1])]
    return Value.of(made if list(made.shape) == shape else made.reshape(shape))


def _grouped(x: Tensor, batch: Sequence[int], groups: Sequence[Sequence[int]]) -> Tensor:
    """[batch dims..., product of the first group, product of the second]; dims of extent 1 move nothing."""
    order = [*batch, *groups[0], *groups[1]]
    moved = x if order == list(range(x.ndim)) else x.permute(order)
    shape = [*(x.shape[d] for d in batch), *(prod(x.shape[d] for d in group) for group in groups)]
    return moved if list(moved.shape) == shape else moved.reshape(shape)


def _convolution(operation: Operation, operands: Sequence[Value], type_: TensorType) -> Value:
    numbers = operation.record("dimension_numbers")
    x, kernel, *added = (operand.tensor() for operand in operands)
    bias = added[0] if added else None  # of a composite

    def ordered(*fields: str) -> list[int]:
        return [dim for field in fields for dim in _ints(numbers[field])]

    x = x.permute(ordered("input_batch_dimension", "input_feature_dimension", "input_spatial_dimensions"))
    kernel = kernel.permute(ordered("kernel_output_feature_dimension", "kernel_input_feature_dimension", "kernel_spatial_dimensions"))
    spatial = x.ndim - 2
    if any(extent != 1 for extent in operation.ints("lhs_dilation")) or operation.attributes.get("batch_group_count", 1) != 1:
        raise Unsupported(
            f"convolution{operation.where} dilates its input or groups its batch (a transposed convolution); resize, then convolve"
        )
    if any(operation.ints("window_reversal")):
        raise Unsupported(f"convolution{operation.where} reverses its window; flip the kernel")
    pairs = _pairs(operation, spatial)
    strides = operation.ints("window_strides") or (1,) * spatial
    dilation = operation.ints("rhs_dilation") or (1,) * spatial
    groups = operation.attributes.get("feature_group_count", 1)
    assert isinstance(groups, int)
    if any(low != high or low < 0 for low, high in pairs):
        x, pairs = F.pad(x, [amount for pair in reversed(pairs) for amount in pair]), [(0, 0)] * spatial
    given = ([low for low, _ in pairs], list(dilation))
    made = torch.convolution(x, kernel, bias, list(strides), given[0], given[1], False, [0] * spatial, groups)
    order = ordered("output_batch_dimension", "output_feature_dimension", "output_spatial_dimensions")
    return Value.of(made.permute([order.index(dim) for dim in range(made.ndim)]))


def _pairs(operation: Operation, spatial: int) -> list[tuple[int, int]]:
    padding = operation.attributes.get("padding")
    if padding is None:
        return [(0, 0)] * spatial
    if isinstance(padding, int):
        return [(padding, padding)] * spatial
    return [(int(low), int(high)) for low, high in padding]  # type: ignore[misc,union-attr,str-unpack]


_Reduced = tuple[Callable[[Tensor, list[int]], Tensor], float]
_REDUCED: Mapping[str, _Reduced] = {
    "add": (lambda x, dims: torch.sum(x, dims), 0.0),
    "maximum": (lambda x, dims: torch.amax(x, dims), -inf),
    "minimum": (lambda x, dims: torch.amin(x, dims), inf),
}
_OF_BOOLS: Mapping[str, Callable[[Tensor, int], Tensor]] = {"and": lambda x, dim: torch.all(x, dim), "or": lambda x, dim: torch.any(x, dim)}


def _reduce(operation: Operation, operands: Sequence[Value], type_: TensorType) -> Value:
    if len(operands) != 2:
        raise Unsupported(
            f"reduce{operation.where} of several arrays at once (argmax, a custom lax.reduce) has no rule; use jnp.max, jnp.sum"
        )
    x, start = operands
    dims, body = operation.ints("dimensions"), operation.text("body")
    if body in _OF_BOOLS and x.dtype is torch.bool:
        neutral = body == "and"
        if x.number is not None:
            return Value(x.number, type_.shape, x.dtype)
        made = x.tensor()
        for dim in sorted(dims, reverse=True):
            made = _OF_BOOLS[body](made, dim)
        return _begun(operation, Value.of(made), start, neutral)
    if body not in _REDUCED:
        raise Unsupported(f"reduce{operation.where} with {body or 'its body'} has no rule; known are {', '.join((*_REDUCED, *_OF_BOOLS))}")
    function, neutral_number = _REDUCED[body]
    made = function(x.tensor(), list(dims)) if dims else x.tensor()
    lowest = not x.dtype.is_floating_point
    return _begun(
        operation,
        Value.of(made.to(x.dtype) if made.dtype != x.dtype else made),
        start,
        None if lowest and body != "add" else neutral_number,
    )


def _begun(operation: Operation, made: Value, start: Value, neutral: float | None) -> Value:
    if neutral is not None and start.number != neutral:
        raise Unsupported(f"reduce{operation.where} begins at {start.number}, not at {neutral}; add what is to be added behind it")
    return made


PRODUCTS: Mapping[str, Performed] = {
    "dot_general": _dot_general,
    "convolution": _convolution,
    "reduce": _reduce,
}
"""Name -> function(operation, operands, type of the result)."""
