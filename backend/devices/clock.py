"""A device's clock beside the host's, tied again and again: the two run at rates that differ by some parts per million.

    host      h0 ----------- h1 ----------- h2
               |  tie         |  tie         |          every TIE_EVERY_NS, and before the first event
    device    d0 ----------- d1 ---- e ----- d2

(1)  t(e) = h1 + (d(e) - d1) (h1 - h0) / (d1 - d0)        from the last tie before e, at the rate between the last two -> DeviceClock.host_ns
     error <= width of the tie + what the rate changes within one interval

One tie at the start, as before, let two clocks that differ by 20 millionths drift apart by 72 ms in an hour.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["DeviceClock", "Tie"]

Point = TypeVar("Point")
"""An event of the device."""

TIE_EVERY_NS = 500_000_000
_LEAST_FOR_RATE_NS = 100_000_000
_KEPT = 64


@dataclass(frozen=True, slots=True)
class Tie(Generic[Point]):
    """An event that was reached at a known time.   width_ns: bound of the error, the time of its record and the wait for it."""

    event: Point
    host_ns: int
    width_ns: int


class DeviceClock(Generic[Point]):
    """Host times of a device's events.

    Args:
        tie: makes a Tie now; takes some 10 us.   elapsed_ns: from one event to a later one (or earlier: negative).
    """

    def __init__(self, tie: Callable[[], Tie[Point]], elapsed_ns: Callable[[Point, Point], float]) -> None:
        self._tie, self._elapsed_ns = tie, elapsed_ns
        self._lock = threading.Lock()
        self._ties = [tie()]
        self._rates = [1.0]
        """Host time per device time behind each tie."""

    @property
    def count(self) -> int:
        """Ties so far."""
        with self._lock:
            return len(self._ties)

    @property
    def bound_ns(self) -> int:
        """Error of the last tie."""
        with self._lock:
            return self._ties[-1].width_ns

    def host_ns(self, event: Point) -> int:
        """When an event that was reached was reached; equation (1).  Ties the clocks anew where the last tie is old."""
        with self._lock:
            if time.monotonic_ns() - self._ties[-1].host_ns > TIE_EVERY_NS:
                self._add(self._tie())
            place = len(self._ties) - 1
            elapsed = self._elapsed_ns(self._ties[place].event, event)
            while elapsed < 0 and place > 0:
                place -= 1
                elapsed = self._elapsed_ns(self._ties[place].event, event)
            return self._ties[place].host_ns + round(elapsed * self._rates[place])

    def _add(self, tie: Tie[Point]) -> None:
        """The rate up to the new tie is known now; the time behind it is taken to run at the same rate."""
        last = self._ties[-1]
        elapsed = self._elapsed_ns(last.event, tie.event)
        rate = (tie.host_ns - last.host_ns) / elapsed if elapsed > _LEAST_FOR_RATE_NS else self._rates[-1]
        self._rates[-1] = rate
        self._ties.append(tie)
        self._rates.append(rate)
        del self._ties[:-_KEPT], self._rates[:-_KEPT]
