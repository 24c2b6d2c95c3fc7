"""The words of a draw on CPUs: compiled loops over rows of consecutive elements (planner.frontend.random.rows).

Element e takes word e mod 4 of block e div 4, so a loop over blocks makes four elements at a time, and rows may begin and end inside of one.
A loop over slices that begin at 0 compiles to vector instructions: at + n might be negative, which Python counts from the end, and took 1.5 ns
per element where it takes 0.4 [2026-11-22, one core of an AMD EPYC with AVX-512].
All compiled functions stand in this one file: numba's cache looks at the file of the function that Python calls and at no other.
"""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt

__all__ = ["dropped", "fill_bits", "fill_words"]

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)
_CHUNK = 128
"""Blocks that are drawn before they are used: 2 KiB of words, which stay in the nearest cache."""

Lanes = npt.NDArray[np.uint32]
Float = np.float32 | np.float64
Floats = npt.NDArray[np.float32] | npt.NDArray[np.float64]


@numba.njit(inline="always", nogil=True)
def _blocks(first: np.uint64, count: int, draw: np.uint32, step: np.uint32, k0: np.uint32, k1: np.uint32, words: Lanes) -> None:
    """Blocks first .. first + count - 1 into words[4 * count]; each lane of the loop is one block, so it compiles to vector instructions."""
    for lane in range(count):
        block = first + np.uint64(lane)
        c0 = np.uint32(block & np.uint64(0xFFFFFFFF))
        c1 = np.uint32(block >> np.uint64(32))
        c2, c3 = draw, step
        a, b = k0, k1
        for _round in range(10):
            p0 = _M0 * np.uint64(c0)
            p1 = _M1 * np.uint64(c2)
            n0 = np.uint32(p1 >> np.uint64(32)) ^ c1 ^ a
            n2 = np.uint32(p0 >> np.uint64(32)) ^ c3 ^ b
            c1 = np.uint32(p1 & np.uint64(0xFFFFFFFF))
            c3 = np.uint32(p0 & np.uint64(0xFFFFFFFF))
            c0, c2 = n0, n2
            a = np.uint32(a + _W0)
            b = np.uint32(b + _W1)
        words[4 * lane] = c0
        words[4 * lane + 1] = c1
        words[4 * lane + 2] = c2
        words[4 * lane + 3] = c3


@numba.njit(inline="always", nogil=True)
def _chunk(begin: int, end: int, draw: int, step: int, k0: np.uint32, k1: np.uint32, words: Lanes) -> tuple[int, int]:
    """Draw the words of elements begin .. end - 1, or of as many as fit; returns where in ``words`` they begin, and how many they are."""
    first = begin >> 2
    count = min(_CHUNK, ((end + 3) >> 2) - first)
    _blocks(np.uint64(first), count, np.uint32(draw), np.uint32(step), k0, k1, words)
    skip = begin - 4 * first
    return skip, min(4 * count - skip, end - begin)


@numba.njit(cache=True, nogil=True)
def fill_words(starts: npt.NDArray[np.int64], length: int, draw: int, step: int, seed: int, out: Lanes) -> None:
    """out[rows * length]: the words of the elements, row after row."""
    k0, k1 = np.uint32(seed & 0xFFFFFFFF), np.uint32((seed >> 32) & 0xFFFFFFFF)
    words = np.empty(4 * _CHUNK, dtype=np.uint32)
    at = 0
    for row in range(starts.shape[0]):
        begin, end = starts[row], starts[row] + length
        while begin < end:
            skip, number = _chunk(begin, end, draw, step, k0, k1, words)
            drawn, made = words[skip : skip + number], out[at : at + number]
            for n in range(number):
                made[n] = drawn[n]
            at += number
            begin += number


@numba.njit(cache=True, nogil=True)
def dropped(
    x: Floats, out: Floats, starts: npt.NDArray[np.int64], length: int, draw: int, step: int, seed: int, last: int, kept: Float, zero: Float
) -> None:
    """out = x times ``kept`` where the element's word is at most ``last``, else times ``zero``; both numbers are of x's dtype."""
    k0, k1 = np.uint32(seed & 0xFFFFFFFF), np.uint32((seed >> 32) & 0xFFFFFFFF)
    words = np.empty(4 * _CHUNK, dtype=np.uint32)
    largest = np.uint32(last)
    at = 0
    for row in range(starts.shape[0]):
        begin, end = starts[row], starts[row] + length
        while begin < end:
            skip, number = _chunk(begin, end, draw, step, k0, k1, words)
            drawn, given, made = words[skip : skip + number], x[at : at + number], out[at : at + number]
            for n in range(number):
                made[n] = given[n] * (kept if drawn[n] <= largest else zero)
            at += number
            begin += number


@numba.njit(cache=True, nogil=True)
def fill_bits(
    starts: npt.NDArray[np.int64], length: int, draw: int, step: int, seed: int, last: int, kept: np.int16, out: npt.NDArray[np.int16]
) -> None:
    """out[rows * length] = ``kept`` where the element's word is at most ``last``, else 0."""
    k0, k1 = np.uint32(seed & 0xFFFFFFFF), np.uint32((seed >> 32) & 0xFFFFFFFF)
    words = np.empty(4 * _CHUNK, dtype=np.uint32)
    largest, zero = np.uint32(last), np.int16(0)
    at = 0
    for row in range(starts.shape[0]):
        begin, end = starts[row], starts[row] + length
        while begin < end:
            skip, number = _chunk(begin, end, draw, step, k0, k1, words)
            for n in range(number):
                out[at + n] = kept if words[skip + n] <= largest else zero
            at += number
            begin += number
