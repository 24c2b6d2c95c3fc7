"""What the recorder asks of torch's operators and of their operands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from planner.frontend.tracing.recorder.traced import NotRecordable, TensorMeta, Traced
from planner.frontend.tracing.recorder.views import View

__all__ = [
    "AT_ONCE",
    "SHAPE_TWINS",
    "PointwiseTypes",
    "as_views",
    "changes_nothing",
    "example_of",
    "examples_of",
    "functional_twin",
    "leaves",
    "returns_list",
]

aten = torch.ops.aten

AT_ONCE = {aten._conj.default: aten._conj_copy.default, aten._neg_view.default: aten._neg_view_copy.default}
"""Views whose elements torch works out when they are read -> the op that works them out at once."""

SHAPE_TWINS = {
    aten.squeeze_.default: aten.squeeze.default,
    aten.squeeze_.dim: aten.squeeze.dim,
    aten.squeeze_.dims: aten.squeeze.dims,
    aten.t_.default: aten.t.default,
    aten.transpose_.default: aten.transpose.int,
    aten.unsqueeze_.default: aten.unsqueeze.default,
}
"""Ops that change the shape of their operand in place -> the view op whose result the operand becomes."""


def as_views(made: object, func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
    """Mark the results of a view op as aliases of its first operand, and return them.

    A view of a tensor that was written is recomputed when it is first read, as functionalization does it, so that names of values are the same.
    """
    base = args[0]
    several = isinstance(made, list | tuple)
    for index, result in enumerate(leaves([made])):
        if isinstance(result, Traced):
            if isinstance(base, Traced):
                result.aliases = base.aliases
                result.chain = (*base.chain, View(func, tuple(args[1:]), kwargs, index if several else None))
            else:
                result.aliases.node = None
    return made


def functional_twin(func: OpOverload) -> tuple[OpOverload, tuple[int | str, ...]]:
    """The op that computes what ``func`` writes, and the places, or the keywords (out), of the arguments that ``func`` writes into.

    Raises:
        NotRecordable: the names do not say.
    """
    if func is aten._native_batch_norm_legit.default:
        return aten._native_batch_norm_legit_functional.default, (3, 4)
    if func is aten.normal_.default:
        return aten.normal_functional.default, (0,)
    if func is aten.rrelu_with_noise.default:
        return aten.rrelu_with_noise_functional.default, (1,)
    written = [a for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    by_keyword = all(a.kwarg_only for a in written)
    places = tuple(a.name if by_keyword else i for i, a in enumerate(func._schema.arguments) if a in written)
    name = func.overloadpacket.__name__
    packet = getattr(getattr(torch.ops, func.namespace), name.removesuffix("_"), None)
    if (by_keyword or (places == (0,) and name.endswith("_"))) and isinstance(packet, OpOverloadPacket):
        wanted = [(a.name, str(a.type)) for a in func._schema.arguments if not (by_keyword and a in written)]
        for twin in (getattr(packet, overload) for overload in packet.overloads()):  # type: ignore[no-untyped-call]
            if [(a.name, str(a.type)) for a in twin._schema.arguments] == wanted and not twin._schema.is_mutable:
                return twin, places
    raise NotRecordable(f"{func} has no functional twin of its name")


def changes_nothing(args: Sequence[Any]) -> bool:
    """Whether as_strided_ sets the shape and strides that a tensor has; strides of dims of one element may differ (a mean over all places)."""
    tensor, shape, strides, *offset = args
    moved = any(old != new for extent, old, new in zip(shape, tensor.stride(), strides, strict=False) if extent > 1)
    return tuple(shape) == tuple(tensor.shape) and not moved and offset in ([], [None], [tensor.storage_offset()])


def example_of(arg: object) -> object:
    if isinstance(arg, Traced):
        return arg.meta.example
    return examples_of(arg) if isinstance(arg, list | tuple) else arg


def examples_of(args: Sequence[object]) -> list[object]:
    return [example_of(arg) for arg in args]


def leaves(args: Sequence[object]) -> Iterator[object]:
    for arg in args:
        if isinstance(arg, list | tuple):
            yield from leaves(arg)
        else:
            yield arg


class PointwiseTypes:
    """Types of the results of ops that work element by element: the dtype follows from dtypes and literals, so it is learned once for all shapes.

    Only where the operands are row-major, one has the shape of the result, and no extent is 1: there the result is row-major too.
    """

    def __init__(self) -> None:
        self._dtypes: dict[tuple[object, ...], torch.dtype] = {}

    def known(self, func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[tuple[int, ...], torch.dtype] | None:
        """Shape and dtype of a row-major result; None: it has to be worked out."""
        asked = _asked(func, args, kwargs)
        dtype = self._dtypes.get(asked[0]) if asked is not None else None
        return (asked[1], dtype) if asked is not None and dtype is not None else None

    def learn(self, func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object], result: object) -> None:
        """Remember the dtype of a result that fake tensors gave."""
        asked = _asked(func, args, kwargs)
        if asked is not None and isinstance(result, TensorMeta) and result.shape == asked[1] and _is_row_major(result):
            self._dtypes[asked[0]] = result.dtype


def _asked(func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[tuple[object, ...], tuple[int, ...]] | None:
    """A key that the result's dtype follows from, and the result's shape; None: dtypes, literals and shapes do not tell them."""
    if kwargs or torch.Tag.pointwise not in func.tags:
        return None
    key: list[object] = [func]
    shapes: list[tuple[int, ...]] = []
    for arg in args:
        if isinstance(arg, Traced) and _is_row_major(arg.meta):
            shapes.append(arg.meta.shape)
            key.append((arg.meta.dtype, not arg.meta.shape))
        elif type(arg) in (bool, int, float):
            key.append((type(arg), arg))
        else:
            return None
    ndim = max(map(len, shapes), default=0)
    whole = next((shape for shape in shapes if len(shape) == ndim and 1 not in shape), ())
    if not whole or not all(_broadcasts(shape, whole) for shape in shapes):
        return None
    return tuple(key), whole


def _broadcasts(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    return all(extent in (1, there) for extent, there in zip(reversed(shape), reversed(whole), strict=False))


def _is_row_major(meta: TensorMeta) -> bool:
    stride = 1
    for extent, given in zip(reversed(meta.shape), reversed(meta.strides), strict=True):
        if given != stride:
            return False
        stride *= extent
    return not meta.offset and stride > 0


def returns_list(func: OpOverload) -> bool:
    returns = func._schema.returns
    return len(returns) == 1 and isinstance(returns[0].type, torch.ListType)
