"""Boxes of a tensor."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

__all__ = ["box_view"]


def box_view(value: Tensor, box: Sequence[tuple[int, int]]) -> Tensor:
    """The part of ``value`` at (offset, length) per dim, in the same memory; ``value`` itself where the box is all of it."""
    for dim, (offset, length) in enumerate(box):
        if length != value.shape[dim]:
            value = value.narrow(dim, offset, length)
    return value
