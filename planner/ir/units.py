"""SI units.  Inside the house every number is in seconds, bytes, flop; prefixes live only at the edges."""

from __future__ import annotations

import math

__all__ = ["GB", "GIB", "KB", "KIB", "MB", "MIB", "MS", "US", "show_bytes", "show_s"]

KB, MB, GB = 10**3, 10**6, 10**9
KIB, MIB, GIB = 2**10, 2**20, 2**30
US, MS = 1e-6, 1e-3


def show_bytes(size_bytes: float) -> str:
    """Bytes for people, in binary prefixes.

    >>> show_bytes(3 * 2**20)
    '3.0 MiB'
    """
    if size_bytes >= 2**70:
        return f"more than 2^{math.log2(size_bytes):.0f} B"
    for unit, scale in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(size_bytes) >= scale:
            return f"{size_bytes / scale:.1f} {unit}"
    return f"{size_bytes:.0f} B"


def show_s(time_s: float) -> str:
    """Seconds for people.

    >>> show_s(0.0123)
    '12.30 ms'
    """
    if abs(time_s) >= 1:
        return f"{time_s:.3f} s"
    if abs(time_s) >= MS:
        return f"{time_s / MS:.2f} ms"
    return f"{time_s / US:.1f} us"
