"""JSON messages between processes of one host: one object per line on a unix socket.

The fork server (backend.launch.workers) and a Session and its workers (backend.launch.session) talk this way.  Tensors do not travel here:
batches and states lie in files of the run's folder, which workers map into memory.
"""

from __future__ import annotations

import json
import select
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from backend.comm.authentic import answer, call

__all__ = ["Channel", "Message", "accept", "connect", "listen"]

Message = Mapping[str, Any]

_CONNECT_S = 120.0


class Channel:
    """One end of a connection.  Any thread may send; one thread receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._partial = b""

    def fileno(self) -> int:
        """The socket's number, for ``select``."""
        return self._connection.fileno()

    def send(self, **message: Any) -> None:
        """Raises OSError when the other end is gone."""
        with self._sending:
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, timeout_s: float | None = None) -> list[Message] | None:
        """Wait for bytes and return the messages that they complete: perhaps none, and none after the timeout.  None: the other end is gone."""
        try:
            if timeout_s is not None and not select.select([self], [], [], timeout_s)[0]:
                return []
            data = self._connection.recv(1 << 16)
        except (OSError, ValueError):  # another thread closed this end: its number is -1
            return None
        if not data:
            return None
        *lines, self._partial = (self._partial + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def start_receiving(self, handle: Callable[[Message], None]) -> None:
        """Call ``handle`` with every message, on a thread of its own, until the other end is gone."""
        threading.Thread(target=self._receive_all, args=(handle,), daemon=True, name="channel").start()

    def _receive_all(self, handle: Callable[[Message], None]) -> None:
        while (messages := self.receive()) is not None:
            for message in messages:
                handle(message)

    def end(self) -> None:
        """Both ends read the end of the connection from now on, also in processes that were forked with it."""
        with suppress(OSError):  # the other end is gone already
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._connection.close()


def _session_address(run_id: str) -> str:
    """An abstract address: nothing is left on disk."""
    return f"\0regista-{run_id}-session"


def listen(run_id: str, ranks: int) -> socket.socket:
    """The socket at which a session waits for the workers of its run."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(_session_address(run_id))
    listener.listen(ranks)
    return listener


def accept(listener: socket.socket, key: bytes) -> Channel:
    """The next worker that proves the run's key.  Raises OSError: the listener was closed."""
    while True:
        connection, _ = listener.accept()
        try:
            answer(connection, key)
        except OSError:
            connection.close()  # a stranger, or a worker that ended
            continue
        return Channel(connection)


def connect(run_id: str, key: bytes) -> Channel:
    """A worker's channel to its session.  Raises OSError when there is none, or it does not know the run's key."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_CONNECT_S)
    connection.connect(_session_address(run_id))
    call(connection, key)
    connection.settimeout(None)
    return Channel(connection)
