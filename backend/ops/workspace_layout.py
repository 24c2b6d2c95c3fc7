"""Where the values inside a fragment lie in workspace, from how they lay on the heap.

A value lies in workspace if its kernel can write into memory that is there, if it lives inside the fragment alone (or is added to a block as
soon as the fragment ends), and if it fits.  backend.ops.lifetimes says how long its place is needed, backend.memory.packing where it lies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backend.memory.packing import Lifetime, pack
from backend.ops.lifetimes import ESCAPES, last_needs
from backend.ops.outs import RESHAPES, placed_result, workspace_kernel
from planner.ir.graph import Op

__all__ = ["HeapLayout", "Strides", "WorkspaceLayout", "lay_out_workspace", "lifetimes_of"]

Strides = tuple[int, ...]


def _row_major(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements lie one behind the other in this order of dims."""
    expected = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class HeapLayout:
    """How a value lay on the heap.  copied: a reshape whose result is memory of its own."""

    shape: tuple[int, ...]
    strides: Strides
    dtype: torch.dtype
    copied: bool

    @property
    def size_bytes(self) -> int:
        count = self.dtype.itemsize
        for extent in self.shape:
            count *= extent
        return count

    @property
    def row_major(self) -> bool:
        return _row_major(self.shape, self.strides)

    @property
    def dense(self) -> bool:
        """Whether its strides visit every element of one piece of memory once."""
        dims = sorted(range(len(self.shape)), key=lambda dim: (-self.strides[dim], -self.shape[dim]))
        return _row_major([self.shape[dim] for dim in dims], [self.strides[dim] for dim in dims])

    def at(self, memory: Tensor, offset: int) -> Tensor:
        """The value's place in ``memory`` (uint8)."""
        return memory[offset : offset + self.size_bytes].view(self.dtype).as_strided(self.shape, self.strides)


def lifetimes_of(
    ops: Sequence[Op], heap: Mapping[str, HeapLayout], copied: frozenset[str], ending: frozenset[str], escaping: frozenset[str]
) -> dict[str, Lifetime]:
    """The values that may lie in workspace, and during which ops their places are needed.

    Args:
        copied, ending, escaping: see lifetimes.last_needs.
    """
    needs = last_needs(ops, copied, ending, escaping)
    lifetimes: dict[str, Lifetime] = {}
    for place, op in enumerate(ops):
        value = placed_result(op)
        layout = heap.get(value) if value is not None else None
        if value is None or layout is None or value in copied or needs[value] == ESCAPES or not layout.size_bytes:
            continue
        fits = layout.copied and layout.row_major if op.target in RESHAPES else workspace_kernel(op.target) is not None
        if fits and layout.dense:
            lifetimes[value] = Lifetime(size_bytes=layout.size_bytes, first=place, last=needs[value])
    return lifetimes


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceLayout:
    """Of one fragment.  offsets: value -> where its place begins.   heap_bytes: of values that could lie there, had it room."""

    offsets: Mapping[str, int]
    heap: Mapping[str, HeapLayout]
    end_bytes: int
    heap_bytes: int

    def places(self, memory: Tensor) -> dict[str, Tensor]:
        return {value: self.heap[value].at(memory, offset) for value, offset in self.offsets.items()}


def lay_out_workspace(lifetimes: Mapping[str, Lifetime], heap: Mapping[str, HeapLayout], limit_bytes: int) -> WorkspaceLayout:
    """Pack the values with these lifetimes below ``limit_bytes``."""
    offsets = {
        value: offset for value, offset in zip(lifetimes, pack(list(lifetimes.values()), limit_bytes), strict=True) if offset is not None
    }
    return WorkspaceLayout(
        offsets=offsets,
        heap=heap,
        end_bytes=max((offset + lifetimes[value].size_bytes for value, offset in offsets.items()), default=0),
        heap_bytes=sum(lifetime.size_bytes for value, lifetime in lifetimes.items() if value not in offsets),
    )
