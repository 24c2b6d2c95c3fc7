"""How long work takes on a device, alone on it: events of a lane where the device has them, the host's clock where the calling thread computes.

lane of a GPU   event | work work ... work | event      recorded as one graph, so that the host's launches are not in between
CPU             clock   work work ... work   clock
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import ceil
from statistics import quantiles

from backend.devices.device import CaptureFailed, Device, Lane, Work

__all__ = ["Spread", "Stopwatch"]

LEAST_S = 1e-3
"""Of one round: enough that what events tell of is exact to a thousandth."""
MOST_REPEATS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Median and quartiles in seconds, over so many rounds."""

    seconds: float
    low_s: float
    high_s: float
    rounds: int


class Stopwatch:
    """Times work on one lane of a device.   graphs: whether the device records work; the lane says where it cannot.

    Attributes:
        eager: how often work could not be recorded and was launched op by op.
    """

    def __init__(self, device: Device, *, rounds: int = 7, least_s: float = LEAST_S) -> None:
        self._device, self._rounds, self._least_s = device, rounds, least_s
        self._lane: Lane = device.lane("stopwatch")
        self.eager = 0

    def times(self, work: Work) -> Spread:
        """Of one call of ``work``, which is performed often.  Raises what the work raises."""
        self._span_s(work)  # libraries set themselves up
        repeats = min(max(ceil(self._least_s / self._span_s(work)), 1), MOST_REPEATS)

        def repeated() -> None:
            for _ in range(repeats):
                work()

        recorded: Work = repeated
        if not self._lane.immediate:
            try:
                recorded = self._lane.again(repeated)
            except CaptureFailed:
                self.eager += 1
        self._span_s(recorded)
        values = sorted(self._span_s(recorded) / repeats for _ in range(self._rounds))
        low, middle, high = quantiles(values, n=4) if len(values) > 1 else values * 3
        return Spread(seconds=middle, low_s=low, high_s=high, rounds=len(values))

    def launch_s(self, work: Work, count: int = 1000) -> float:
        """What the host takes to put one small piece of work into the lane."""
        self._span_s(work)
        begin = time.perf_counter()
        for _ in range(count):
            self._lane.enqueue(work)
        taken_s = time.perf_counter() - begin
        self._device.synchronize()
        return taken_s / count

    def _span_s(self, work: Work) -> float:
        begin = time.perf_counter()
        start = self._lane.record()
        self._lane.enqueue(work)
        end = self._lane.record()
        if start is None or end is None:
            return max(time.perf_counter() - begin, 1e-9)
        end.synchronize()
        return max((end.time_ns() - start.time_ns()) * 1e-9, 1e-9)
