"""The actors of all ranks of one process, stepped by the threads that perform their acts.

    thread:  take an act --> [work] --> lock: end it, deliver its messages, start what may start now --> take the next, of whatever stream
                                                   more than one: wake others

As in backend.worker.loop, the thread that brings an event handles it under a lock; here one lock serves all ranks, and a message is a call.
The bookkeeper knows which streams are busy, so any thread may perform acts of any stream, and a chain of acts across streams and ranks runs on
one thread without waking another (14 us each, measured 2026-11).  There are up to as many threads as streams, so no stream waits for one.

On devices with lanes an act ends, for its actor, when it has been put into its lane; events keep the order (backend.inprocess.lanes.hazards).  One
thread puts all such acts there (backend.inprocess.lanes); the others do what the host does.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext

import torch

from backend.acts.bookkeeper import BegunAct, Bookkeeper, Stream
from backend.devices.device import Device
from backend.inprocess.body import ProcessBody
from backend.inprocess.failures import failed, failed_late, stalled
from backend.inprocess.lanes import LaneActs, LateError
from backend.inprocess.rendezvous import JointAct, Rendezvous
from backend.memory.blocks import Blocks
from backend.monitor.interrupts import Interrupts, noticing_interrupts
from planner.ir.errors import WorkerFailed
from planner.ir.plan import Plan

__all__ = ["Engine"]

GRACE_S = 2.0
"""How long threads may take to come to their end once the run is over."""

_LOOK_AGAIN_S = 1e-4
"""How long the launching thread sleeps while every lane that it has acts for is full."""


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
        self._launch_there = threading.Condition(self._lock)
        self._queue: deque[JointAct] = deque()
        self._launches: deque[JointAct] = deque()
        self._idle = 0
        self._threads: list[threading.Thread] = []
        self._over = False
        self._error: WorkerFailed | None = None
        self._last_event_s = time.monotonic()
        self._peers = {key: plan.peers(actor.task, actor.rank) for key, actor in self._book.actors.items()}
        self._meetings: dict[tuple[str, tuple[int, ...]], Rendezvous] = {}
        self._most_threads = 1 if alone else len(self._book.streams)
        self._alone = threading.Lock() if alone and self._has_lanes else nullcontext()
        """Held while an act is put into its lane and, of a run whose acts are alone, until it has ended."""
        self._lane_acts = LaneActs(plan, body, self._seen_to_end, ahead=ahead, alone=alone)

    def run(self, on_progress: Callable[[int, float], None] | None = None) -> None:
        """Until every actor has done all its acts; no thread is left then, but one whose act does not end.

        Raises:
            WorkerFailed: an act raised, or nothing ended for timeout_s.   KeyboardInterrupt, and whatever on_progress raises.
        """
        with noticing_interrupts() as interrupts:
            try:
                with self._lock:
                    self._last_event_s = time.monotonic()
                    if self._has_lanes:
                        self._start(self._launch, "regista launching thread")
                    self._enqueue(self._book.begin_all())
                    self._wake(len(self._queue))
                    self._end_when_done()
                while (step_and_loss := self._wait(interrupts)) is not None:
                    if on_progress is not None:
                        on_progress(*step_and_loss)
                if self._error is not None:
                    raise self._error
            finally:
                self._stop()
        try:
            self._lane_acts.drain(self._timeout_s)
        except LateError as late:
            raise failed_late(late) from late.error

    def _wait(self, interrupts: Interrupts) -> tuple[int, float] | None:
        while True:
            interrupts.check()
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
            self._launch_there.notify_all()
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
                joint = self._ended(joint) if self._done(joint) else None

    def _launch(self) -> None:
        """Put acts into the lanes of devices, those first that came first among those whose lane has room."""
        torch.set_num_threads(1)
        waiting: deque[JointAct] = deque()
        all_full = False
        with torch.no_grad():
            while True:
                with self._lock:
                    if not self._over and not self._launches and (all_full or not waiting):
                        self._launch_there.wait(_LOOK_AGAIN_S if waiting else None)
                    if self._over:
                        return
                    waiting += self._launches
                    self._launches.clear()
                try:
                    joint = next((joint for joint in waiting if self._lane_acts.has_room(joint)), None)
                except LateError as late:
                    self._fail(failed_late(late), late.error)
                    return
                except Exception as error:  # nobody else would hear of it, and the run would be given up after its time limit
                    self._fail(WorkerFailed(f"the thread that launches failed: {type(error).__name__}: {error}"), error)
                    return
                all_full = joint is None
                if joint is None:
                    continue
                waiting.remove(joint)
                if not self._done(joint):
                    return
                self._end_launched(joint)

    def _done(self, joint: JointAct) -> bool:
        """Perform an act, or put it into its lane; False: it failed, and the run is over."""
        try:
            with self._alone:
                if self._has_lanes:
                    self._lane_acts.put(joint)
                else:
                    self._do(joint)
        except LateError as late:
            self._fail(failed_late(late), late.error)
            return False
        except BaseException as error:
            cause = self._lane_acts.first_cause(joint, error)
            self._fail(failed_late(cause), cause.error)
            return False
        return True

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

    def _seen_to_end(self, joint: JointAct, start_ns: int, end_ns: int) -> None:
        for actor, number, ready_ns in joint:
            self._book.record((actor, number, min(ready_ns, start_ns)), start_ns, end_ns)

    def _ended(self, joint: JointAct) -> JointAct | None:
        """Account for an act; returns the next one for this thread."""
        with self._lock:
            if not self._account(joint):
                return None
            self._wake(len(self._queue) - 1)
            return self._take()

    def _end_launched(self, joint: JointAct) -> None:
        """Account for an act that is in its lane; what the host may do now is for other threads."""
        with self._lock:
            if self._account(joint):
                self._wake(len(self._queue))

    def _fail(self, error: WorkerFailed, cause: BaseException) -> None:
        error.__cause__ = cause
        with self._lock:
            if self._error is None and not self._over:
                self._error = error
                self._end()

    # Under the lock.

    def _account(self, joint: JointAct) -> bool:
        """Whether the run goes on."""
        self._last_event_s = time.monotonic()
        if self._over:
            return False
        try:
            self._finish(joint)
        except Exception as error:
            self._error = failed(joint, error)
            self._end()
            return False
        self._end_when_done()
        return True

    def _end(self) -> None:
        self._over = True
        self._work_there.notify_all()
        self._launch_there.notify_all()
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
        for _ in range(min(acts - woken, self._most_threads + self._has_lanes - len(self._threads))):
            self._start(self._serve, f"regista act thread {len(self._threads)}")

    def _start(self, serve: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=serve, daemon=True, name=name)
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
            joint: JointAct | None = (act,)
            if len(ranks) > 1:
                joint = self._meetings.setdefault((actor.task.stream, ranks), Rendezvous(ranks)).come(act)
            if joint is None:
                continue
            if self._has_lanes and self._lane_acts.is_launched(joint):
                self._launches.append(joint)
                self._launch_there.notify()
            else:
                self._queue.append(joint)

    def _stalled(self) -> WorkerFailed:
        meeting = {act[0].id for place in self._meetings.values() for act in place.waiting()}
        return stalled(self.plan, self._book.actors, self._book.gates, meeting, self._timeout_s)
