"""The neutral form of a StableHLO module: inputs, operations and results, all of static shape; functions that it calls stand in their places.

    Listing       inputs 0, 1, 2   operations (add: 0, 1 -> 3) (dot_general: 3, 2 -> 4)   results 4

A value is a number; an operation reads and makes numbers.  Nothing here belongs to jaxlib, so a listing may be kept, compared and pruned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from planner.ir.tensor import TensorType

__all__ = ["Attribute", "Given", "Listing", "Operation"]

Attribute = (
    bool | int | float | str | tuple[int, ...] | tuple[tuple[int, ...], ...] | Mapping[str, "tuple[int, ...] | int"] | NDArray[np.generic]
)
"""What an operation says beside its operands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation.

    name: without its dialect (``add``, ``dot_general``; ``square`` of chlo).   operands, results: numbers of values.
    attributes: numbers, texts and tuples; a constant's elements as an array, or as a number where all are equal.
    where: the user's line, for messages.
    """

    name: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    where: str = ""

    def ints(self, key: str) -> tuple[int, ...]:
        """An attribute that is a list of whole numbers; empty where it is left out."""
        value = self.attributes.get(key, ())
        assert isinstance(value, tuple)
        return tuple(int(number) for number in value if not isinstance(number, tuple))

    def record(self, key: str) -> Mapping[str, tuple[int, ...] | int]:
        """An attribute with fields (dimension numbers)."""
        value = self.attributes[key]
        assert isinstance(value, Mapping)
        return value

    def text(self, key: str) -> str:
        """An attribute that is a name."""
        return str(self.attributes.get(key, ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """An input.   path: where it stands in the function's arguments, for example ``params['h'][0]['kernel']``; empty where the file has no names."""

    value: int
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A whole module.   types: of every value.   results: values that it returns, in order."""

    inputs: tuple[Given, ...]
    operations: tuple[Operation, ...]
    results: tuple[int, ...]
    types: Mapping[int, TensorType]

    def needed_for(self, values: Iterable[int]) -> Listing:
        """The part of the module that computes these values, which are its results; all inputs stay."""
        results = tuple(values)
        needed, kept = set(results), list[Operation]()
        for operation in reversed(self.operations):
            if needed.intersection(operation.results):
                needed.update(operation.operands)
                kept.append(operation)
        return replace(self, operations=tuple(reversed(kept)), results=results)

    def made_by(self) -> dict[int, Operation]:
        """Value -> the operation that makes it."""
        return {value: operation for operation in self.operations for value in operation.results}
