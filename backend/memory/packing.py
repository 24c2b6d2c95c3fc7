"""Places for values in one piece of memory: values that live at the same time lie apart, others may share bytes.

    bytes ^
          | +---- a ----+     +---- d
          | +-- b --+  +-- c --------         a: 0..12, b: 0..8, ...
          +--------------------------> op

Dynamic storage allocation: NP-hard [Garey & Johnson 1979, SR2]; the largest first, each in the smallest gap that holds it, stays near the
lower bound, the largest sum of what lives at once, on the lifetimes of networks [Pisarchyk & Lee 2020, "greedy by size"].
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["ALIGNMENT_BYTES", "Lifetime", "aligned", "pack"]

ALIGNMENT_BYTES = 64
"""A cache line: where a tensor begins must not change the path that a kernel takes."""


def aligned(size_bytes: int) -> int:
    """With the padding behind it, so that what follows begins at a multiple of ALIGNMENT_BYTES."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetime:
    """A value of ``size_bytes`` that lives from op number ``first`` to op number ``last``, both included."""

    size_bytes: int
    first: int
    last: int

    @property
    def extent_bytes(self) -> int:
        """With the padding behind it."""
        return aligned(self.size_bytes)


def pack(lifetimes: Sequence[Lifetime], limit_bytes: int) -> list[int | None]:
    """An offset in bytes per lifetime, a multiple of 64; None for what does not fit below ``limit_bytes`` any more."""
    offsets: list[int | None] = [None] * len(lifetimes)
    placed: list[tuple[int, int, int, int]] = []  # (offset, end, first, last), by offset
    for number in sorted(range(len(lifetimes)), key=lambda n: (-lifetimes[n].extent_bytes, lifetimes[n].first, n)):
        lifetime = lifetimes[number]
        size_bytes = lifetime.extent_bytes
        best: tuple[int, int] | None = None  # (gap, offset)
        free_from = 0
        for offset, end, first, last in placed:
            if last < lifetime.first or first > lifetime.last:
                continue
            gap = offset - free_from
            if gap >= size_bytes and (best is None or gap < best[0]):
                best = gap, free_from
            free_from = max(free_from, end)
        begin = free_from if best is None else best[1]
        if begin + size_bytes <= limit_bytes:
            offsets[number] = begin
            insort(placed, (begin, begin + size_bytes, lifetime.first, lifetime.last))
    return offsets
