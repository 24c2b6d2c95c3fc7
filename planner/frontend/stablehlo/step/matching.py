"""Patterns over a listing: which operations together are one of torch's.

A pattern is a name that stands for a value, a number, or (operation, pattern, ...); operands of add, multiply, maximum and minimum match in either
order.  Broadcasts, conversions to the same type and dims of extent 1 are looked through; an operation may ask for more about the one it met.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isclose, isinf

from planner.frontend.stablehlo.listing import Listing, Operation

__all__ = ["Found", "Matcher", "Pattern", "long_dims"]

Pattern = str | float | tuple["str | Pattern", ...]
Found = Mapping[str, int]
_EITHER_ORDER = ("add", "multiply", "maximum", "minimum", "and")


class Matcher:
    """Matches against one listing.   ``made_by``: value -> the operation that makes it."""

    def __init__(self, listing: Listing) -> None:
        self._listing = listing
        self.made_by = listing.made_by()

    def bare(self, value: int) -> int:
        """The value before it was broadcast, or got dims of extent 1."""
        while (operation := self.made_by.get(value)) is not None and self._is_view(operation):
            value = operation.operands[0]
        return value

    def lies_along(self, value: int, dim: int) -> bool:
        """Whether the value is a vector that was broadcast along a dim."""
        operation = self.made_by.get(value)
        shape = self._listing.types[value].shape
        if operation is not None and operation.name == "broadcast_in_dim":
            given = self._listing.types[operation.operands[0]].shape
            along = [to for extent, to in zip(given, operation.ints("broadcast_dimensions"), strict=True) if extent != 1]
        else:
            along = [place for place, extent in enumerate(shape) if extent != 1]
        return along == [dim]

    def number(self, value: int) -> float | None:
        """The number that all its elements are, None if unknown."""
        operation = self.made_by.get(self.bare(value))
        if operation is None or operation.name != "constant":
            return None
        held = operation.attributes["value"]
        return float(held) if isinstance(held, bool | int | float) else None

    def found(self, value: int, pattern: Pattern, bound: Found | None = None) -> Found | None:
        """What the names of the pattern stand for, if the value matches it."""
        return next(self._matches(value, pattern, bound or {}), None)

    def _matches(self, value: int, pattern: Pattern, bound: Found) -> Iterator[Found]:
        bare = self.bare(value)
        if isinstance(pattern, str):
            if self._same(bound.get(pattern, bare), bare):
                yield {**bound, pattern: bare}
            return
        if isinstance(pattern, int | float):
            number = self.number(bare)
            if number is not None and (number == pattern if isinf(pattern) else isclose(number, pattern, rel_tol=1e-5)):
                yield bound
            return
        name, *parts = pattern
        operation = self.made_by.get(bare)
        if (
            operation is not None
            and name == "square"
            and operation.name == "multiply"
            and len(set(map(self.bare, operation.operands))) == 1
        ):
            yield from self._all(operation.operands[:1], parts, bound)  # as exports have it
            return
        if operation is None or not isinstance(name, str) or _named(operation) != name or len(operation.operands) < len(parts):
            return
        orders = [parts, parts[::-1]] if operation.name in _EITHER_ORDER and len(parts) == 2 else [parts]
        for order in orders:
            yield from self._all(operation.operands, order, bound)

    def _same(self, value: int, other: int) -> bool:
        return value == other or ((number := self.number(value)) is not None and number == self.number(other))

    def _all(self, operands: tuple[int, ...], parts: list[Pattern], bound: Found) -> Iterator[Found]:
        if not parts:
            yield bound
            return
        for found in self._matches(operands[0], parts[0], bound):
            yield from self._all(operands[1:], parts[1:], found)

    def _is_view(self, operation: Operation) -> bool:
        types = self._listing.types
        given, made = types[operation.operands[0]] if operation.operands else None, types[operation.results[0]]
        if given is None:
            return False
        if operation.name == "broadcast_in_dim":
            return True
        if operation.name == "transpose":  # of dims of extent 1 alone, as jax.vmap leaves them
            moved = [dim for dim in operation.ints("permutation") if given.shape[dim] != 1]
            return moved == sorted(moved)
        return operation.name == "reshape" and long_dims(given.shape) == long_dims(made.shape)


def _named(operation: Operation) -> str:
    """reduce is told apart by what it does."""
    return f"reduce_{operation.text('body')}" if operation.name == "reduce" else operation.name


def long_dims(shape: Sequence[int]) -> list[int]:
    """The extents that are not 1."""
    return [extent for extent in shape if extent != 1]
