"""The actors of all ranks of one process, stepped by the threads that perform their acts.

    thread:  take an act --> [work] --> lock: end it, deliver its messages, start what may start now --> take the next, of whatever stream
                                                   more than one: wake others

As in backend.worker.loop, the thread that brings an event handles it under a lock; here one lock serves all ranks, and a message is a call.
The bookkeeper knows which streams are busy, so any thread may perform acts of any stream, and a chain of acts across streams and ranks runs on
one thread without waking another (14 us each, measured 2026-11).  There are up to as many threads as streams, so no stream waits for one.

On devices with lanes an act ends, for its actor, when it has been put into its lane; events keep the order (backend.inprocess.hazards).
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping

import torch

from backend.acts.bookkeeper import BegunAct, Bookkeeper, Stream
from backend.devices.device import Device
from backend.inprocess.body import ProcessBody
from backend.inprocess.failures import failed, failed_late, stalled
from backend.inprocess.flights import Flights, LateError, Past
from backend.inprocess.hazards import Hazards, Mark
from backend.inprocess.rendezvous import JointAct, Rendezvous
from backend.memory.blocks import Blocks
from planner.ir.errors import WorkerFailed
from planner.ir.plan import Plan, TaskKind

__all__ = ["Engine"]

GRACE_S = 2.0
"""How long threads may take to come to their end once the run is over."""


class Engine:
    """Steps all Actors through ``steps`` steps; used once.

    Args:
        blocks, devices: per rank.   ahead: acts of one lane that may be in flight.   alone: one act at a time in the whole process.
    """

    def __init__(
        self,
        plan: Plan,
        steps: int,
        body: ProcessBody,
        blocks: Mapping[int, Blocks],
        devices: Mapping[int, Device],
        *,
        timeout_s: float,
        ahead: int,
        alone: bool = False,
    ) -> None:
        self.plan = plan
        self.progress: queue.SimpleQueue[tuple[int, float] | None] = queue.SimpleQueue()
        """(step, loss), for the thread that called ``run``; None: the run is over."""
        self._body, self._timeout_s = body, timeout_s
        self._has_lanes = any(not device.immediate for device in devices.values())
        self._book = Bookkeeper(plan, steps, blocks)
        self.rows = self._book.rows
        self._lock = threading.Lock()
        self._work_there = threading.Condition(self._lock)
        self._queue: deque[JointAct] = deque()
        self._idle = 0
        self._threads: list[threading.Thread] = []
        self._over = False
        self._error: WorkerFailed | None = None
        self._last_event_s = time.monotonic()
        self._peers = {key: plan.peers(actor.task, actor.rank) for key, actor in self._book.actors.items()}
        self._meetings: dict[tuple[str, tuple[int, ...]], Rendezvous] = {}
        self._alone, self._most_threads = alone, 1 if alone else len(self._book.streams)
        self._hazards = Hazards()
        self._last_mark: dict[tuple[str, int], Mark] = {}
        self._flights = Flights(ahead, self._seen_to_end)

    def run(self, on_progress: Callable[[int, float], None] | None = None) -> None:
        """Until every actor has done all its acts; no thread is left then, but one whose act does not end.

        Raises:
            WorkerFailed: an act raised, or nothing ended for timeout_s.   KeyboardInterrupt, and whatever on_progress raises.
        """
        try:
            with self._lock:
                self._last_event_s = time.monotonic()
                self._enqueue(self._book.begin_all())
                self._wake(len(self._queue))
                self._end_when_done()
            while (step_and_loss := self._wait()) is not None:
                if on_progress is not None:
                    on_progress(*step_and_loss)
            if self._error is not None:
                raise self._error
        finally:
            self._stop()
        try:
            self._flights.drain(self._timeout_s)
        except LateError as late:
            raise failed_late(late) from late.error

    def _wait(self) -> tuple[int, float] | None:
        while True:
            try:
                return self.progress.get(timeout=min(self._timeout_s / 4, 1.0))
            except queue.Empty:
                with self._lock:
                    if not self._over and time.monotonic() > self._last_event_s + self._timeout_s:
                        self._error = self._stalled()
                        self._end()

    def _stop(self) -> None:
        with self._lock:
            self._over = True
            self._work_there.notify_all()
        until = time.monotonic() + GRACE_S
        for thread in self._threads:
            thread.join(timeout=max(0.0, until - time.monotonic()))

    # Threads.

    def _serve(self) -> None:
        # The thread count of OpenMP is per thread; without this a small matmul costs 23 times as much.
        torch.set_num_threads(1)
        with torch.no_grad():
            joint = self._next()
            while joint is not None:
                try:
                    if self._has_lanes:
                        self._put_into_lane(joint)
                    else:
                        self._do(joint)
                except LateError as late:
                    self._fail(failed_late(late), late.error)
                    return
                except BaseException as error:
                    cause = self._flights.first_cause(joint, error)
                    self._fail(failed_late(cause), cause.error)
                    return
                joint = self._ended(joint)

    def _next(self) -> JointAct | None:
        with self._lock:
            return self._take()

    def _take(self) -> JointAct | None:
        while not self._over:
            if self._queue:
                return self._queue.popleft()
            self._idle += 1  # whoever wakes a thread counts it out
            self._work_there.wait()
        return None

    def _do(self, joint: JointAct) -> None:
        start_ns = time.monotonic_ns()
        self._body.bind(joint)()
        end_ns = time.monotonic_ns()
        for act in joint:
            self._book.record(act, start_ns, end_ns)

    def _put_into_lane(self, joint: JointAct) -> None:
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
        # What is done on the host's behalf has ended when its message says so.
        host = self.plan.stream[joint[0][0].task.stream].kind.is_host
        self._flights.add(joint, mark, keep=0 if host or lane.immediate or self._alone else None)

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

    def _seen_to_end(self, joint: JointAct, start_ns: int, end_ns: int) -> None:
        for actor, number, ready_ns in joint:
            self._book.record((actor, number, min(ready_ns, start_ns)), start_ns, end_ns)

    def _ended(self, joint: JointAct) -> JointAct | None:
        """Account for an act; returns the next one for this thread."""
        with self._lock:
            self._last_event_s = time.monotonic()
            if self._over:
                return None
            try:
                self._finish(joint)
            except Exception as error:
                self._error = failed(joint, error)
                self._end()
                return None
            self._end_when_done()
            self._wake(len(self._queue) - 1)
            return self._take()

    def _fail(self, error: WorkerFailed, cause: BaseException) -> None:
        error.__cause__ = cause
        with self._lock:
            if self._error is None and not self._over:
                self._error = error
                self._end()

    # Under the lock.

    def _end(self) -> None:
        self._over = True
        self._work_there.notify_all()
        self.progress.put(None)

    def _end_when_done(self) -> None:
        if not self._book.unfinished and not self._over:
            self._end()

    def _wake(self, acts: int) -> None:
        """Threads for so many acts: sleeping ones first."""
        woken = min(acts, self._idle)
        if woken > 0:
            self._idle -= woken
            self._work_there.notify(woken)
        for _ in range(min(acts - woken, self._most_threads - len(self._threads))):
            thread = threading.Thread(target=self._serve, daemon=True, name=f"regista act thread {len(self._threads)}")
            self._threads.append(thread)
            thread.start()

    def _finish(self, joint: JointAct) -> None:
        streams: dict[int, Stream] = {}
        for act in joint:
            streams |= {id(stream): stream for stream in self._book.finish(act)}
        self._enqueue(self._book.begin(streams.values()))

    def _enqueue(self, acts: Iterable[BegunAct]) -> None:
        """Put acts that have begun into the queue; one of a collective when all its ranks have begun it."""
        for act in acts:
            actor = act[0]
            ranks = self._peers[actor.id]
            if len(ranks) == 1:
                self._queue.append((act,))
                continue
            meeting = self._meetings.setdefault((actor.task.stream, ranks), Rendezvous(ranks))
            joint = meeting.come(act)
            if joint is not None:
                self._queue.append(joint)

    def _stalled(self) -> WorkerFailed:
        meeting = {act[0].id for place in self._meetings.values() for act in place.waiting()}
        return stalled(self.plan, self._book.actors, self._book.gates, meeting, self._timeout_s)
