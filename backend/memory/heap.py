"""The C library's heap of a worker, in two moods (glibc; elsewhere nothing happens).

keeping   freed memory stays in the process: quick, and fragments of it pile up                      (workers.ENVIRONMENT)
tight     what is freed goes back to the kernel: small, and every new tensor faults its pages in
"""

from __future__ import annotations

import ctypes
import os

from backend.memory.switches import switch

__all__ = ["keep_heap", "tight_wanted", "tighten_heap"]

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


def tight_wanted() -> bool:
    """REGISTA_MALLOC=tight: the heap stays small all the time.

    Raises:
        InvalidProgram: another value than that and none.
    """
    return switch("REGISTA_MALLOC", ("", "tight"), "") == "tight"


def keep_heap() -> bool:
    """What the process was started with again, and what is free goes back once; False if it stays tight (tight_wanted), without glibc, or when
    the process was started with nothing.
    """
    if tight_wanted():
        return False
    names = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
    if not all(name in os.environ for name in names):
        return False
    mmap_bytes, trim_bytes = (int(os.environ[name]) for name in names)
    return _set(mmap_bytes, trim_bytes)
