"""Where values of state come from: one question, ``part(name, box)``, with many answers.

Values   Given        tensors in memory
         Drawn        drawn by counter, each rank just its part                     backend.initial.drawn
         Weights      a file of torch.save, mapped                                  backend.initial.weights
         Saved        one of our checkpoints, on any layout                         backend.checkpoint.saved
         Layers       the first of several that has the name
         Renamed      another source under other names
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Protocol, runtime_checkable

from torch import Tensor

from backend.layout.views import box_view
from planner.ir.errors import InvalidPlan
from planner.ir.tensor import DType, TensorType

__all__ = ["Box", "Given", "Layers", "Renamed", "Values", "as_values", "numel_of", "overlap", "whole_box"]

Box = tuple[tuple[int, int], ...]
"""(offset, length) per dim."""


@runtime_checkable
class Values(Protocol):
    """Named logical tensors that can be had in pieces."""

    def type_of(self, name: str) -> TensorType | None:
        """Shape and dtype of a value; None where there is none of that name."""
        ...

    def part(self, name: str, box: Box) -> Tensor:
        """The box of a value, contiguous and in memory of its own.

        Raises:
            InvalidPlan: there is no such value, or the box reaches beyond it.
        """
        ...


def whole_box(shape: tuple[int, ...]) -> Box:
    return tuple((0, extent) for extent in shape)


def numel_of(box: Box) -> int:
    return prod(length for _, length in box)


def overlap(a: Box, b: Box) -> Box | None:
    """What two boxes of one tensor share; None when that is nothing.

    >>> overlap(((0, 4), (2, 2)), ((3, 4), (0, 3)))
    ((3, 1), (2, 1))
    """
    shared = []
    for (start, length), (other, extent) in zip(a, b, strict=True):
        first, end = max(start, other), min(start + length, other + extent)
        if end <= first:
            return None
        shared.append((first, end - first))
    return tuple(shared)


def check_box(name: str, box: Box, shape: tuple[int, ...]) -> None:
    """Raises InvalidPlan when the box does not lie inside a tensor of that shape."""
    if len(box) != len(shape) or any(o < 0 or n < 0 or o + n > extent for (o, n), extent in zip(box, shape, strict=False)):
        raise InvalidPlan(f"box {box} reaches beyond state {name} of shape {shape}; boxes are (offset, length) per dim")


def known_type(values: Values, name: str) -> TensorType:
    """Raises InvalidPlan when there is no such value."""
    tensor_type = values.type_of(name)
    if tensor_type is None:
        raise InvalidPlan(f"there are no values for state {name}; give a source of values that has it")
    return tensor_type


@dataclass(frozen=True, slots=True)
class Given:
    """Tensors in memory (or mapped); never written to."""

    tensors: Mapping[str, Tensor]

    def type_of(self, name: str) -> TensorType | None:
        value = self.tensors.get(name)
        return None if value is None else TensorType(tuple(value.shape), DType.parse(str(value.dtype)))

    def part(self, name: str, box: Box) -> Tensor:
        check_box(name, box, known_type(self, name).shape)
        # A part that shares memory with the caller's tensor (or a mapped file) would keep the whole of it alive.
        return box_view(self.tensors[name].detach(), box).contiguous().clone()


@dataclass(frozen=True, slots=True)
class Layers:
    """The first source that has the name."""

    sources: tuple[Values, ...]

    def type_of(self, name: str) -> TensorType | None:
        return next((tensor_type for source in self.sources if (tensor_type := source.type_of(name)) is not None), None)

    def part(self, name: str, box: Box) -> Tensor:
        known_type(self, name)
        return next(source for source in self.sources if source.type_of(name) is not None).part(name, box)


@dataclass(frozen=True, slots=True)
class Renamed:
    """A source in which some values stand under other names.   names: the name asked for -> the name there."""

    source: Values
    names: Mapping[str, str]

    def type_of(self, name: str) -> TensorType | None:
        return self.source.type_of(self.names.get(name, name))

    def part(self, name: str, box: Box) -> Tensor:
        return self.source.part(self.names.get(name, name), box)


def as_values(state: Mapping[str, Tensor] | Values) -> Values:
    return Given(state) if isinstance(state, Mapping) else state
