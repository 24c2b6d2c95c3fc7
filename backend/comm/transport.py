"""Sockets between the workers of a run: acknowledgements on one, transferred tensors on another, so that no 16-byte message waits behind
16 MB.

    executor thread of a LINK stream --payload, then "done"--> data socket    --reader thread--> blocks, then READY
    whoever ends an act              --ACK------------------> control socket --reader thread--> ACK

Tensors travel straight from and into their own memory.  On one host the sockets are unix sockets (1 KB round trip 29 us against 110 us of
gloo send and receive [measured 2026-11-21, 2 cores]); their names are abstract, so nothing is left on disk.  Both ends of a connection prove the
run's key first (backend.comm.authentic).  Where processes share memory, acknowledgements and "done" go through it (backend.comm.host.inbox).
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Protocol

import torch
from torch import Tensor
from torch._C._distributed_c10d import Store

from backend.comm.authentic import answer, call
from planner.ir.errors import WorkerFailed

__all__ = ["Frame", "Mesh", "acknowledged", "receive_header", "receive_into", "tensor_bytes"]

HEADER = struct.Struct("<IIQ")
"""Kind of frame, number of the task (data) or link (control), number of the act."""

HELLO = struct.Struct("<II")
_BATCH = 64


class Frame(IntEnum):
    """PAYLOAD: tensors follow.  DONE: the act's payload is complete everywhere.  ACK: a message of the control socket."""

    PAYLOAD = 0
    DONE = 1
    ACK = 2


_FRAMES = tuple(Frame)


def tensor_bytes(value: Tensor) -> memoryview:
    """The memory of a contiguous tensor."""
    return memoryview(value.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]  # an ndarray is a buffer


def receive_into(connection: socket.socket, target: memoryview) -> None:
    """Fill ``target``.

    Raises:
        ConnectionError: the peer closed before that.
    """
    got = 0
    while got < len(target):
        count = connection.recv_into(target[got:], 0, socket.MSG_WAITALL)
        if count == 0:
            raise ConnectionError("the peer closed the connection")
        got += count


def acknowledged(connection: socket.socket) -> list[int]:
    """Wait for acknowledgements; the link numbers of all that have come.

    Raises:
        ConnectionError: the peer closed.
    """
    data = connection.recv(_BATCH * HEADER.size)
    if len(data) % HEADER.size or not data:
        rest = bytearray(HEADER.size - len(data) % HEADER.size)
        receive_into(connection, memoryview(rest))
        data += rest
    return [number for _, number, _ in HEADER.iter_unpack(data)]


def receive_header(connection: socket.socket) -> tuple[Frame, int, int]:
    """Wait for the next frame of a data socket: (its kind, number of the task, number of the act).

    Raises:
        ConnectionError: the peer closed.
    """
    header = bytearray(HEADER.size)
    receive_into(connection, memoryview(header))
    kind, number, act = HEADER.unpack(header)
    return _FRAMES[kind], number, act


def send_buffers(connection: socket.socket, buffers: Sequence[bytes | memoryview]) -> None:
    """Send several buffers with as few system calls as the kernel takes."""
    waiting = [memoryview(b) for b in buffers]
    while waiting:
        sent = connection.sendmsg(waiting[:_BATCH])
        while waiting and sent >= len(waiting[0]):
            sent -= len(waiting.pop(0))
        if waiting and sent:
            waiting[0] = waiting[0][sent:]


class Through(Protocol):
    """A quicker way to a peer than its sockets, for acknowledgements and the ends of acts (backend.comm.host.inbox)."""

    def send(self, kind: Frame, frames: Sequence[tuple[int, int]]) -> int:
        """Send (number of the task or link, number of the act); returns how many were taken, those in front."""


class _Unread:
    """A control socket, written without waiting.  What it does not take at once a thread sends, which lives until all is sent.

    No more than the plan's quotas can wait here: a block is acknowledged again only after its sender, having read the last one, filled it anew.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._lock = connection, threading.Lock()
        self._waiting = bytearray()
        self._error: OSError | None = None

    def send(self, data: bytes) -> None:
        """Raises OSError: the connection broke, now or while earlier bytes were sent."""
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._waiting:
                self._waiting += data
                return
            try:
                sent = self._connection.send(data, socket.MSG_DONTWAIT)
            except BlockingIOError:
                sent = 0
            if sent < len(data):
                self._waiting += data[sent:]
                threading.Thread(target=self._send_rest, daemon=True, name="unread acknowledgements").start()

    def _send_rest(self) -> None:
        while True:
            with self._lock:
                part = bytes(self._waiting)
            try:
                self._connection.sendall(part)
            except OSError as error:
                with self._lock:
                    self._error = error
                return
            with self._lock:
                del self._waiting[: len(part)]
                if not self._waiting:
                    return


class Mesh:
    """Connections of one rank to those peers that it exchanges messages with.

    Args:
        peers: the ranks to connect to; the relation is symmetric, so that both sides agree on who waits for whom.
        store: where addresses are exchanged.   key: of the run.
    """

    CONTROL, DATA = 0, 1

    def __init__(
        self, rank: int, peers: Iterable[int], store: Store, run_id: str, *, key: bytes, unix: bool, timeout_s: float, host: str = ""
    ) -> None:
        self._rank, self._timeout_s = rank, timeout_s
        self._links: dict[tuple[int, int], socket.socket] = {}
        self._locks: dict[int, threading.Lock] = {}
        self._controls: dict[int, _Unread] = {}
        self._through: dict[int, Through] = {}
        self.closing = False
        peers = sorted(set(peers) - {rank})
        if not peers:
            return
        family = socket.AF_UNIX if unix else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.settimeout(timeout_s)
        listener.bind(f"\0regista-{run_id}-{rank}" if unix else (host, 0))
        listener.listen(2 * len(peers))
        address = f"\0regista-{run_id}-{rank}" if unix else f"{host or socket.gethostname()}:{listener.getsockname()[1]}"
        store.set(f"address/{rank}", address)
        # The larger rank calls, the smaller answers.
        for peer in [p for p in peers if p < rank]:
            where = store.get(f"address/{peer}").decode()
            for channel in (self.CONTROL, self.DATA):
                connection = socket.socket(family, socket.SOCK_STREAM)
                connection.settimeout(timeout_s)
                connection.connect(where if unix else (where.rsplit(":", 1)[0], int(where.rsplit(":", 1)[1])))
                call(connection, key)
                connection.sendall(HELLO.pack(rank, channel))
                self._keep(peer, channel, connection)
        self._accept(listener, {(p, channel) for p in peers if p > rank for channel in (self.CONTROL, self.DATA)}, key)
        listener.close()

    def _accept(self, listener: socket.socket, expected: set[tuple[int, int]], key: bytes) -> None:
        """Take one connection for each (peer, channel); whoever cannot prove the key, or says another name, is sent away."""
        until_s = time.monotonic() + self._timeout_s
        while expected:
            if time.monotonic() > until_s:
                raise TimeoutError(f"ranks {sorted({peer for peer, _ in expected})} have not called within {self._timeout_s:g} s")
            connection, _ = listener.accept()
            try:
                connection.settimeout(self._timeout_s)
                answer(connection, key)
                hello = bytearray(HELLO.size)
                receive_into(connection, memoryview(hello))
                name: tuple[int, int] = HELLO.unpack(hello)
            except OSError:
                connection.close()
                continue
            if name not in expected:
                connection.close()
                continue
            expected.remove(name)
            self._keep(*name, connection)

    def _keep(self, peer: int, channel: int, connection: socket.socket) -> None:
        connection.settimeout(None)
        if connection.family == socket.AF_INET:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._links[peer, channel] = connection
        self._locks.setdefault(peer, threading.Lock())
        if channel == self.CONTROL:
            self._controls[peer] = _Unread(connection)

    def send_descriptor(self, peer: int, fd: int) -> None:
        """Hand a file descriptor to ``peer`` (unix sockets only, before the readers start); a negative one says that there is none."""
        connection = self._links[peer, self.DATA]
        if fd < 0:
            connection.sendall(b"-")
        else:
            socket.send_fds(connection, [b"+"], [fd])

    def receive_descriptor(self, peer: int) -> int:
        """What ``peer`` handed over: the descriptor's number here, -1 if there is none.

        Raises:
            WorkerFailed: the peer is gone.
        """
        connection = self._links[peer, self.DATA]
        connection.settimeout(self._timeout_s)
        word, fds, _, _ = socket.recv_fds(connection, 1, 1)
        connection.settimeout(None)
        if not word:
            raise WorkerFailed(f"rank {self._rank}: rank {peer} ended before it handed over its blocks")
        return fds[0] if word == b"+" else -1

    def send_through(self, peer: int, way: Through) -> None:
        """From here on send ``peer`` acknowledgements and ends of acts this way; what it does not take, and payloads, go by the sockets."""
        self._through[peer] = way

    def connections(self) -> list[tuple[int, int, socket.socket]]:
        """(peer, CONTROL or DATA, socket) of all."""
        return [(peer, channel, connection) for (peer, channel), connection in self._links.items()]

    def start_readers(
        self,
        on_control: Callable[[int, Sequence[int]], object],
        on_data: Callable[[int, socket.socket, Frame, int, int], object],
        on_lost: Callable[[int, Exception], object],
        prepare: Callable[[], object] = lambda: None,
    ) -> None:
        """One thread per connection.

        Args:
            on_control: (peer, link numbers): those that came together, in order.
            on_data: (peer, connection, frame, task number, act number); reads the payload from the connection itself.
            on_lost: (peer, error): reading ended while we were not closing; an OSError: the connection broke, else what ``on_*`` raised.
            prepare: called first on every thread.
        """
        for (peer, channel), connection in self._links.items():
            target = (peer, channel, connection, on_control, on_data, on_lost, prepare)
            threading.Thread(target=self._read, args=target, daemon=True, name=f"reader {peer}.{channel}").start()

    def _read(
        self,
        peer: int,
        channel: int,
        connection: socket.socket,
        on_control: Callable[[int, Sequence[int]], object],
        on_data: Callable[[int, socket.socket, Frame, int, int], object],
        on_lost: Callable[[int, Exception], object],
        prepare: Callable[[], object],
    ) -> None:
        prepare()
        try:
            while channel == self.CONTROL:
                on_control(peer, acknowledged(connection))
            while True:
                on_data(peer, connection, *receive_header(connection))
        except Exception as error:
            if not self.closing:
                on_lost(peer, error)

    def send_control(self, peer: int, *numbers: int) -> None:
        """Called under the lock of the event loop, so it never waits for the peer to read.

        Args:
            numbers: of links; they go together.

        Raises:
            WorkerFailed: the peer is gone.
        """
        if (through := self._through.get(peer)) is not None:
            numbers = numbers[through.send(Frame.ACK, [(number, 0) for number in numbers]) :]
            if not numbers:
                return
        try:
            self._controls[peer].send(b"".join([HEADER.pack(Frame.ACK, number, 0) for number in numbers]))
        except OSError as error:
            raise WorkerFailed(f"rank {self._rank}: the connection to rank {peer} broke ({error.strerror})") from error

    def send_payload(self, peer: int, task: int, act: int, buffers: Sequence[memoryview]) -> None:
        """Called by executor threads.  Raises WorkerFailed: the peer is gone."""
        self._send(peer, [HEADER.pack(Frame.PAYLOAD, task, act), *buffers])

    def send_done(self, peer: int, task: int, act: int, *, behind_payload: bool = True) -> None:
        """Tell ``peer`` that an act has ended.

        Args:
            behind_payload: the payload went by the data socket and must arrive first; False: the payload lies in the peer's memory already.

        Raises:
            WorkerFailed: the peer is gone.
        """
        through = None if behind_payload else self._through.get(peer)
        if through is not None and through.send(Frame.DONE, [(task, act)]):
            return
        self._send(peer, [HEADER.pack(Frame.DONE, task, act)])

    def _send(self, peer: int, buffers: Sequence[bytes | memoryview]) -> None:
        try:
            with self._locks[peer]:
                send_buffers(self._links[peer, self.DATA], buffers)
        except OSError as error:
            raise WorkerFailed(f"rank {self._rank}: the connection to rank {peer} broke ({error.strerror})") from error

    def close(self) -> None:
        self.closing = True
        for connection in self._links.values():
            connection.close()
