"""One thread for the sockets of a rank, and helpers: whoever has nothing to do looks for messages before it sleeps.

    reader:   look for LOOKING_NS after the last message while nothing runs --> sleep until a message comes
    others:   perform an act --> nothing runs: look for as long --> sleep until an act is handed over

One thread reads at a time.  What a message means is accounted for in the order of reading; acts that may start then are performed afterwards,
by the thread that found the message.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable, Sequence

from backend.acts.bookkeeper import BegunAct
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
    """

    def __init__(
        self,
        mesh: Mesh,
        on_control: Callable[[int, Sequence[int]], _Took],
        on_data: Callable[[int, socket.socket, Frame, int, int], _Took],
        on_lost: Callable[[int, Exception], None],
        idle: Callable[[], bool],
    ) -> None:
        self._mesh, self._idle = mesh, idle
        self._on_control, self._on_data, self._on_lost = on_control, on_data, on_lost
        self._poll = select.epoll()
        self._of: dict[int, tuple[int, int, socket.socket]] = {}
        self._reading = threading.Lock()
        for peer, channel, connection in mesh.connections():
            self._of[connection.fileno()] = peer, channel, connection
            self._poll.register(connection.fileno(), select.EPOLLIN)

    def serve(self, prepare: Callable[[], None], perform: Callable[[_Took], None]) -> None:
        """On a thread of its own, as long as there are connections."""
        prepare()
        while self._of:
            self.look(perform)
            self._poll.poll()
            with self._reading:
                acts = self._take()
            perform(acts)

    def look(self, perform: Callable[[_Took], None]) -> None:
        """Read what comes until nothing has come for LOOKING_NS, or an act runs, or another thread reads."""
        if not self._reading.acquire(blocking=False):
            return
        held = True
        try:
            until_ns = time.monotonic_ns() + LOOKING_NS
            while self._idle() and time.monotonic_ns() < until_ns:
                if acts := self._take():
                    self._reading.release()
                    held = False
                    perform(acts)
                    if not self._reading.acquire(blocking=False):
                        return
                    held = True
                    until_ns = time.monotonic_ns() + LOOKING_NS
        finally:
            if held:
                self._reading.release()

    def _take(self) -> _Took:
        """Account for what is there, without waiting for more."""
        acts: _Took = []
        for number, _ in self._poll.poll(0):
            peer, channel, connection = self._of[number]
            try:
                if channel == Mesh.CONTROL:
                    acts += self._on_control(peer, acknowledged(connection))
                else:
                    acts += self._on_data(peer, connection, *receive_header(connection))
            except Exception as error:
                self._poll.unregister(number)
                del self._of[number]
                if not self._mesh.closing:
                    self._on_lost(peer, error)
        return acts
