"""How the kernels are compiled, and the records they work on."""

from __future__ import annotations

import zlib
from pathlib import Path

import numba
import numpy as np

from simulator.compiled.columns import Floats, Ints, Records

__all__ = ["edition", "filled", "idx", "kernel", "record"]

kernel = numba.njit(cache=True, forceinline=True, error_model="numpy", _nrt=False)  # type: ignore[call-overload]  # _nrt has no type
"""Cached on disk, inlined into the one function that Python calls, and without reference counts.

None of these functions allocates or keeps an array; Python holds all of them meanwhile.  numba would still count references, atomically, for
each array that goes into a function: 9/10 of the time of functions as small as these [measured with perf: 1 against 15 million firings/s].
"""

idx = np.uint64
"""``array[idx(i)]``: an index that is never negative.

numba would ask of every signed one whether it counts from the end, a quarter of the time of these kernels [measured: 6.8 against 9.0 million
firings/s].  Only the index itself becomes unsigned: numba makes a float of an unsigned and a signed number.
"""


def record(ints: str, floats: str = "") -> np.dtype[np.void]:
    """A record of 64-bit fields, named in one string each.  What belongs to one thing lies together in memory, so that it is fetched together."""
    return np.dtype([*((name, np.int64) for name in ints.split()), *((name, np.float64) for name in floats.split())])


def edition(*files: str) -> str:
    """A field's name that differs whenever the text of these files of this folder does.

    numba's cache looks at the file of the function that Python calls and at the types of its arguments: kernels in other files that are inlined
    into it are told apart by a field of this name in one of its records.
    """
    text = b"".join((Path(__file__).parent / file).read_bytes() for file in files)
    return f"edition_{zlib.crc32(text):08x}"


def filled(fields: np.dtype[np.void], size: int, **columns: Ints | Floats | float) -> Records:
    """``size`` records with these columns, and zero in the others."""
    records = np.zeros(size, dtype=fields)
    for name, column in columns.items():
        records[name] = column
    return records
