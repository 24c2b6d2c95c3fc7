"""One rank of a run: its Actors, stepped by events.

    readers of sockets --arrived, ack--> +---------------------+ --acts that may start--> the thread that brought the event, or others
                                         | Actors, gates,      |
    threads of acts ---------done------> | accounts of blocks  | --ack to other ranks--> control sockets
                                         +---------------------+

A monitor: the thread that brings an event handles it, under one lock.  A thread of its own for the Actors would cost a wake-up of 14 us or
more for every event (measured 2026-11, 2 cores); who performs what comes of it is said in backend.worker.threads.
Nobody blocks while holding the lock: threads compute and receive outside of it.
"""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass

from backend.comm.transport import Frame, Mesh
from backend.run_folder.files import Failure
from backend.worker.rank import RankBody
from backend.worker.threads import Act, ActThreads, prepare_thread
from planner.ir.actors.actor import Actor, ActorId, Message, MessageKind, StreamGate, build_actors
from planner.ir.actors.routes import routes
from planner.ir.errors import RegistaError, WorkerFailed
from planner.ir.plan import Plan, TaskKind

__all__ = ["ActRow", "EventLoop", "RankFailed"]

ActRow = tuple[int, int, int, int, int]
"""(task's place in the Plan, number, ready, start, end), times in ns of CLOCK_MONOTONIC, which all processes of a host share."""


class RankFailed(Exception):
    """Carries the Failure that ends this worker."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


# Events are made once per act and read once: not frozen, as setting a frozen field costs 0.3 us.


@dataclass(slots=True)
class _Done:
    actor: Actor
    number: int
    start_ns: int
    end_ns: int


@dataclass(slots=True)
class _Arrived:
    task: int
    number: int
    sender: int
    time_ns: int = 0


@dataclass(slots=True)
class _Acked:
    link: int


@dataclass(slots=True)
class _Failed:
    failure: Failure


_Event = _Done | _Arrived | _Acked | _Failed


@dataclass(slots=True, eq=False)
class _Lane:
    """A stream of this rank.  ready: actors that can fire and have not begun; without any the gate needs no look at its members."""

    gate: StreamGate
    ready: int = 0


def ack_links(plan: Plan) -> list[Message]:
    """Every acknowledgement that crosses ranks, in Plan order.  Both ends count the same Plan, so a place in this list says everything."""
    found: list[Message] = []
    for task in plan.tasks:
        if task.kind is not TaskKind.TRANSFER:
            continue
        for src, targets in routes(plan, task).items():
            for port in task.produces:
                for consumer, _ in plan.consumers[port.regst]:
                    found += [Message(MessageKind.ACK, port.regst, (consumer.id, dst), (task.id, src)) for dst in targets]
    return found


class EventLoop:
    """Steps the Actors of one rank through ``steps`` steps.

    Args:
        live: ``steps`` is not the last word; ``allow`` says how far to go, and which step is the last.
    """

    def __init__(self, plan: Plan, rank: int, steps: int, body: RankBody, mesh: Mesh, timeout_s: float, *, live: bool = False) -> None:
        self.plan, self.rank = plan, rank
        self.rows: list[ActRow] = []
        self._body, self._mesh, self._timeout_s = body, mesh, timeout_s
        actors, gates = build_actors(plan, steps)
        self._actors = {key: actor for key, actor in actors.items() if key[1] == rank}
        lanes = {stream: _Lane(gate) for (stream, at), gate in gates.items() if at == rank}
        self._lanes = list(lanes.values())
        self._lane_of = {key: lanes[actor.task.stream] for key, actor in self._actors.items()}
        self._threads = ActThreads(self._act, lambda actor: actor.task.id in body.waiting)
        self._places = {task.id: place for place, task in enumerate(plan.tasks)}
        self._links = ack_links(plan)
        self._link_numbers = {link: number for number, link in enumerate(self._links)}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._failure_found: Failure | None = None
        self._last_event_s = time.monotonic()
        self._later: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._ready_ns: dict[ActorId, int] = {}
        self._arrivals: dict[tuple[int, int], int] = {}
        self._readies: dict[tuple[int, int], list[Message]] = {}
        self._final = not live
        self._idle = threading.Event()
        self._count_unfinished()

    def start_threads(self) -> None:
        self._threads.start(len(self._lanes))
        self._mesh.start_readers(self._on_control, self._on_data, self._on_lost, prepare_thread)

    def run(self) -> None:
        """Until every actor of this rank has done all its acts.

        Raises:
            RankFailed: an act raised, a peer was lost, or nothing moved for timeout_s.
        """
        with self._lock:
            self._last_event_s = time.monotonic()
            self._note_ready(self._actors.values())
            self._threads.hand_over(self._begin(self._lanes))
            self._look_for_the_end()
        while not self._over.wait(min(self._timeout_s / 4, 1.0)):
            if self._idle.is_set():
                self._last_event_s = time.monotonic()  # nobody asked for anything
            if time.monotonic() > self._last_event_s + self._timeout_s:
                with self._lock:
                    raise RankFailed(self._stalled())
        if self._failure_found is not None:
            raise RankFailed(self._failure_found)

    def allow(self, steps: int, *, final: bool = False) -> None:
        """Go on up to ``steps`` steps, counted from the start of the run; ``final``: and end there."""
        with self._lock:
            self._last_event_s = time.monotonic()
            self._final = self._final or final
            for actor in self._actors.values():
                actor.total_acts = steps * actor.task.acts
            self._count_unfinished()
            self._note_ready(self._actors.values())
            self._threads.hand_over(self._begin(self._lanes))
            self._look_for_the_end()

    def fail(self, failure: Failure) -> None:
        """End the run with a fault that arose outside of an act."""
        self._threads.hand_over(self._post(_Failed(failure)))

    @property
    def steps_done(self) -> int:
        """Steps whose acts of this rank are all done."""
        return min(actor.acts_begun // actor.task.acts for actor in self._actors.values())

    def wait_idle(self) -> bool:
        """Wait until all that was allowed is done; False when the run failed first."""
        while not self._idle.wait(0.1):
            if self._over.is_set():
                return self._idle.is_set()
        return True

    def stop(self) -> None:
        self._threads.stop()

    def arrivals(self, task: str, senders: set[int], timeout_s: float) -> list[tuple[int, int]]:
        """After the run: wait until a payload of ``task`` came from every sender; (sender, time in ns).

        Raises:
            RankFailed: a peer was lost, or nothing came for timeout_s.
        """
        found: list[tuple[int, int]] = []
        while len(found) < len(senders):
            try:
                event = self._later.get(timeout=timeout_s)
            except queue.Empty:
                message = f"timing {task}: nothing came from ranks {sorted(senders)} for {timeout_s:g} s"
                raise RankFailed(Failure(rank=self.rank, kind="stalled", message=message, task=task)) from None
            if isinstance(event, _Failed):
                raise RankFailed(event.failure)
            if isinstance(event, _Arrived) and self.plan.tasks[event.task].id == task:
                found.append((event.sender, event.time_ns))
        return found

    def _post(self, event: _Event) -> list[Act]:
        """Handle an event on the thread that brings it; returns what it is to do next, or to hand over."""
        acts: list[Act] = []
        with self._lock:
            self._last_event_s = time.monotonic()
            if self._over.is_set():
                self._later.put(event)
                return acts
            try:
                acts = self._begin(self._handle(event))
            except RankFailed as failed:
                self._failure_found = failed.failure
                self._over.set()
            except Exception as error:
                lost = isinstance(error, WorkerFailed)
                story = "".join(traceback.format_exception(error))
                self._failure_found = Failure(rank=self.rank, kind="peer_lost" if lost else "raised", message=str(error), traceback=story)
                self._over.set()
            self._look_for_the_end()
        return acts

    # Under the lock.

    def _count_unfinished(self) -> None:
        self._unfinished = sum(not actor.done for actor in self._actors.values())
        self._idle.clear()

    def _look_for_the_end(self) -> None:
        if not self._unfinished:
            self._idle.set()
            if self._final:
                self._over.set()

    def _handle(self, event: _Event) -> list[_Lane]:
        """Account for one event; returns the lanes in which something may start now."""
        match event:
            case _Done():
                return self._finish(event)
            case _Acked(link):
                message = self._links[link]
                return self._deliver([message])
            case _Arrived():
                return self._deliver(self._arrive(event))
            case _Failed(failure):
                raise RankFailed(failure)

    def _finish(self, done: _Done) -> list[_Lane]:
        actor, task = done.actor, done.actor.task
        lane = self._lane_of[actor.id]
        self.rows.append((self._places[task.id], done.number, self._ready_ns.pop(actor.id), done.start_ns, done.end_ns))
        self._body.settle(actor)
        lane.gate.finish()
        messages = actor.end()
        if actor.done:
            self._unfinished -= 1
        if task.kind is TaskKind.TRANSFER:
            messages = [m for m in messages if m.kind is MessageKind.ACK]
            if self.rank in self._body.targets[task.id]:
                messages += self._arrive(_Arrived(self._places[task.id], done.number, self.rank))
        self._note_ready((actor,))
        return [lane, *self._deliver(messages)]

    def _arrive(self, arrived: _Arrived) -> list[Message]:
        """READY for the consumers here; the last sender's arrival completes the block."""
        task = self.plan.tasks[arrived.task]
        key = arrived.task, arrived.number
        senders = self._body.senders[task.id]
        count = self._arrivals.get(key, 0) + 1
        if count == len(senders):
            self._arrivals.pop(key, None)
            for port in task.produces:
                self._body.blocks.complete(port.regst, arrived.number % self.plan.regst[port.regst].quota)
        else:
            self._arrivals[key] = count
        found = self._readies.get((arrived.task, arrived.sender))
        if found is None:
            sender = task.id, arrived.sender
            found = self._readies[arrived.task, arrived.sender] = [
                Message(MessageKind.READY, port.regst, sender, (consumer.id, self.rank))
                for port in task.produces
                for consumer, _ in self.plan.consumers[port.regst]
            ]
        return found

    def _deliver(self, messages: Iterable[Message]) -> list[_Lane]:
        touched: list[Actor] = []
        for message in messages:
            if message.receiver[1] != self.rank:
                self._mesh.send_control(message.receiver[1], self._link_numbers[message])
                continue
            actor = self._actors[message.receiver]
            actor.receive(message)
            touched.append(actor)
        self._note_ready(touched)
        return [self._lane_of[actor.id] for actor in touched]

    def _note_ready(self, actors: Iterable[Actor]) -> None:
        for actor in actors:
            if actor.id not in self._ready_ns and actor.can_fire():
                self._ready_ns[actor.id] = time.monotonic_ns()
                self._lane_of[actor.id].ready += 1

    def _begin(self, lanes: Iterable[_Lane]) -> list[Act]:
        """Begin what may start in these lanes; at most one act in each."""
        acts: list[Act] = []
        for lane in lanes:
            if lane.ready and (actor := lane.gate.choose()) is not None:
                lane.ready -= 1
                acts.append((actor, lane.gate.start(actor)))
        return acts

    def _stalled(self) -> Failure:
        lines = []
        for actor in self._actors.values():
            if actor.done:
                continue
            if actor.busy:
                lines.append(f"{actor.task.id} act {actor.acts_begun - 1} is running and does not end")
                continue
            for incoming in actor.inputs.values():
                if not incoming.readable:
                    sources = _names(incoming.received, incoming.consumed)
                    lines.append(f"{actor.task.id} waits for data of regst {incoming.regst} from {sources}")
            for out in actor.outputs.values():
                if not out.free:
                    lines.append(f"{actor.task.id} waits until {_names(out.acked, out.produced - out.quota)} frees regst {out.regst}")
        shown = "; ".join(sorted(lines, key=lambda line: "is running" not in line)[:8])
        return Failure(rank=self.rank, kind="stalled", message=f"no act ended and no message came for {self._timeout_s:g} s: {shown}")

    # Threads of acts.

    def _act(self, act: Act) -> list[Act] | None:
        actor, number = act
        try:
            start_ns = time.monotonic_ns()
            announce = self._body.perform(actor, number)
            end_ns = time.monotonic_ns()
            if announce is not None:
                announce()
        except BaseException as error:
            self._post(_Failed(self._failure(actor, number, error)))
            return None
        self._threads.took(actor, end_ns - start_ns)
        return self._post(_Done(actor, number, start_ns, end_ns))

    def _failure(self, actor: Actor, number: int, error: BaseException) -> Failure:
        text = str(error)
        if isinstance(error, WorkerFailed) or (actor.task.kind is TaskKind.BOXING and ("onnection" in text or "reset by peer" in text)):
            kind = "peer_lost"
        elif actor.task.kind is TaskKind.BOXING and "imed out" in text:
            kind = "stalled"
        else:
            kind = "raised"
        name = "" if isinstance(error, RegistaError) else f"{type(error).__name__}: "
        return Failure(
            rank=self.rank,
            kind=kind,
            message=f"{name}{text}",
            task=actor.task.id,
            act=number,
            micro_batch=number % actor.task.acts,
            traceback="".join(traceback.format_exception(error)),
        )

    # Reader threads.

    def _on_control(self, peer: int, link: int) -> None:
        self._threads.work(self._post(_Acked(link)), long=False)

    def _on_data(self, peer: int, connection: object, frame: Frame, task: int, number: int) -> None:
        if frame is Frame.PAYLOAD:
            self._body.receive(peer, connection, self.plan.tasks[task], number)
        else:
            self._threads.work(self._post(_Arrived(task, number, peer, time.monotonic_ns())), long=False)

    def _on_lost(self, peer: int) -> None:
        self._post(_Failed(Failure(rank=self.rank, kind="peer_lost", message=f"the connection to rank {peer} broke")))


def _names(counts: dict[ActorId, int], done: int) -> str:
    return ", ".join(f"{task} (rank {rank})" for (task, rank), count in counts.items() if count <= done)
