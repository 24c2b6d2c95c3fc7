"""The Actors of all ranks of one process, stepped by the threads that perform their acts.

    thread:  take an act --> [work] --> lock: end it, deliver its messages, start what may start now --> take the next, of whatever stream
                                                   more than one: wake others

A monitor, like backend.worker.loop, but with one lock for all ranks: a message is a call.  A stream is busy or free by its gate, so any thread may
serve any stream, and a chain of acts across streams and ranks runs on one thread without a wake-up (14 us each, measured 2026-11).  There are
at most as many threads as streams, so that no stream waits for a thread.

On devices with lanes an act ends, for its Actor, when it has been put into its lane; events keep the order (backend.inprocess.hazards).
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping

import torch

from backend.acts.act import settle
from backend.devices.device import Device
from backend.inprocess.body import ProcessBody
from backend.inprocess.flights import Flights, LateError, Past
from backend.inprocess.hazards import Hazards, Mark
from backend.inprocess.rendezvous import Crew, Rendezvous
from backend.memory.blocks import Blocks
from planner.ir.actors.actor import Actor, ActorId, Message, build_actors
from planner.ir.actors.deadlock import explain_wait
from planner.ir.errors import RegistaError, WorkerFailed
from planner.ir.plan import Plan, Task, TaskKind

__all__ = ["Engine"]

GateKey = tuple[str, int]
Row = tuple[ActorId, int, int, int, int]
"""(actor, number, ready, start, end), times in ns of CLOCK_MONOTONIC."""

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
        self.plan, self.rows = plan, list[Row]()
        self.news: queue.SimpleQueue[tuple[int, float] | None] = queue.SimpleQueue()
        self._body, self._blocks, self._timeout_s = body, blocks, timeout_s
        self._lanes = any(not device.immediate for device in devices.values())
        self._actors, self._gates = build_actors(plan, steps)
        self._lock = threading.Lock()
        self._work_there = threading.Condition(self._lock)
        self._queue: deque[Crew] = deque()
        self._idle = 0
        self._threads: list[threading.Thread] = []
        self._over = False
        self._error: WorkerFailed | None = None
        self._last_event_s = time.monotonic()
        self._ready_ns: dict[ActorId, int] = {}
        # Ready actors per gate: a gate without any needs no look at its members.
        self._waiting: dict[GateKey, int] = dict.fromkeys(self._gates, 0)
        self._crews = {key: plan.peers(actor.task, actor.rank) for key, actor in self._actors.items()}
        self._meetings: dict[tuple[str, tuple[int, ...]], Rendezvous] = {}
        self._senders = self._count_senders()
        self._arrived: dict[tuple[str, int, int], int] = {}
        self._alone, self._most_threads = alone, 1 if alone else len(self._gates)
        self._hazards = Hazards()
        self._last: dict[GateKey, Mark] = {}
        self._begun_ready: dict[tuple[ActorId, int], int] = {}
        self._flights = Flights(ahead, self._landed)
        self._unfinished = sum(not actor.done for actor in self._actors.values())

    def _count_senders(self) -> dict[tuple[str, int], int]:
        found: dict[tuple[str, int], int] = {}
        for actor in self._actors.values():
            if actor.task.kind is TaskKind.TRANSFER:
                for target in self._body.targets(actor.id):
                    found[actor.task.id, target] = found.get((actor.task.id, target), 0) + 1
        return found

    def run(self, on_progress: Callable[[int, float], None] | None = None) -> None:
        """Until every actor has done all its acts; no thread is left then, but one whose act does not end.

        Raises:
            WorkerFailed: an act raised, or nothing ended for timeout_s.   KeyboardInterrupt, and whatever on_progress raises.
        """
        try:
            with self._lock:
                self._last_event_s = time.monotonic()
                self._note_ready(self._actors.values())
                self._dispatch(self._gates)
                self._wake(len(self._queue))
                self._look_for_the_end()
            while (told := self._wait()) is not None:
                if on_progress is not None:
                    on_progress(*told)
            if self._error is not None:
                raise self._error
        finally:
            self._stop()
        try:
            self._flights.drain(self._timeout_s)
        except LateError as late:
            raise self._late(late) from late.error

    def _wait(self) -> tuple[int, float] | None:
        while True:
            try:
                return self.news.get(timeout=min(self._timeout_s / 4, 1.0))
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
            crew = self._next()
            while crew is not None:
                try:
                    if self._lanes:
                        self._put_into_lane(crew)
                    else:
                        self._do(crew)
                except LateError as late:
                    self._fail(self._late(late), late.error)
                    return
                except BaseException as error:
                    cause = self._flights.first_cause(crew, error)
                    self._fail(self._late(cause), cause.error)
                    return
                crew = self._ended(crew)

    def _next(self) -> Crew | None:
        with self._lock:
            return self._take()

    def _take(self) -> Crew | None:
        while not self._over:
            if self._queue:
                return self._queue.popleft()
            self._idle += 1  # whoever wakes a thread counts it out
            self._work_there.wait()
        return None

    def _do(self, crew: Crew) -> None:
        start_ns = time.monotonic_ns()
        self._body.take(crew)()
        end_ns = time.monotonic_ns()
        for actor, number in crew:
            self.rows.append((actor.id, number, self._begun_ready.pop((actor.id, number)), start_ns, end_ns))

    def _put_into_lane(self, crew: Crew) -> None:
        reads, writes, waits = self._dangers(crew)
        lane = self._body.lane(crew)
        work = self._body.take(crew)
        for mark in waits:
            if mark.lane is not lane:
                lane.wait(mark.event)
        start = lane.record() or Past(time.monotonic_ns())
        lane.enqueue(work)
        end = lane.record() or Past(time.monotonic_ns())
        mark = Mark(lane, start, end, tuple(waits))
        with self._lock:
            self._hazards.enqueued(mark, reads, writes)
            for actor, _ in crew:
                self._last[actor.task.stream, actor.rank] = mark
        # What is done on the host's behalf has ended when its message says so.
        host = self.plan.stream[crew[0][0].task.stream].kind.is_host
        self._flights.add(crew, mark, keep=0 if host or lane.immediate or self._alone else None)

    def _dangers(self, crew: Crew) -> tuple[list[Hashable], list[Hashable], list[Mark]]:
        """(blocks read, blocks written, what to wait for) of an act."""
        reads: list[Hashable] = []
        writes: list[Hashable] = []
        marks: dict[int, Mark] = {}
        with self._lock:
            for actor, _ in crew:
                found = [self._last[actor.task.stream, actor.rank]] if (actor.task.stream, actor.rank) in self._last else []
                for incoming in actor.inputs.values():
                    key = incoming.regst, actor.rank, incoming.slot
                    reads.append(key)
                    found += self._hazards.read(key)
                ranks = self._body.targets(actor.id) if actor.task.kind is TaskKind.TRANSFER else (actor.rank,)
                for out in actor.outputs.values():
                    for rank in ranks:
                        key = out.regst, rank, out.slot
                        writes.append(key)
                        found += self._hazards.write(key, out.produced)
                marks |= {id(mark): mark for mark in found}
        return reads, writes, list(marks.values())

    def _landed(self, crew: Crew, start_ns: int, end_ns: int) -> None:
        for actor, number in crew:
            ready_ns = self._begun_ready.pop((actor.id, number))
            self.rows.append((actor.id, number, min(ready_ns, start_ns), start_ns, end_ns))

    def _ended(self, crew: Crew) -> Crew | None:
        """Account for an act; returns the next one for this thread."""
        with self._lock:
            self._last_event_s = time.monotonic()
            if self._over:
                return None
            try:
                self._finish(crew)
            except Exception as error:
                self._error = self._told(crew, error)
                self._end()
                return None
            self._look_for_the_end()
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
        self.news.put(None)

    def _look_for_the_end(self) -> None:
        if not self._unfinished and not self._over:
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

    def _finish(self, crew: Crew) -> None:
        gates: dict[GateKey, None] = {}
        messages: list[Message] = []
        for actor, number in crew:
            task = actor.task
            transfer = task.kind is TaskKind.TRANSFER
            settle(actor, self._blocks[actor.rank], produced_here=not transfer)
            if transfer:
                self._arrive(task, actor, number)
            key = task.stream, actor.rank
            self._gates[key].finish()
            gates[key] = None
            messages += actor.end()
            if actor.done:
                self._unfinished -= 1
        touched = [actor for actor, _ in crew]
        for message in messages:
            receiver = self._actors[message.receiver]
            receiver.receive(message)
            touched.append(receiver)
            gates[receiver.task.stream, receiver.rank] = None
        self._note_ready(touched)
        self._dispatch(gates)

    def _arrive(self, task: Task, actor: Actor, number: int) -> None:
        """The last sender's act completes the receiver's block."""
        for target in self._body.targets(actor.id):
            key = task.id, target, number
            count = self._arrived.get(key, 0) + 1
            if count < self._senders[task.id, target]:
                self._arrived[key] = count
                continue
            self._arrived.pop(key, None)
            for port in actor.outputs.values():
                self._blocks[target].complete(port.regst, port.slot)

    def _note_ready(self, actors: Iterable[Actor]) -> None:
        for actor in actors:
            if actor.id not in self._ready_ns and actor.can_fire():
                self._ready_ns[actor.id] = time.monotonic_ns()
                self._waiting[actor.task.stream, actor.rank] += 1

    def _dispatch(self, gates: Iterable[GateKey]) -> None:
        for key in gates:
            gate = self._gates[key]
            if not self._waiting[key] or (actor := gate.choose()) is None:
                continue
            self._waiting[key] -= 1
            number = gate.start(actor)
            self._begun_ready[actor.id, number] = self._ready_ns.pop(actor.id)
            ranks = self._crews[actor.id]
            if len(ranks) == 1:
                self._queue.append(((actor, number),))
                continue
            place = actor.task.stream, ranks
            if place not in self._meetings:
                self._meetings[place] = Rendezvous(ranks)
            crew = self._meetings[place].come(actor, number)
            if crew is not None:
                self._queue.append(crew)

    # What to say.

    def _told(self, crew: Crew, error: BaseException) -> WorkerFailed:
        actor, number = crew[0]
        name = "" if isinstance(error, RegistaError) else f"{type(error).__name__}: "
        return WorkerFailed(f"rank {actor.rank} failed in {_where(actor, number)}: {name}{error}")

    def _late(self, late: LateError) -> WorkerFailed:
        actor, number = late.crew[0]
        also = [f"{_where(*crew[0])} of rank {crew[0][0].rank}" for crew in late.others[:4]]
        more = f"; devices tell late, and also in flight were {', '.join(also)}" if also else ""
        name = "" if isinstance(late.error, RegistaError) else f"{type(late.error).__name__}: "
        return WorkerFailed(f"rank {actor.rank} failed in {_where(actor, number)}: {name}{late.error}{more}")

    def _stalled(self) -> WorkerFailed:
        meeting = {member[0].id for place in self._meetings.values() for member in place.waiting()}
        running = [actor for actor in self._actors.values() if actor.busy and actor.id not in meeting]
        if running:
            first = running[0]
            also = "".join(f", {_where(a, a.acts_begun - 1)} of rank {a.rank}" for a in running[1:4])
            story = f"; also running{also[1:]}" if also else ""
            where = _where(first, first.acts_begun - 1)
            return WorkerFailed(
                f"rank {first.rank} failed in {where}: it is running and did not end for {self._timeout_s:g} s{story}; its thread ends when the "
                f"act returns, as no thread can be killed"
            )
        story = explain_wait(self.plan, self._actors, self._gates)
        return WorkerFailed(f"no act ended for {self._timeout_s:g} s: {story}")


def _where(actor: Actor, number: int) -> str:
    return f"task {actor.task.id} (act {number}, micro-batch {number % actor.task.acts})"
