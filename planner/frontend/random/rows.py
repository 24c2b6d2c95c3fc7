"""The pieces of consecutive elements that a part of a tensor is made of, in the row-major order of the whole tensor.

whole [2, 4, 6], part [2, 2, 6] at (0, 2, 0)        rows of 12: the last dim is whole, so the dim before it joins the run
starts 12, 36
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np
import numpy.typing as npt

__all__ = ["Rows", "rows_of"]


@dataclass(frozen=True, slots=True)
class Rows:
    """starts: number of the first element of each row, in the whole tensor;  length: elements of a row."""

    starts: npt.NDArray[np.int64]
    length: int


@lru_cache(maxsize=1024)
def rows_of(whole: tuple[int, ...], shape: tuple[int, ...], offsets: tuple[int, ...]) -> Rows:
    """The rows of the part of ``shape`` that begins at ``offsets`` (empty: at the origin) of a tensor of shape ``whole``."""
    offsets = offsets or (0,) * len(whole)
    inner = len(whole)
    while inner > 0 and shape[inner - 1] == whole[inner - 1]:
        inner -= 1
    inner = max(inner - 1, 0)
    # Dim ``inner`` may be cut: a row is its part, times all that is behind it.
    behind = prod(whole[inner + 1 :])
    length = shape[inner] * behind if whole else 1
    numbers = np.zeros(1, dtype=np.int64)
    for extent, offset, own in zip(whole[:inner], offsets[:inner], shape[:inner], strict=True):
        numbers = (numbers[:, None] * extent + np.arange(offset, offset + own)).reshape(-1)
    if whole:
        numbers = numbers * (whole[inner] * behind) + offsets[inner] * behind
    return Rows(numbers, length)
