"""Acts in flight: they were put into lanes, and nobody has observed their ends yet.  At its end an act gives its times, or its error.

put into the lane --> [in flight] --> seen to end --> rows
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from backend.devices.device import Lane
from backend.inprocess.lanes.hazards import Mark
from backend.inprocess.rendezvous import JointAct

__all__ = ["Flight", "Flights", "LateError", "Past"]


class Past:
    """The event of something that has ended already."""

    __slots__ = ("_time_ns",)

    def __init__(self, time_ns: int) -> None:
        self._time_ns = time_ns

    def synchronize(self) -> None:
        pass

    def reached(self) -> bool:
        return True

    def time_ns(self) -> int:
        return self._time_ns


@dataclass(frozen=True, slots=True)
class Flight:
    """``order``: of being put into lanes."""

    joint: JointAct
    mark: Mark
    order: int


class LateError(Exception):
    """An act failed after it was put into its lane.   others: what was in flight with it, which may be at fault too."""

    def __init__(self, joint: JointAct, others: Sequence[JointAct], error: BaseException) -> None:
        super().__init__(str(error))
        self.joint, self.others, self.error = joint, tuple(others), error


class Flights:
    """One deque per lane; a lane's is used by one thread at a time, as the lane is.

    Args:
        ended: called with (joint, start, end), times in ns, for every act that was seen to end.
    """

    def __init__(self, ended: Callable[[JointAct, int, int], None]) -> None:
        self._ended = ended
        self._lanes: dict[int, deque[Flight]] = {}
        self._count = itertools.count()

    def add(self, joint: JointAct, mark: Mark) -> None:
        """Note an act."""
        self._lanes.setdefault(id(mark.lane), deque()).append(Flight(joint, mark, next(self._count)))

    def land_reached(self, lane: Lane) -> int:
        """See to their ends those acts of a lane that have ended; returns how many are still in flight.

        Raises:
            LateError: one of them failed.
        """
        queued = self._lanes.get(id(lane))
        while queued and self._reached(queued[0]):
            self._land(queued, len(queued) - 1)
        return len(queued or ())

    def _reached(self, flight: Flight) -> bool:
        """A GPU tells of a failed kernel as soon as an event is asked."""
        try:
            return flight.mark.event.reached()
        except Exception as error:
            raise self.first_cause(flight.joint, error) from error

    def land_all(self, lane: Lane) -> None:
        """Wait until no act of a lane is in flight.

        Raises:
            LateError: one of them failed.
        """
        self._land(self._lanes[id(lane)], 0)

    def drain(self, timeout_s: float) -> None:
        """Wait for all.

        Raises:
            LateError: one of them failed, or none ended for timeout_s.
        """
        for queued in list(self._lanes.values()):
            while queued:
                self._await(queued[0], timeout_s)
                self._land(queued, len(queued) - 1)

    def _await(self, flight: Flight, timeout_s: float) -> None:
        """An event cannot be waited for with a limit, so it is asked now and then."""
        until, pause_s = time.monotonic() + timeout_s, 1e-5
        while not self._reached(flight):
            if time.monotonic() > until:
                raise LateError(flight.joint, [], TimeoutError(f"it is in its lane and did not end for {timeout_s:g} s"))
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 1e-3)

    def _land(self, queued: deque[Flight], keep: int) -> None:
        while len(queued) > keep:
            flight = queued[0]
            try:
                flight.mark.event.synchronize()
            except Exception as error:
                raise self.first_cause(flight.joint, error) from error
            queued.popleft()
            self._ended(flight.joint, *flight.mark.times_ns())

    def first_cause(self, joint: JointAct, error: BaseException) -> LateError:
        """Why an act of ``joint`` failed: in the order in which they were put into lanes, the first that did not end well, as all that it
        waited for stands before it; where all others did, the act itself.
        """
        flying = sorted((flight for queued in list(self._lanes.values()) for flight in list(queued)), key=lambda flight: flight.order)
        for place, flight in enumerate(flying):
            try:
                flight.mark.event.synchronize()
            except Exception as cause:
                return LateError(flight.joint, [other.joint for other in flying[place + 1 :]], cause)
        return LateError(joint, [], error)
