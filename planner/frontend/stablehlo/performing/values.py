"""A value while a listing is performed: a number that stands for all elements, or a tensor that broadcasts to the shape.

StableHLO broadcasts by operations of their own; torch broadcasts inside of others.  So a broadcast is kept as what it broadcasts until an
operation needs every element, and the traced step has the ops that a torch module would have:

    broadcast_in_dim [32] -> [4, 16, 32]        base [1, 1, 32], shape [4, 16, 32]
    add [4, 16, 32], the above                  x + base                                one op, one pass over memory
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from planner.frontend.stablehlo.listing import Operation
from planner.ir.tensor import TensorType

__all__ = ["Number", "Performed", "Value", "torch_dtype"]

Number = bool | int | float


def torch_dtype(type_: TensorType) -> torch.dtype:
    """The torch dtype of a type."""
    found = getattr(torch, type_.dtype.value)
    assert isinstance(found, torch.dtype)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """base: a number, or a tensor of as many dims as ``shape`` whose extents are 1 or those of ``shape``."""

    base: Tensor | Number
    shape: tuple[int, ...]
    dtype: torch.dtype

    @staticmethod
    def of(tensor: Tensor) -> Value:
        """A tensor that is all there."""
        return Value(tensor, tuple(tensor.shape), tensor.dtype)

    @property
    def number(self) -> Number | None:
        """The number that all elements are, None if that is not known."""
        return None if isinstance(self.base, Tensor) else self.base

    def tensor(self) -> Tensor:
        """Every element."""
        if not isinstance(self.base, Tensor):
            return torch.full(self.shape, self.base, dtype=self.dtype)
        return self.base if tuple(self.base.shape) == self.shape else self.base.expand(self.shape)

    def small(self) -> Tensor:
        """A tensor that broadcasts to the shape."""
        return self.base if isinstance(self.base, Tensor) else torch.full((1,) * len(self.shape), self.base, dtype=self.dtype)

    def regrouped(self, shape: Sequence[int]) -> Value | None:
        """The value with dims of extent 1 put in or taken out; None: the shapes differ in more."""
        wanted = tuple(shape)
        if not isinstance(self.base, Tensor):
            return Value(self.base, wanted, self.dtype)
        if [extent for extent in self.shape if extent != 1] != [extent for extent in wanted if extent != 1]:
            return None
        long = iter([given for given, extent in zip(self.base.shape, self.shape, strict=True) if extent != 1])
        base_shape = [1 if extent == 1 else next(long) for extent in wanted]
        return Value(self.base.reshape(base_shape) if list(self.base.shape) != base_shape else self.base, wanted, self.dtype)


Performed = Callable[[Operation, Sequence[Value], TensorType], Value]
"""How an operation is performed: (operation, operands, type of the result) -> result."""
