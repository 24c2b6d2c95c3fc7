"""One rank of a run: its actors, stepped by events.

    readers of sockets --arrived, ack--> +------------------+ --acts that may start--> the thread that brought the event, or others
                                         | Bookkeeper       |
    threads of acts ---------done------> |                  | --ack to other ranks--> control sockets
                                         +------------------+

The thread that brings an event handles it, under one lock (a monitor).  A separate thread for the actors would cost a wake-up of 14 us or
more for every event (measured 2026-11, 2 cores).  backend.worker.threads says which thread performs an act.
Threads compute and receive outside of the lock.  Acknowledgements are sent under it without waiting (Mesh.send_control), so a peer that does not
read its control socket holds up nobody here.
"""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from backend.acts.bookkeeper import BegunAct, Bookkeeper, Stream
from backend.acts.rows import ActRow, RowLog
from backend.comm.host.inbox import Inbox
from backend.comm.transport import Frame, Mesh
from backend.run_folder.files import Failure, FailureKind
from backend.worker.failures import RankFailed, failure_of_act, failure_of_reader, stalled
from backend.worker.rank import RankBody
from backend.worker.reading import SharedReader
from backend.worker.threads import ActThreads, prepare_thread
from planner.ir.actors.actor import Message, MessageKind
from planner.ir.actors.routes import routes
from planner.ir.errors import WorkerFailed
from planner.ir.plan import Plan, TaskKind

__all__ = ["EventLoop"]


# Events are made once per act and read once: not frozen, as setting a frozen field costs 0.3 us; the end of an act is a tuple, a tenth of that.

_Done = tuple[BegunAct, int, int]
"""An act, and its start and end in ns."""


@dataclass(slots=True)
class _Arrived:
    task: int
    number: int
    sender: int
    time_ns: int = 0


@dataclass(slots=True)
class _Acked:
    links: Sequence[int]


@dataclass(slots=True)
class _Failed:
    failure: Failure


_Notice = _Arrived | _Acked | _Failed
_Event = _Done | _Notice


def ack_links(plan: Plan) -> list[Message]:
    """Every acknowledgement that crosses ranks, in Plan order.  All ranks have the same Plan, so a place in this list identifies a message."""
    links: list[Message] = []
    for task in plan.tasks:
        if task.kind is not TaskKind.TRANSFER:
            continue
        for src, targets in routes(plan, task).items():
            for port in task.produces:
                for consumer, _ in plan.consumers[port.regst]:
                    links += [Message(MessageKind.ACK, port.regst, (consumer.id, dst), (task.id, src)) for dst in targets]
    return links


class EventLoop:
    """Steps the actors of one rank through ``steps`` steps.

    Args:
        live: the rank stops and waits after ``steps``; ``allow`` raises that number and says which step is the last.
        log: where rows of acts go; None: all stay in memory.
        looks: threads without anything to do look for messages before they sleep (backend.worker.reading).
        inbox: of this rank, where they look.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        steps: int,
        body: RankBody,
        mesh: Mesh,
        timeout_s: float,
        *,
        live: bool = False,
        log: RowLog | None = None,
        looks: bool = False,
        inbox: Inbox | None = None,
    ) -> None:
        self.plan, self.rank = plan, rank
        self._body, self._mesh, self._timeout_s = body, mesh, timeout_s
        self._book = Bookkeeper(plan, steps, {rank: body.blocks}, self._send, None if log is None else {rank: log})
        self.rows: Sequence[ActRow] = self._book.rows[rank]
        self._running = 0
        """Acts that have begun and not ended."""
        self._over = threading.Event()
        self._reader = SharedReader(mesh, self._on_control, self._on_data, self._on_lost, self._nothing_runs, inbox) if looks else None
        self._threads = ActThreads(self._act, lambda actor: actor.task.id in body.waiting, self._reader)
        self._links = ack_links(plan)
        self._link_numbers = {link: number for number, link in enumerate(self._links)}
        self._acks: dict[int, list[int]] = {}
        """Peer -> acknowledgements of the event at hand."""
        self._lock = threading.Lock()
        self._failure: Failure | None = None
        self._last_event_ns = time.monotonic_ns()
        self._after_the_run: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._final = not live
        self._idle = threading.Event()

    def start_threads(self) -> None:
        self._threads.start(len(self._book.streams))
        if self._reader is None:
            self._mesh.start_readers(
                lambda peer, links: self._perform_short(self._on_control(peer, links)),
                lambda *frame: self._perform_short(self._on_data(*frame)),
                self._on_lost,
                prepare_thread,
            )
            return
        threading.Thread(target=self._reader.serve, args=(prepare_thread, self._perform_short), daemon=True, name="reader").start()

    def run(self) -> None:
        """Until every actor of this rank has done all its acts.

        Raises:
            RankFailed: an act raised, a peer was lost, or nothing moved for timeout_s.
        """
        with self._lock:
            self._last_event_ns = time.monotonic_ns()
            self._begin_all()
        while not self._over.wait(min(self._timeout_s / 4, 1.0)):
            if self._idle.is_set():
                self._last_event_ns = time.monotonic_ns()  # nobody asked for anything
            if (time.monotonic_ns() - self._last_event_ns) * 1e-9 > self._timeout_s:
                with self._lock:
                    raise RankFailed(stalled(self.rank, self._book.actors.values(), self._timeout_s))
        if self._failure is not None:
            raise RankFailed(self._failure)

    def allow(self, steps: int, *, final: bool = False) -> None:
        """Go on up to ``steps`` steps, counted from the start of the run; ``final``: and end there."""
        with self._lock:
            self._last_event_ns = time.monotonic_ns()
            self._final = self._final or final
            self._book.extend(steps)
            self._idle.clear()
            self._begin_all()

    def fail(self, failure: Failure) -> None:
        """End the run with a fault that arose outside of an act."""
        self._threads.hand_over(self._post(_Failed(failure)))

    @property
    def steps_done(self) -> int:
        """Steps whose acts of this rank are all done."""
        return self._book.steps_done

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
        arrived: list[tuple[int, int]] = []
        while len(arrived) < len(senders):
            try:
                event = self._after_the_run.get(timeout=timeout_s)
            except queue.Empty:
                message = f"timing {task}: nothing came from ranks {sorted(senders)} for {timeout_s:g} s"
                raise RankFailed(Failure(rank=self.rank, kind=FailureKind.STALLED, message=message, task=task)) from None
            if isinstance(event, _Failed):
                raise RankFailed(event.failure)
            if isinstance(event, _Arrived) and self.plan.tasks[event.task].id == task:
                arrived.append((event.sender, event.time_ns))
        return arrived

    def _post(self, event: _Event) -> list[BegunAct]:
        """Handle an event on the thread that brings it; returns what it is to do next, or to hand over."""
        with self._lock:
            if self._over.is_set():
                self._after_the_run.put(event)
                return []
            try:
                if isinstance(event, tuple):  # by far the most
                    act, start_ns, end_ns = event
                    self._running -= 1
                    streams: Iterable[Stream] = self._book.end(act, start_ns, end_ns)
                else:
                    self._last_event_ns = time.monotonic_ns()
                    streams = self._handle(event)
                if self._acks:
                    self._send_acks()
                acts = self._book.begin(streams)
                self._running += len(acts)
            except Exception as error:
                acts = []
                self._end_by(error)
            if not self._book.unfinished:
                self._look_for_the_end()
        return acts

    # Under the lock.

    def _end_by(self, error: Exception) -> None:
        if isinstance(error, RankFailed):
            self._failure = error.failure
        else:
            kind = FailureKind.PEER_LOST if isinstance(error, WorkerFailed) else FailureKind.RAISED
            stack = "".join(traceback.format_exception(error))
            self._failure = Failure(rank=self.rank, kind=kind, message=str(error), traceback=stack)
        self._over.set()

    def _begin_all(self) -> None:
        acts = self._book.begin_all()
        self._running += len(acts)
        self._threads.hand_over(acts)
        self._look_for_the_end()

    def _look_for_the_end(self) -> None:
        if not self._book.unfinished:
            self._idle.set()
            if self._final:
                self._over.set()

    def _handle(self, event: _Notice) -> Iterable[Stream]:
        """Account for what came from elsewhere; returns the streams in which something may begin now."""
        match event:
            case _Acked(links):
                return self._book.deliver([self._links[link] for link in links])
            case _Arrived(place, number, sender):
                return self._book.arrive(self.plan.tasks[place].id, number, sender, self.rank)
            case _Failed(failure):
                raise RankFailed(failure)

    def _send(self, message: Message) -> None:
        self._acks.setdefault(message.receiver[1], []).append(self._link_numbers[message])

    def _send_acks(self) -> None:
        """What one event acknowledges goes to each peer at once."""
        for peer, links in self._acks.items():
            self._mesh.send_control(peer, *links)
        self._acks.clear()

    # Threads of acts.

    def _act(self, act: BegunAct) -> list[BegunAct] | None:
        actor, number, _ = act
        try:
            start_ns = time.monotonic_ns()
            announce = self._body.perform(actor, number)
            end_ns = time.monotonic_ns()
            self._last_event_ns = end_ns
            if announce is not None:
                announce()
                self._last_event_ns = time.monotonic_ns()
        except BaseException as error:
            self._post(_Failed(failure_of_act(actor, number, error)))
            return None
        self._threads.took(actor, end_ns - start_ns)
        return self._post((act, start_ns, end_ns))

    # Threads that read.

    def _nothing_runs(self) -> bool:
        return not self._running and not self._over.is_set()

    def _perform_short(self, acts: list[BegunAct]) -> None:
        self._threads.work(acts, long=False)

    def _on_control(self, peer: int, links: Sequence[int]) -> list[BegunAct]:
        return self._post(_Acked(links))

    def _on_data(self, peer: int, connection: object, frame: Frame, task: int, number: int) -> list[BegunAct]:
        if frame is not Frame.PAYLOAD:
            return self._post(_Arrived(task, number, peer, time.monotonic_ns()))
        self._body.receive(peer, connection, self.plan.tasks[task], number)
        return []

    def _on_lost(self, peer: int, error: Exception) -> None:
        self._post(_Failed(failure_of_reader(self.rank, peer, error)))
