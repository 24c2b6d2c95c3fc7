"""Acts on devices with lanes: each is put behind the events that it must wait for, and is seen to end later.

    LaneActs.put(joint):   hazards --> lane.wait(event) ... --> start = record, work, end = record --> Flights

Acts whose lane is one of a device are put there by one thread of the process (Engine): then the libraries of the device keep one workspace per
lane and not one per lane and thread, no two captures meet, and no thread is woken to launch.  It never waits for a lane that is full while
another has room.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable

from backend.inprocess.body import ProcessBody
from backend.inprocess.lanes.flights import Flights, LateError, Past
from backend.inprocess.lanes.hazards import Hazards, Mark
from backend.inprocess.rendezvous import JointAct
from planner.ir.plan import Plan, TaskKind

__all__ = ["LaneActs"]


class LaneActs:
    """See the module's text.

    Args:
        ahead: acts of one lane that may be in flight.   alone: one act at a time in the whole process.
        ended: called with (joint, start, end), in ns, of every act that was seen to end.
    """

    def __init__(self, plan: Plan, body: ProcessBody, ended: Callable[[JointAct, int, int], None], *, ahead: int, alone: bool) -> None:
        self._plan, self._body, self._ahead, self._alone = plan, body, ahead, alone
        self._lock = threading.Lock()
        self._hazards = Hazards()
        self._last_mark: dict[tuple[str, int], Mark] = {}
        self._flights = Flights(ended)

    def is_launched(self, joint: JointAct) -> bool:
        """Whether the act goes to a lane of a device, and so through the one thread that launches."""
        return not self._body.lane(joint).immediate

    def has_room(self, joint: JointAct) -> bool:
        """Whether fewer than ``ahead`` acts of its lane are in flight.

        Raises:
            LateError: one that has ended failed.
        """
        return self._flights.land_reached(self._body.lane(joint)) < self._ahead

    def put(self, joint: JointAct) -> None:
        """Put an act into its lane; of an immediate lane it is performed here, and now.

        Raises:
            LateError: an act failed that was put there earlier.
        """
        reads, writes, waits = self._hazards_of(joint)
        lane = self._body.lane(joint)
        work = self._body.bind(joint)
        for mark in waits:
            if mark.lane is not lane:
                lane.wait(mark.event)
        start = lane.record() or Past(time.monotonic_ns())
        lane.enqueue(work)
        end = lane.record() or Past(time.monotonic_ns())
        mark = Mark(lane, start, end, tuple(waits))
        with self._lock:
            self._hazards.enqueued(mark, reads, writes)
            for actor, _, _ in joint:
                self._last_mark[actor.task.stream, actor.rank] = mark
        self._flights.add(joint, mark)
        # What is done on the host's behalf has ended when its message says so.
        if lane.immediate or self._alone or self._plan.stream[joint[0][0].task.stream].kind.is_host:
            self._flights.land_all(lane)

    def drain(self, timeout_s: float) -> None:
        """Wait for all that is in flight.

        Raises:
            LateError: an act failed, or none ended for timeout_s.
        """
        self._flights.drain(timeout_s)

    def first_cause(self, joint: JointAct, error: BaseException) -> LateError:
        """Why an act of ``joint`` failed (Flights.first_cause)."""
        return self._flights.first_cause(joint, error)

    def _hazards_of(self, joint: JointAct) -> tuple[list[Hashable], list[Hashable], list[Mark]]:
        """(blocks read, blocks written, what to wait for) of an act."""
        reads: list[Hashable] = []
        writes: list[Hashable] = []
        marks: dict[int, Mark] = {}
        with self._lock:
            for actor, _, _ in joint:
                last = self._last_mark.get((actor.task.stream, actor.rank))
                conflicting = [last] if last is not None else []
                for incoming in actor.inputs.values():
                    key = incoming.regst, actor.rank, incoming.slot
                    reads.append(key)
                    conflicting += self._hazards.read(key)
                ranks = self._body.targets(actor.id) if actor.task.kind is TaskKind.TRANSFER else (actor.rank,)
                for out in actor.outputs.values():
                    for rank in ranks:
                        key = out.regst, rank, out.slot
                        writes.append(key)
                        conflicting += self._hazards.write(key, out.produced)
                marks |= {id(mark): mark for mark in conflicting}
        return reads, writes, list(marks.values())
