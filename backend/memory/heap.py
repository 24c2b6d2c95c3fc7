"""What the C library does with freed memory of a worker (glibc; elsewhere nothing happens).

keep_heap      freed memory stays in the process: allocation is quick, and the heap fragments         (workers.ENVIRONMENT)
tighten_heap   freed memory goes back to the kernel: the process stays small, and every new tensor costs page faults
"""

from __future__ import annotations

import ctypes
import os

__all__ = ["keep_heap", "tighten_heap"]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""mallopt's numbers for them [malloc.h]."""

_TIGHT_MMAP_BYTES, _TIGHT_TRIM_BYTES = 256 << 10, 128 << 10


def _set(mmap_bytes: int, trim_bytes: int) -> bool:
    try:
        library = ctypes.CDLL(None)
        mallopt, trim = library.mallopt, library.malloc_trim
    except (AttributeError, OSError):
        return False
    mallopt(_M_MMAP_THRESHOLD, mmap_bytes)
    mallopt(_M_TRIM_THRESHOLD, min(trim_bytes, (1 << 31) - 1))  # mallopt takes an int
    trim(0)
    return True


def tighten_heap() -> bool:
    """Give freed memory back from now on; False without glibc."""
    return _set(_TIGHT_MMAP_BYTES, _TIGHT_TRIM_BYTES)


def keep_heap() -> bool:
    """Go back to what the process was started with, after what is free went back to the kernel once; False without glibc, or when the process
    was started without these settings.
    """
    names = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
    if not all(name in os.environ for name in names):
        return False
    mmap_bytes, trim_bytes = (int(os.environ[name]) for name in names)
    return _set(mmap_bytes, trim_bytes)
