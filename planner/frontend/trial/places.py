"""Indices out of range, which tensors without values do not tell: places that follow from no input (arange, literals) are worked out with values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

__all__ = ["RangeCheck"]

aten = torch.ops.aten


class RangeCheck(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, an op that reads a tensor at a place that it does not have raises IndexError, as it would with values.

    Known are the places that follow from sizes and literals alone; the others are taken to be right.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known: dict[int, tuple[Tensor, Tensor]] = {}  # id -> the tensor, held so that its id stays its own, and its value

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: tuple[object, ...] = (), kwargs: Mapping[str, object] | None = None
    ) -> object:
        kwargs = kwargs or {}
        for extent, index in _reads(func, args):
            if (value := self._value(index)) is not None and value.numel():
                with _disable_current_modes():
                    low, high = int(value.min()), int(value.max())
                if low < -extent or high >= extent:
                    raise IndexError(f"{func} reads places {low} to {high} of {extent}")
        made = func(*args, **kwargs)
        if func._schema.is_mutable:
            self._known.clear()  # what was written, and its views
        elif isinstance(made, Tensor) and (value := self._worked_out(func, args, kwargs, made)) is not None:
            self._known[id(made)] = made, value
        return made

    def _value(self, tensor: Tensor) -> Tensor | None:
        if type(tensor) is Tensor:
            return tensor  # a constant of the module's code
        return self._known[id(tensor)][1] if id(tensor) in self._known else None

    def _worked_out(self, func: OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object], made: Tensor) -> Tensor | None:
        if func.namespace != "aten" or torch.Tag.nondeterministic_seeded in func.tags or made.numel() > _MOST or made.is_floating_point():
            return None
        if any(self._value(leaf) is None for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)):
            return None
        real_args, real_kwargs = tree_map(lambda leaf: self._value(leaf) if isinstance(leaf, Tensor) else leaf, (args, dict(kwargs)))
        with _disable_current_modes():
            value = func(*real_args, **real_kwargs)
        assert isinstance(value, Tensor)
        return value


def _reads(func: OpOverload, args: tuple[object, ...]) -> Iterator[tuple[int, Tensor]]:
    """(extent of a dim that is read, places in it)."""
    if func in (aten.index.Tensor, aten._unsafe_index.Tensor):
        read, places = args[:2]
        assert isinstance(read, Tensor) and isinstance(places, Sequence)
        if not any(isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in places):  # such take several dims
            yield from ((int(read.shape[dim]), index) for dim, index in enumerate(places) if isinstance(index, Tensor))
    elif func in (aten.index_select.default, aten.gather.default):
        read, at, index = args[:3]
        if isinstance(read, Tensor) and read.ndim and isinstance(at, int) and isinstance(index, Tensor):
            yield int(read.shape[at]), index
    elif func in (aten.nll_loss_forward.default, aten.nll_loss2d_forward.default):
        scores, target = args[:2]
        if isinstance(scores, Tensor) and isinstance(target, Tensor):
            yield int(scores.shape[min(1, scores.ndim - 1)]), target


_MOST = 1 << 20
