"""The launcher's side of the store: one thread per connection, which proves the run's key before anything is read."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from backend.comm.authentic import Sealed, answer
from backend.store.messages import (
    Add,
    Answer,
    Check,
    CompareSet,
    Delete,
    End,
    Get,
    Join,
    Leave,
    NumKeys,
    Request,
    Set,
    Wait,
    bytes_of,
    from_bytes,
    read_request,
    text_of,
)
from planner.ir.errors import InvalidFile

__all__ = ["StoreServer"]

MOST_STRANGERS = 64
"""Connections that have proven nothing yet; when one more comes, the oldest goes."""


class StoreServer:
    """Serves the store until it is closed.

    Args:
        listener: bound and listening; this value closes it.   key: of the run.

    lost: why the run is over for all: a launcher went away before it left, or said so; every request fails from then on.
    """

    def __init__(self, listener: socket.socket, key: bytes) -> None:
        self._listener, self._key = listener, key
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._connections: set[socket.socket] = set()
        self._heard_s: dict[str, float] = {}
        self._strangers: list[socket.socket] = []
        self._closed = False
        self.lost = ""
        threading.Thread(target=self._accept, daemon=True, name="store: accept").start()

    @classmethod
    def on_this_host(cls, name: str, key: bytes) -> StoreServer:
        """At an abstract unix address: no port, and nothing is left on disk."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(f"\0{name}")
        listener.listen(128)
        return cls(listener, key)

    @classmethod
    def for_hosts(cls, host: str, port: int, key: bytes) -> StoreServer:
        """At one address of this host, not at all of them.  Raises OSError: the port is taken, or the address is another host's."""
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(128)
        except OSError:
            listener.close()
            raise
        return cls(listener, key)

    def silent_members(self, limit_s: float) -> list[str]:
        """Launchers that have joined, not left, and said nothing for so long."""
        with self._changed:
            return [name for name, heard_s in self._heard_s.items() if time.monotonic() > heard_s + limit_s]

    def fail(self, why: str) -> None:
        """Let every request fail from now on; the first reason stays."""
        with self._changed:
            self.lost = self.lost or why
            self._changed.notify_all()

    def await_leaving(self, timeout_s: float) -> None:
        """Wait until every launcher that has joined has left."""
        with self._changed:
            self._changed.wait_for(lambda: not self._heard_s, timeout_s)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self.lost = self.lost or "the store was closed"
            connections = list(self._connections)
            self._changed.notify_all()
        # shutdown wakes the thread that accepts; close alone would leave it, and the address, until someone calls.
        for open_socket in (self._listener, *connections):
            _hang_up(open_socket)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if self._closed:
                    return
                time.sleep(0.05)  # out of file numbers, perhaps
                continue
            with self._changed:
                self._strangers.append(connection)
                if len(self._strangers) > MOST_STRANGERS:
                    _hang_up(self._strangers.pop(0))
            threading.Thread(target=self._serve, args=(connection,), daemon=True, name="store: serve").start()

    def _serve(self, connection: socket.socket) -> None:
        member = ""
        with connection:
            try:
                sealed = Sealed(connection, answer(connection, self._key), caller=False)
            except OSError:
                return
            finally:
                with self._changed:
                    if connection in self._strangers:
                        self._strangers.remove(connection)
            with self._changed:
                if self._closed:
                    return
                self._connections.add(connection)
            try:
                while True:
                    request = read_request(sealed.receive())
                    match request:
                        case Join(name=name):
                            member = name
                        case Leave():
                            self._forget(member)
                            member = ""
                        case End(why=why):
                            self.fail(why)
                    if member:
                        with self._changed:
                            self._heard_s[member] = time.monotonic()
                    sealed.send(text_of(self._answer(request)))
            except (OSError, InvalidFile):
                pass  # gone, or not one of ours: either way this connection is over
            finally:
                with self._changed:
                    self._connections.discard(connection)
                if member:
                    self._forget(member)
                    self.fail(f"{member} was lost")

    def _forget(self, member: str) -> None:
        with self._changed:
            self._heard_s.pop(member, None)
            self._changed.notify_all()

    def _answer(self, request: Request) -> Answer:
        with self._changed:
            if self.lost and not isinstance(request, Leave | End):
                return Answer(error=self.lost)
            match request:
                case Set(key=key, value=value):
                    self._put(key, bytes_of(value))
                case Get(key=key, timeout_s=timeout_s):
                    return self._when(lambda: key in self._values, timeout_s, lambda: Answer(value=from_bytes(self._values[key])), [key])
                case Wait(keys=keys, timeout_s=timeout_s):
                    return self._when(lambda: all(k in self._values for k in keys), timeout_s, Answer, keys)
                case Check(keys=keys):
                    return Answer(number=int(all(key in self._values for key in keys)))
                case Add(key=key, number=number):
                    try:
                        total = int(self._values.get(key, b"0")) + number
                    except ValueError:
                        return Answer(error=f"the value of {key} is no number")
                    self._put(key, str(total).encode())
                    return Answer(number=total)
                case CompareSet(key=key, expected=expected, desired=desired):
                    before = self._values.get(key)
                    if (before or b"") == bytes_of(expected):
                        self._put(key, bytes_of(desired))
                    return Answer(value=from_bytes(self._values[key])) if key in self._values else Answer(value=expected)
                case Delete(key=key):
                    return Answer(number=int(self._values.pop(key, None) is not None))
                case NumKeys():
                    return Answer(number=len(self._values))
                case Join() | Leave() | End():
                    pass
        return Answer()

    # Under the lock.

    def _put(self, key: str, value: bytes) -> None:
        self._values[key] = value
        self._changed.notify_all()

    def _when(self, ready: Callable[[], bool], timeout_s: float, then: Callable[[], Answer], keys: object) -> Answer:
        in_time = self._changed.wait_for(lambda: ready() or bool(self.lost), max(0.0, timeout_s))
        if self.lost:
            return Answer(error=self.lost)
        if not in_time:
            missing = [key for key in keys if key not in self._values]  # type: ignore[attr-defined]
            return Answer(error=f"nobody has set {', '.join(missing[:4])} within {timeout_s:g} s", late=True)
        return then()


def _hang_up(connection: socket.socket) -> None:
    """Wake whoever reads from it; that one closes it."""
    with suppress(OSError):  # the other end was quicker
        connection.shutdown(socket.SHUT_RDWR)
