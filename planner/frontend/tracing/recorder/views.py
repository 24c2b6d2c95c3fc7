"""Views of a tensor that is written: other names of one value, as functionalization knows them.

A tensor and its views are a family.  The value of the first, the base, is the family's; a view is the base's value behind a chain of view ops:

    rows = x * 3                base  n0                     generation 0
    first = rows[0]             view  select(n0, 0, 0)
    first.add_(1)               n1 = add(select(n0, 0, 0), 1)
                                base  n2 = select_scatter(n0, n1, 0, 0)                                      generation 1
    rows + first                add(n2, select(n2, 0, 0))

A write makes a new value of the base, from the last link of the written view's chain to the first, each by the inverse of its op.  A view that was
made before is of an earlier generation; it is made anew when it is next read.   [torch/csrc FunctionalStorageImpl, FunctionalInverses]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload

__all__ = ["View", "inverse"]

aten = torch.ops.aten

Call = Callable[..., object]
"""(op, its operands) -> its results."""


class View(NamedTuple):
    """A view op between a base tensor and its view: ``func(base, *args, **kwargs)``.   place: index of the result, where the op has several."""

    func: OpOverload
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    place: int | None


def inverse(view: View, base: Tensor, written: Tensor, call: Call) -> object | None:
    """The base after its view was overwritten by ``written``; None: the view op has no inverse (as expand, whose elements share memory).

    Args:
        base: before the write.   written: of the view's shape and dtype.   call: works an op out.
    """
    match view.func:
        case aten.alias.default | aten.detach.default:
            return written
        case aten.view.default | aten._reshape_alias.default:
            return call(aten.view.default, written, list(base.shape))
        case aten.transpose.int | aten.t.default:
            return call(view.func, written, *view.args, **view.kwargs)
        case aten.permute.default:
            (dims,) = _given(view)
            order = [dim % base.dim() for dim in _numbers(dims)]
            return call(aten.permute.default, written, [order.index(dim) for dim in range(len(order))])
        case aten.unsqueeze.default:
            return call(aten.squeeze.dim, written, *_given(view))
        case aten.squeeze.default | aten.squeeze.dim | aten.squeeze.dims:
            return _unsqueezed(view, base, written, call)
        case aten.slice.Tensor:
            return call(aten.slice_scatter.default, base, written, *view.args, **view.kwargs)
        case aten.select.int:
            return call(aten.select_scatter.default, base, written, *view.args, **view.kwargs)
        case aten.diagonal.default:
            return call(aten.diagonal_scatter.default, base, written, *view.args, **view.kwargs)
        case aten.as_strided.default:
            return call(aten.as_strided_scatter.default, base, written, *view.args, **view.kwargs)
        case aten.unbind.int:
            return call(aten.select_scatter.default, base, written, *(view.args or (0,)), view.place)
        case aten.split.Tensor | aten.split_with_sizes.default:
            return _split_back(view, base, written, call)
        case aten.view_as_real.default:
            return call(aten.view_as_complex.default, written)
        case aten.view_as_complex.default:
            return call(aten.view_as_real.default, written)
        case aten._conj.default | aten._neg_view.default:
            return call(view.func, written)
        case _:
            return None


def _given(view: View) -> Sequence[object]:
    return [*view.args, *view.kwargs.values()]


def _numbers(given: object) -> list[int]:
    assert isinstance(given, list | tuple)
    return [int(number) for number in given]


def _unsqueezed(view: View, base: Tensor, written: Tensor, call: Call) -> object:
    given = next(iter(_given(view)), range(base.dim()))
    dims = {given} if isinstance(given, int) else {*_numbers([*given])}  # type: ignore[misc]
    value: object = written
    for dim in sorted(dim % base.dim() for dim in dims):
        if base.shape[dim] == 1:
            value = call(aten.unsqueeze.default, value, dim)
    return value


def _split_back(view: View, base: Tensor, written: Tensor, call: Call) -> object:
    sizes, dim, *_ = [*_given(view), 0]
    assert isinstance(dim, int) and view.place is not None
    extent = base.shape[dim]
    if isinstance(sizes, int):
        start = view.place * sizes
        end = min(start + sizes, extent)
    else:
        lengths = _numbers(sizes)
        start = sum(lengths[: view.place])
        end = start + lengths[view.place]
    return call(aten.slice_scatter.default, base, written, dim, start, end)
