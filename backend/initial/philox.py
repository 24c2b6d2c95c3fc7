"""Random numbers by counter: number i of a stream is a function of (key, i) alone, so any piece of a tensor can be drawn by itself.

Philox 4x64-10 [Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"] as NumPy has it: block number c, under a key of 128 bits,
gives four words of 64 bits.  Element i of a tensor (row-major) takes word i mod 4 of block i div 4.

    (1)  u(i) = (word(i) >> 11) 2^-53 + 2^-54        in the open interval (0, 1)      -> uniforms()
    (2)  key  = first 128 bits of SHA-256(seed, name of the stream)                   -> stream_key()
"""

from __future__ import annotations

import hashlib
from math import prod

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from backend.initial.values import Box

__all__ = ["stream_key", "uniform_box", "uniforms"]

_CHUNK = 1 << 20
_SHORT = 512
"""Runs of fewer elements are cut from whole rows: setting the counter costs as much as drawing so many [measured 2026-11-21]."""


def stream_key(seed: int, name: str) -> int:
    """Equation (2)."""
    return int.from_bytes(hashlib.sha256(f"{seed}\n{name}".encode()).digest()[:16], "little")


def uniforms(key: int, start: int, count: int) -> npt.NDArray[np.float64]:
    """Elements start .. start + count - 1 of a stream, equation (1)."""
    first = start // 4
    raw = np.random.Philox(key=key).advance(first).random_raw(start - 4 * first + count)[start - 4 * first :]
    numbers: npt.NDArray[np.float64] = (raw >> np.uint64(11)).astype(np.float64)
    numbers *= 2.0**-53
    numbers += 2.0**-54
    return numbers


def uniform_box(key: int, shape: tuple[int, ...], box: Box) -> Tensor:
    """The uniforms of a box of a tensor of ``shape``: float64, of the box's shape, bit-equal to that slice of the whole draw."""
    lengths = tuple(length for _, length in box)
    result = np.empty(lengths)
    if not result.size:
        return torch.from_numpy(result)
    # Dims at the end that the box takes whole make one run with the dim before them.
    inner = len(shape)
    while inner > 0 and box[inner - 1] == (0, shape[inner - 1]):
        inner -= 1
    inner = max(inner - 1, 0)
    run, row = prod(lengths[inner:]), prod(shape[inner:])
    skip = box[inner][0] * prod(shape[inner + 1 :]) if shape else 0
    flat = result.reshape(-1, run)
    starts = _row_numbers(shape[:inner], box[:inner])
    if run >= _SHORT or len(starts) == 1:
        for line, number in zip(flat, starts, strict=True):
            for begin in range(0, run, _CHUNK):
                line[begin : begin + _CHUNK] = uniforms(key, int(number) * row + skip + begin, min(_CHUNK, run - begin))
        return torch.from_numpy(result)
    # Many short runs: draw whole rows, as many as make a chunk, and take the columns.
    per_chunk = max(1, _CHUNK // row)
    begin = 0
    while begin < len(starts):
        first = int(starts[begin])
        end = int(np.searchsorted(starts, first + per_chunk))
        rows = uniforms(key, first * row, (int(starts[end - 1]) - first + 1) * row).reshape(-1, row)
        flat[begin:end] = rows[starts[begin:end] - first, skip : skip + run]
        begin = end
    return torch.from_numpy(result)


def _row_numbers(shape: tuple[int, ...], box: Box) -> npt.NDArray[np.int64]:
    """Row-major numbers of the box's positions in the outer dims, ascending."""
    numbers = np.zeros(1, dtype=np.int64)
    for extent, (offset, length) in zip(shape, box, strict=True):
        numbers = (numbers[:, None] * extent + np.arange(offset, offset + length)).reshape(-1)
    return numbers
