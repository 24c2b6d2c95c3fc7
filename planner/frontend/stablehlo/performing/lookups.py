"""Look-ups: gather and scatter along one dim, the forms of jnp.take, of embeddings and of take_along_axis.

An index must lie in its dim: one that does not ends the step with an error, where JAX clamps it or gives nan (jnp.take's ``fill``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F

from planner.frontend.stablehlo.listing import Operation
from planner.frontend.stablehlo.performing.values import Performed, Value
from planner.ir.errors import Unsupported
from planner.ir.tensor import TensorType

__all__ = ["LOOKUPS"]


def _ints(value: tuple[int, ...] | int) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else value


def _refusal(operation: Operation) -> Unsupported:
    return Unsupported(
        f"{operation.name}{operation.where} looks up more than one dim at once; write it with jnp.take or jnp.take_along_axis along one dim"
    )


def _index(index: Value, index_vector_dim: int) -> Value:
    """The numbers without the dim that lists the coordinates, of which there is one."""
    if index_vector_dim == len(index.shape):
        return index
    if index.shape[index_vector_dim] != 1:
        raise _NotOne
    shape = [extent for dim, extent in enumerate(index.shape) if dim != index_vector_dim]
    found = index.regrouped(shape)
    assert found is not None
    return found


class _NotOne(Exception):
    """An index of several coordinates."""


def _gather(operation: Operation, operands: Sequence[Value], type_: TensorType) -> Value:
    numbers = operation.record("dimension_numbers")
    along, collapsed = _ints(numbers["start_index_map"]), _ints(numbers["collapsed_slice_dims"])
    batching, sizes = _ints(numbers["operand_batching_dims"]), operation.ints("slice_sizes")
    x, offsets = operands[0], _ints(numbers["offset_dims"])
    whole = all(size == extent for d, (size, extent) in enumerate(zip(sizes, x.shape, strict=True)) if d not in (*along, *batching))
    if len(along) != 1 or collapsed != along or not whole:
        raise _refusal(operation)
    given = operands[1].regrouped(operation.ints("index_shape") or operands[1].shape)
    assert given is not None
    try:
        index = _index(given, int(numbers["index_vector_dim"]))  # type: ignore[arg-type]
    except _NotOne:
        raise _refusal(operation) from None
    dim = along[0]
    if batching:
        if offsets or sorted((*batching, dim)) != list(range(len(x.shape))):
            raise _refusal(operation)
        return _along(x, index, dim, batching, _ints(numbers["start_indices_batching_dims"]), type_)
    if index.number is not None:
        return _selected(x, dim, int(index.number), index.shape, offsets, type_)
    if len(x.shape) == 2 and dim == 0 and offsets == (len(index.shape),):
        return Value.of(F.embedding(index.tensor(), x.tensor()))
    flat = torch.index_select(x.tensor(), dim, index.tensor().reshape(-1))
    front = flat.movedim(dim, 0).reshape(*index.shape, *(extent for d, extent in enumerate(x.shape) if d != dim))
    places = [d for d in range(type_.ndim) if d not in offsets] + list(offsets)
    return Value.of(front.permute([places.index(d) for d in range(type_.ndim)]))


def _selected(x: Value, dim: int, number: int, index_shape: Sequence[int], offsets: Sequence[int], type_: TensorType) -> Value:
    taken = x.tensor().select(dim, min(max(number, 0), x.shape[dim] - 1))
    shape = [1] * type_.ndim
    for extent, place in zip(taken.shape, offsets, strict=True):
        shape[place] = int(extent)
    return Value(taken.reshape(shape) if list(taken.shape) != shape else taken, type_.shape, x.dtype)


def _along(x: Value, index: Value, dim: int, batching: Sequence[int], of_index: Sequence[int], type_: TensorType) -> Value:
    """take_along_axis: every batch dim of the operand has its own dim of the index; what is left of the index lies along ``dim``."""
    rest = [d for d in range(len(index.shape)) if d not in of_index]
    numbers = index.tensor()
    order = [0] * len(x.shape)
    for mine, its in zip(batching, of_index, strict=True):
        order[mine] = its
    if len(rest) == 1:
        order[dim] = rest[0]
        moved = numbers.permute(order)
        found = torch.gather(x.tensor(), dim, moved.to(torch.int64))
        return Value.of(found.permute([order.index(d) for d in range(found.ndim)]))
    if rest:
        raise Unsupported("a gather with batch dims whose index has several free dims has no rule; use jnp.take_along_axis")
    moved = numbers.permute([order[d] for d in range(len(x.shape)) if d != dim]).unsqueeze(dim)
    found = torch.gather(x.tensor(), dim, moved.to(torch.int64)).squeeze(dim)
    kept = [order[d] for d in range(len(x.shape)) if d != dim]
    return Value.of(found.permute([kept.index(d) for d in range(found.ndim)]))


def _scatter(operation: Operation, operands: Sequence[Value], type_: TensorType) -> Value:
    """The sums of gather's adjoint: ``operand`` plus updates at the numbered places of one dim."""
    numbers = operation.record("scatter_dimension_numbers")
    along, batching = _ints(numbers["scattered_dims_to_operand_dims"]), _ints(numbers["input_batching_dims"])
    if operation.text("body") != "add" or len(operands) != 3 or len(along) != 1 or _ints(numbers["inserted_window_dims"]) != along:
        raise _refusal(operation)
    x, given, updates = operands
    try:
        index = _index(given, int(numbers["index_vector_dim"]))  # type: ignore[arg-type]
    except _NotOne:
        raise _refusal(operation) from None
    dim, window = along[0], _ints(numbers["update_window_dims"])
    if batching:
        if (
            window
            or tuple(_ints(numbers["scatter_indices_batching_dims"])) != tuple(batching)
            or sorted((*batching, dim)) != list(range(x_ndim(x)))
        ):
            raise _refusal(operation)
        numbers_of = index.tensor()
        values = updates.tensor()
        if numbers_of.ndim < x_ndim(x):
            numbers_of, values = numbers_of.unsqueeze(dim), values.unsqueeze(dim)
        return Value.of(x.tensor().scatter_add(dim, numbers_of.to(torch.int64), values))
    values = updates.tensor()
    front = [d for d in range(values.ndim) if d not in window]
    moved = values.permute([*front, *window])
    rows = moved.reshape(-1, *moved.shape[len(front) :])
    flat = index.tensor().reshape(-1).to(torch.int64)
    return Value.of(x.tensor().movedim(dim, 0).index_add(0, flat, rows).movedim(0, dim))


def x_ndim(x: Value) -> int:
    return len(x.shape)


LOOKUPS: Mapping[str, Performed] = {"gather": _gather, "scatter": _scatter}
"""Name -> function(operation, operands, type of the result)."""
