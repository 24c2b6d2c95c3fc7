"""Logical tensors <-> their parts on a mesh (SEMANTICS 1): the only place where values are cut and put together.

logical --slice_part--> part of every coordinate --join_parts--> logical
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from planner.ir.errors import InvalidPlan
from planner.ir.sbp import Broadcast, NdSbp, Partial, ReduceOp, Sbp, Split, coordinates, part_of
from planner.ir.tensor import DType

__all__ = ["cut", "glue", "join_parts", "neutral", "reduce_parts", "slice_part", "torch_dtype"]


def torch_dtype(dtype: DType) -> torch.dtype:
    torch_type = getattr(torch, dtype.value)
    assert isinstance(torch_type, torch.dtype)
    return torch_type


def reduce_parts(op: ReduceOp, parts: Sequence[Tensor]) -> Tensor:
    """Elementwise reduction in the order of the parts; the result is a new tensor unless there is one part only."""
    total = parts[0]
    for part in parts[1:]:
        match op:
            case ReduceOp.SUM:
                total = total + part
            case ReduceOp.MIN:
                total = torch.minimum(total, part)
            case ReduceOp.MAX:
                total = torch.maximum(total, part)
    return total


def neutral(op: ReduceOp, like: Tensor) -> Tensor:
    """A tensor that changes nothing when reduced with."""
    if op is ReduceOp.SUM:
        return torch.zeros_like(like)
    limits = torch.finfo(like.dtype) if like.dtype.is_floating_point else torch.iinfo(like.dtype)
    return torch.full_like(like, limits.min if op is ReduceOp.MAX else limits.max)


def glue(entry: Sbp, parts: Sequence[Tensor]) -> Tensor:
    """What the parts along one axis, in axis order, stand for."""
    match entry:
        case Broadcast():
            return parts[0]
        case Split(dim, turn):
            return torch.cat([parts[(part + turn) % len(parts)] for part in range(len(parts))], dim)
        case Partial(op):
            return reduce_parts(op, parts)


def cut(entry: Sbp, value: Tensor, parts: int, index: int) -> Tensor:
    """The part of ``value`` that position ``index`` of an axis holds; contiguous, because traced views count on it."""
    match entry:
        case Broadcast():
            return value
        case Split(dim):
            index = entry.part_at(index, parts)
            if dim >= value.ndim or value.shape[dim] < parts:
                raise InvalidPlan(f"{entry} cannot cut shape {tuple(value.shape)} into {parts} parts (SEMANTICS 1.2)")
            return value.narrow(dim, *part_of(value.shape[dim], parts, index)).contiguous()
        case Partial(op):
            # Minimum and maximum are idempotent, so every position may hold the value; a sum must count it once.
            return value if op is not ReduceOp.SUM or index == 0 else neutral(op, value)


def slice_part(value: Tensor, sbp: NdSbp, mesh: Sequence[int], coordinate: Sequence[int]) -> Tensor:
    """The part of a logical tensor that lies at ``coordinate``.

    Args:
        value: the logical tensor; never written to.

    Returns:
        a contiguous tensor; it shares memory with ``value`` where the part is a contiguous piece of it.

    Raises:
        InvalidPlan: a split dim is too small (SEMANTICS 1.2).
    """
    for entry, parts, index in zip(sbp.entries, mesh, coordinate, strict=True):
        value = cut(entry, value, parts, index)
    return value.contiguous()


def join_parts(
    parts: Mapping[tuple[int, ...], Tensor], sbp: NdSbp, mesh: Sequence[int], shape: Sequence[int], *, check_equal: bool = False
) -> Tensor:
    """The logical tensor whose parts these are.

    Args:
        parts: coordinate -> part, one for every coordinate of the mesh.
        shape: logical shape.
        check_equal: prove that B copies agree bit by bit.

    Raises:
        InvalidPlan: the parts do not make up ``shape``, or copies differ and ``check_equal`` is on.
    """
    level = dict(parts)
    for axis in reversed(range(len(mesh))):
        entry = sbp[axis]
        joined: dict[tuple[int, ...], Tensor] = {}
        for prefix in coordinates(mesh[:axis]):
            along = [level[(*prefix, index)] for index in range(mesh[axis])]
            if check_equal and isinstance(entry, Broadcast) and not all(torch.equal(along[0], other) for other in along[1:]):
                raise InvalidPlan(f"copies of a tensor of shape {tuple(shape)} differ along axis {axis} although it is {sbp} there")
            joined[prefix] = glue(entry, along)
        level = joined
    whole = level[()]
    if tuple(whole.shape) != tuple(shape):
        raise InvalidPlan(f"parts laid out as {sbp} on mesh {tuple(mesh)} make shape {tuple(whole.shape)}, expected {tuple(shape)}")
    return whole
