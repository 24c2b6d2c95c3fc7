"""The SBP algebra (SEMANTICS 1): how a logical tensor lies on a mesh of devices.

    S(d)   split along tensor dim d          B   a full copy each
    S(d)+t the same parts, each t places further along the axis, around it: part i lies at coordinate i + t
    P(op)  partial values: reduce the copies elementwise with op (sum, min, max) to get the tensor

An NdSbp has one entry per mesh axis and is applied left to right: axis 0 cuts first, axis 1 cuts the pieces.
Uneven dims are legal: the first ``dim mod p`` parts are one longer (SEMANTICS 1.3).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache, lru_cache
from itertools import product
from math import prod

from planner.ir.errors import InvalidPlan

__all__ = ["B", "Broadcast", "NdSbp", "P", "Partial", "ReduceOp", "S", "Sbp", "Split", "coordinates", "part_of"]


class ReduceOp(Enum):
    __hash__ = object.__hash__  # asked for millions of times; the inherited one hashes the name
    SUM = "sum"
    MIN = "min"
    MAX = "max"


@dataclass(frozen=True, slots=True, order=True)
class Split:
    """turn: places by which the parts are moved around the axis."""

    dim: int
    turn: int = 0

    def __str__(self) -> str:
        return f"S({self.dim})+{self.turn}" if self.turn else f"S({self.dim})"

    def part_at(self, coordinate: int, parts: int) -> int:
        """The number of the part that lies at a coordinate of an axis."""
        return (coordinate - self.turn) % parts


@dataclass(frozen=True, slots=True)
class Broadcast:
    def __str__(self) -> str:
        return "B"


@dataclass(frozen=True, slots=True)
class Partial:
    op: ReduceOp = ReduceOp.SUM

    def __str__(self) -> str:
        return "P" if self.op is ReduceOp.SUM else f"P({self.op.value})"


Sbp = Split | Broadcast | Partial

B = Broadcast()
P = Partial()


def S(dim: int) -> Split:
    """Split along ``dim``, short as the papers write it."""
    return Split(dim)


_SPLIT = re.compile(r"S\(([0-9]{1,4})\)(?:\+([0-9]{1,7}))?")
_PARTIAL = re.compile(r"P(?:\((sum|min|max)\))?")


def _parse_one(text: str) -> Sbp:
    if text == "B":
        return B
    if match := _SPLIT.fullmatch(text):
        return Split(int(match[1]), int(match[2] or 0))
    if match := _PARTIAL.fullmatch(text):
        return Partial(ReduceOp(match[1] or "sum"))
    raise InvalidPlan(f"{text!r} is not an SBP; write S(0), B, P, P(max) or P(min), joined by commas for a mesh")


def part_of(extent: int, parts: int, index: int) -> tuple[int, int]:
    """Offset and length of part ``index`` of a dim cut into ``parts`` (SEMANTICS 1.3).

    >>> [part_of(10, 4, i) for i in range(4)]
    [(0, 3), (3, 3), (6, 2), (8, 2)]
    """
    base, longer = divmod(extent, parts)
    return index * base + min(index, longer), base + (index < longer)


def coordinates(mesh: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Mesh coordinates in row-major order: the order of a placement's ranks.

    >>> list(coordinates((2, 2)))
    [(0, 0), (0, 1), (1, 0), (1, 1)]
    """
    return product(*(range(size) for size in mesh))


@dataclass(frozen=True, slots=True, eq=False)
class NdSbp:
    """One Sbp per mesh axis.  Its hash is worked out once: a search looks layouts up millions of times.

    >>> str(NdSbp.parse("S(0),B"))
    'S(0),B'
    """

    entries: tuple[Sbp, ...]
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash(self.entries))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NdSbp):
            return NotImplemented
        return self is other or (self._hash == other._hash and self.entries == other.entries)

    def __reduce__(self) -> tuple[type[NdSbp], tuple[tuple[Sbp, ...]]]:
        return NdSbp, (self.entries,)  # another process hashes anew

    @staticmethod
    def parse(text: str) -> NdSbp:
        """Raises InvalidPlan when the text is not a comma list of S(d), B, P."""
        stripped = text.replace(" ", "")
        return NdSbp(tuple(_parse_one(part) for part in stripped.split(","))) if stripped else NdSbp(())

    @staticmethod
    def broadcast(num_axes: int) -> NdSbp:
        return NdSbp((B,) * num_axes)

    def followed_by(self, entry: Sbp) -> NdSbp:
        """The layout on a mesh with one more, innermost axis, on which it is ``entry``; equal results are one object."""
        return _followed(self, entry)

    def __str__(self) -> str:
        return ",".join(map(str, self.entries))

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, axis: int) -> Sbp:
        return self.entries[axis]

    def replace(self, axis: int, sbp: Sbp) -> NdSbp:
        return NdSbp((*self.entries[:axis], sbp, *self.entries[axis + 1 :]))

    @property
    def has_partial(self) -> bool:
        return any(isinstance(entry, Partial) for entry in self.entries)

    def region(self, shape: Sequence[int], mesh: Sequence[int], coordinate: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """(offset, length) per tensor dim of the part that ``coordinate`` holds.

        Raises:
            InvalidPlan: a split dim is smaller than what its axes cut it into (SEMANTICS 1.2).
        """
        spans = [(0, extent) for extent in shape]
        for axis, entry in enumerate(self.entries):
            if not isinstance(entry, Split):
                continue
            if entry.dim >= len(spans) or spans[entry.dim][1] < mesh[axis]:
                raise InvalidPlan(
                    f"{self} cannot lie on mesh {tuple(mesh)} for shape {tuple(shape)}: axis {axis} cuts dim {entry.dim} "
                    f"into {mesh[axis]} parts (SEMANTICS 1.2); split another dim or shrink the axis"
                )
            offset, length = spans[entry.dim]
            if entry.turn and length % mesh[axis]:
                raise InvalidPlan(
                    f"{self} cannot lie on mesh {tuple(mesh)} for shape {tuple(shape)}: {mesh[axis]} parts that are turned are equal, and {length} is "
                    "no multiple (SEMANTICS 1.7); turn them back, or make them equal"
                )
            part = entry.part_at(coordinate[axis], mesh[axis]) if entry.turn else coordinate[axis]
            inner_offset, inner_length = part_of(length, mesh[axis], part)
            spans[entry.dim] = (offset + inner_offset, inner_length)
        return tuple(spans)

    def local_shape(self, shape: Sequence[int], mesh: Sequence[int], coordinate: Sequence[int] | None = None) -> tuple[int, ...]:
        """Shape of the part at ``coordinate`` (default: coordinate 0, which holds the largest part)."""
        if coordinate is None:
            return _largest_part(self, tuple(shape), tuple(mesh))
        return tuple(length for _, length in self.region(shape, mesh, coordinate))

    def splits_evenly(self, shape: Sequence[int], mesh: Sequence[int]) -> bool:
        """True when every coordinate holds a part of the same shape."""
        extents = list(shape)
        for axis, entry in enumerate(self.entries):
            if isinstance(entry, Split):
                if entry.dim >= len(extents) or extents[entry.dim] % mesh[axis] or extents[entry.dim] < mesh[axis]:
                    return False
                extents[entry.dim] //= mesh[axis]
        return True

    def num_copies(self, mesh: Sequence[int]) -> int:
        """How many devices hold each element (B axes multiply, S axes do not)."""
        return prod(mesh[axis] for axis, entry in enumerate(self.entries) if not isinstance(entry, Split))


@lru_cache(1 << 16)
def _largest_part(sbp: NdSbp, shape: tuple[int, ...], mesh: tuple[int, ...]) -> tuple[int, ...]:
    """Kept, since a Plan of ten thousand tensors is asked for the bytes of each a dozen times."""
    return tuple(length for _, length in sbp.region(shape, mesh, (0,) * len(mesh)))


@cache
def _followed(layout: NdSbp, entry: Sbp) -> NdSbp:
    return NdSbp((*layout.entries, entry))
