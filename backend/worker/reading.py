"""One thread for the sockets of a rank, and helpers: whoever has nothing to do looks for messages before it sleeps.

    reader:   look for LOOKING_NS after the last message while nothing runs --> sleep until a message comes
    others:   perform an act --> nothing runs: look for as long --> sleep until an act is handed over

A thread that performs short acts looks into the inbox after each: a message that comes meanwhile wakes nobody, who would only wait for the
interpreter.  Before it begins a long act or sleeps, it says so; when no thread looks any more, the next message rings the doorbell.

One thread reads at a time.  What a message means is accounted for in the order of reading; acts that may start then are performed afterwards,
by the thread that found the message.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from backend.acts.bookkeeper import BegunAct
from backend.comm.host.inbox import Inbox
from backend.comm.transport import Frame, Mesh, acknowledged, receive_header
from backend.devices.cores import LOOKING_NS

__all__ = ["SharedReader"]

_Took = list[BegunAct]


class SharedReader:
    """The sockets of a mesh on this host.

    Args:
        on_control, on_data: account for what came, as Mesh.start_readers says; return the acts that may start.
        on_lost: (peer, error): a connection ended while the mesh was not closing; it is read no more.
        idle: whether no act of this rank runs.
        inbox: where messages of this host come beside the sockets; while a thread attends to it, senders do not ring its doorbell.
    """

    def __init__(
        self,
        mesh: Mesh,
        on_control: Callable[[int, Sequence[int]], _Took],
        on_data: Callable[[int, socket.socket | None, Frame, int, int], _Took],
        on_lost: Callable[[int, Exception], None],
        idle: Callable[[], bool],
        inbox: Inbox | None = None,
    ) -> None:
        self._mesh, self._idle, self._inbox = mesh, idle, inbox
        self._on_control, self._on_data, self._on_lost = on_control, on_data, on_lost
        self._poll = select.epoll()
        self._of: dict[int, tuple[int, int, socket.socket]] = {}
        self._reading = threading.Lock()
        self._attending = 0
        """How many threads look into the inbox at present."""
        self._counting = threading.Lock()
        for peer, channel, connection in mesh.connections():
            self._of[connection.fileno()] = peer, channel, connection
            self._poll.register(connection.fileno(), select.EPOLLIN)
        if inbox is not None:
            self._poll.register(inbox.doorbell, select.EPOLLIN)

    def serve(self, prepare: Callable[[], None], perform: Callable[[_Took], None]) -> None:
        """On a thread of its own, as long as there are connections."""
        prepare()
        while self._of:
            self.attend()
            self.look(perform)
            self._poll.poll()
            with self._reading:
                acts = self._take()
            self._perform_all(acts, perform)

    def attend(self) -> None:
        """From here until ``leave`` this thread looks into the inbox again and again, so senders do not ring the doorbell."""
        if self._inbox is not None:
            with self._counting:
                self._attending += 1
                if self._attending == 1:
                    self._inbox.wakes()

    def leave(self) -> _Took:
        """This thread stops looking into the inbox; the last that does takes what has come so far.  Returns the acts that may start by it."""
        if self._inbox is None:
            return []
        with self._counting:
            self._attending -= 1
            if self._attending:
                return []
            self._inbox.sleeps()
        with self._reading:
            return self._take_from(self._inbox)

    def take_now(self) -> _Took:
        """Account for what lies in the inbox, unless another thread is at it."""
        if self._inbox is None or not self._inbox.has_any() or not self._reading.acquire(blocking=False):
            return []
        try:
            return self._take_from(self._inbox)
        finally:
            self._reading.release()

    def look(self, perform: Callable[[_Took], None]) -> None:
        """Read what comes until nothing has come for LOOKING_NS, or an act runs, or another thread reads; then ``leave``.

        Args:
            perform: performs acts on a thread that attends, and attends again at its end.
        """
        while acts := self._first_of_a_while():
            perform(acts)
        self._perform_all(self.leave(), perform)

    def _perform_all(self, acts: _Took, perform: Callable[[_Took], None]) -> None:
        while acts:
            self.attend()
            perform(acts)
            acts = self.leave()

    def _first_of_a_while(self) -> _Took:
        """What the first message lets begin that comes within LOOKING_NS; nothing when none came, an act runs, or another thread reads."""
        if not self._reading.acquire(blocking=False):
            return []
        try:
            acts: _Took = []
            until_ns = time.monotonic_ns() + LOOKING_NS
            while not acts and self._idle() and time.monotonic_ns() < until_ns:
                acts = self._take()
            return acts
        finally:
            self._reading.release()

    def _take(self) -> _Took:
        """Account for what is there, without waiting for more."""
        inbox = self._inbox
        acts = self._take_from(inbox) if inbox is not None else []
        for number, _ in self._poll.poll(0):
            if inbox is not None and number == inbox.doorbell:
                inbox.heard()
                acts += self._take_from(inbox)
                continue
            peer, channel, connection = self._of[number]
            try:
                if channel == Mesh.CONTROL:
                    acts += self._on_control(peer, acknowledged(connection))
                else:
                    acts += self._on_data(peer, connection, *receive_header(connection))
            except Exception as error:
                with suppress(OSError):  # the mesh is closing and has closed it
                    self._poll.unregister(number)
                del self._of[number]
                if not self._mesh.closing:
                    self._on_lost(peer, error)
        return acts

    def _take_from(self, inbox: Inbox) -> _Took:
        acts: _Took = []
        links: dict[int, list[int]] = {}
        arrived = inbox.take()
        for peer, kind, number, act in arrived:
            if kind is Frame.ACK:
                links.setdefault(peer, []).append(number)
                continue
            acts += self._accounted(peer, partial(self._on_data, peer, None, kind, number, act))
        for peer, numbers in links.items():
            acts += self._accounted(peer, partial(self._on_control, peer, numbers))
        return acts

    def _accounted(self, peer: int, account: Callable[[], _Took]) -> _Took:
        """What a message of ``peer`` lets begin; where it cannot be accounted for, the peer counts as lost."""
        try:
            return account()
        except Exception as error:
            self._on_lost(peer, error)
            return []
