"""Plain PyTorch, op by op, whose random ops draw by counter: the single device that Plans are compared with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from planner.frontend.random.table import in_place, random_table
from planner.ir.errors import Unsupported

__all__ = ["EagerDraws"]


class EagerDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, within ``drawing``, torch's random ops draw by counter."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._table, self._in_place = random_table(), in_place()

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        kwargs = kwargs or {}
        if func in self._table:
            return self._table[func](*args, **kwargs)
        if func in self._in_place:
            twin, place, result = self._in_place[func]
            made = self._table[twin](*args, **kwargs)
            written = args[place]
            assert isinstance(written, Tensor)
            if isinstance(made, tuple):
                written.copy_(made[1])
                return made[result]
            assert isinstance(made, Tensor)
            return written.copy_(made)
        if torch.Tag.nondeterministic_seeded in func.tags and func.namespace == "aten" and not func._can_decompose():
            raise Unsupported(f"{func} draws random numbers, and no counter gives them")
        return func(*args, **kwargs)
