"""Messages between processes of one host through memory that both map: a ring of frames per sender, and a doorbell for a receiver that sleeps.

    sender     frame into its ring, end += 1 --> does the receiver sleep? --yes--> it sleeps no more, ring the doorbell
    receiver   awake: looks into the rings;   before it sleeps: "sleeps", looks once more, waits for the doorbell (an eventfd)

From one process to another, where the other waits, a socket takes 30 us; memory that the other reads again and again takes 0.6 us [measured:
experiments.benchmarks.acts, 2 cores of a Zen 4, 2026-11-29].  The frame is written before ``end`` is, and blocks that it speaks of before the
frame: processors that keep the order of stores show them in that order.  That no ring of the doorbell is missed needs a fence between a process's
store and its next load; taking and giving back a lock is one.  On other machines there is no inbox (backend.comm.host.counters.missing).

A ring that is full takes no frame: the sender then sends it through its socket.  The counts that frames raise do not depend on their order; what is
to be there after a payload follows it through the socket (Mesh.send_done).
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterable, Mapping, Sequence

from backend.comm.host.counters import missing
from backend.comm.host.memory import allocated
from backend.comm.transport import Frame, Mesh

__all__ = ["FRAMES", "Arrived", "Inbox", "Outbox", "connect_inboxes"]

FRAMES = 1024
"""Of a ring.  Quotas bound how many can lie there: some per transfer between two ranks."""

_SLEEPS, _END, _READ, _FIRST = 0, 8, 16, 24
"""Places in a ring, in steps of 8 bytes: whether the receiver sleeps, how many frames its sender has written, how many were read, the frames.
What different processes write has cache lines to itself."""

_BYTES = 8 * (_FIRST + 2 * FRAMES)

_KINDS = tuple(Frame)

Arrived = tuple[int, Frame, int, int]
"""(sender, kind of frame, number of the task or link, number of the act)."""


class Inbox:
    """The messages of the other ranks of this host to one rank.  The caller sees to it that one thread reads at a time.

    Args:
        rings: sender -> its ring.

    doorbell: a descriptor that becomes readable when a sender found the receiver asleep.
    """

    def __init__(self, rings: Mapping[int, memoryview], doorbell: int) -> None:
        self.doorbell = doorbell
        self._rings, self._read = tuple(rings.items()), dict.fromkeys(rings, 0)
        self._fence = threading.Lock()
        self.sleeps()

    def has_any(self) -> bool:
        """Whether there is a frame that has not been taken; any thread may ask."""
        read = self._read
        return any(words[_END] != read[sender] for sender, words in self._rings)

    def take(self) -> list[Arrived]:
        """The frames that have come since the last call; those of one sender in the order of sending."""
        arrived: list[Arrived] = []
        for sender, words in self._rings:
            read, end = self._read[sender], words[_END]
            if end == read:
                continue
            for count in range(read, end):
                at = _FIRST + 2 * (count % FRAMES)
                head = words[at]
                arrived.append((sender, _KINDS[head >> 32], head & 0xFFFFFFFF, words[at + 1]))
            self._read[sender] = words[_READ] = end
        return arrived

    def wakes(self) -> None:
        """Mark the receiver as polling: it reads new frames by itself, and senders need not wake it."""
        for _, words in self._rings:
            words[_SLEEPS] = 0

    def sleeps(self) -> None:
        """Mark the receiver as blocked: the sender of the next frame wakes it.  Frames that came before are to be taken after this call."""
        for _, words in self._rings:
            words[_SLEEPS] = 1
        with self._fence:
            pass

    def heard(self) -> None:
        """Make the doorbell ready to ring again."""
        os.eventfd_read(self.doorbell)


class Outbox:
    """The sender's end of a ring in the inbox of another rank; any thread may send."""

    def __init__(self, words: memoryview, doorbell: int) -> None:
        self._words, self._doorbell = words, doorbell
        self._end = 0
        self._lock = threading.Lock()

    def send(self, kind: Frame, frames: Sequence[tuple[int, int]]) -> int:
        """Send (number of the task or link, number of the act); returns how many the ring took, those in front."""
        words = self._words
        with self._lock:
            taken = frames[: FRAMES - (self._end - words[_READ])]
            for number, act in taken:
                at = _FIRST + 2 * (self._end % FRAMES)
                words[at], words[at + 1] = kind << 32 | number, act
                self._end += 1
            words[_END] = self._end
        if words[_SLEEPS]:  # giving the lock back was the fence
            words[_SLEEPS] = 0
            os.eventfd_write(self._doorbell, 1)
        return len(taken)


def connect_inboxes(mesh: Mesh, peers: Iterable[int], *, wanted: bool) -> Inbox | None:
    """Make this rank's inbox with a ring per peer, and send to the peers through their inboxes from now on.  Call it before readers start.

    Args:
        wanted: False: this rank has no inbox; its peers may have one.
    """
    peers = sorted(peers)
    doorbell, rings = -1, dict[int, memoryview]()
    if wanted and not missing():
        doorbell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    for peer in peers:
        memory = _memory() if doorbell >= 0 else -1
        mesh.send_descriptor(peer, memory)
        if memory >= 0:
            rings[peer] = _map(memory)
            mesh.send_descriptor(peer, doorbell)
    for peer in peers:
        memory = mesh.receive_descriptor(peer)
        if memory >= 0:
            mesh.send_through(peer, Outbox(_map(memory), mesh.receive_descriptor(peer)))
    return Inbox(rings, doorbell) if rings else None


def _memory() -> int:
    """A descriptor of a ring's memory; -1: there is no room."""
    try:
        return allocated("regista-inbox", _BYTES)
    except OSError:
        return -1


def _map(memory: int) -> memoryview:
    words = memoryview(mmap.mmap(memory, _BYTES)).cast("Q")
    os.close(memory)
    return words
