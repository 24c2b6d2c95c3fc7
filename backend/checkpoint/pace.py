"""How fast a checkpoint is written while acts need the same core: in short turns, with a rest after each.

    the copy, an act's time   ====
    its rest                      ................| the step with the copy is over
    turns of writing                              =..........=..........=..........     | three quarters of the time to the next save

A turn rests so long that copy and writing take no more than a small share of the core at any time, or, where the next save comes sooner than
that allows, so large a share that the work is spread evenly over the time until then.  Whoever waits for the save makes it hurry.
"""

from __future__ import annotations

import math
import threading
import time

__all__ = ["SHARE", "Pace", "rest_s"]

SHARE = 0.03
"""Of its core a rank on a CPU copies and writes with no more than this share, unless the next save would come too soon."""
_TURN_S = 0.001
_SPREAD = 0.75
"""Of the time between two saves, in which one is written."""
_S_PER_BYTE = 0.8e-9
"""Of a core's time, before anything was written [measured: 18 ms for 22.5 MB, checksum and page cache, one core of a Xeon, 2026-11]"""


def rest_s(worked_s: float, share: float, remaining_s: float, left_s: float) -> float:
    """How long to rest after work, in seconds.

        rest = worked (1 / s - 1),   s = max(share, remaining / left), at most 1

    Args:
        worked_s, remaining_s: of a core's time.   share: above 0, at most 1.   left_s: until all is to be done; may be infinite, or past.
    """
    needed = remaining_s / left_s if left_s > remaining_s else 1.0
    return worked_s * (1 / max(share, needed) - 1)


class Pace:
    """Keeps the writer's thread to it.

    Args:
        share: 1: no rests, since acts need no core of this host.
    """

    def __init__(self, share: float = SHARE) -> None:
        self._share, self.hurry = share, threading.Event()
        self._s_per_byte, self._size_bytes = _S_PER_BYTE, 0
        self._end_s = math.inf
        self._begun_s = self._turn_s = 0.0

    def begin(self, size_bytes: int, *, copied_s: float, step_s: float, interval_s: float) -> None:
        """Before the first byte.

        Args:
            size_bytes: that will be written.   copied_s: of a core's time, which copying them took.   step_s: of a step; 0: not known.
            interval_s: until the next save.
        """
        self._size_bytes, self._end_s = size_bytes, time.monotonic() + _SPREAD * interval_s
        least_s = min(step_s, interval_s / 4) if self._share < 1 else 0.0
        self._rest(copied_s, size_bytes * self._s_per_byte, least_s)
        self._begun_s = self._turn_s = time.thread_time()

    def rest(self, written_bytes: int) -> None:
        """After a piece; returns when the next may be written."""
        now_s = time.thread_time()
        if now_s - self._turn_s < _TURN_S or written_bytes >= self._size_bytes:
            return
        self._s_per_byte = (now_s - self._begun_s) / written_bytes
        self._rest(now_s - self._turn_s, (self._size_bytes - written_bytes) * self._s_per_byte)
        self._turn_s = time.thread_time()

    def _rest(self, worked_s: float, remaining_s: float, least_s: float = 0.0) -> None:
        self.hurry.wait(max(least_s, rest_s(worked_s, self._share, remaining_s, self._end_s - time.monotonic())))
