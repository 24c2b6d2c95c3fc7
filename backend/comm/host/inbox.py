"""Messages between processes of one host through memory that both map: a ring of frames per sender, and a bell for a receiver that sleeps.

    sender     frame into its ring, end += 1 --> does the receiver sleep? --yes--> it sleeps no more, ring the bell
    receiver   awake: looks into the rings;   before it sleeps: "sleeps", looks once more, waits for the bell (an eventfd)

A socket takes two system calls per message, 5 us, and wakes whoever waits for it; a frame that a receiver looks for is there in 1 us
[measured: 2 cores, 2026-11-29].  The frame is written before ``end`` is, and blocks that it speaks of before the frame: processors that keep the
order of stores show them in that order.  That nobody misses a bell needs a fence between a process's store and its next load; taking and giving back
a lock is one.  On other machines there is no inbox (backend.comm.host.counters.missing).

A ring that is full takes no frame: the sender then sends it through its socket.  The counts that frames raise do not depend on their order; what is
to be there after a payload follows it through the socket (Mesh.send_done).
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterable, Mapping, Sequence

from backend.comm.host.counters import missing
from backend.comm.transport import Frame, Mesh

__all__ = ["FRAMES", "Arrived", "Inbox", "Outbox", "connect"]

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
    """What other ranks of this host have to say to one rank.  One thread reads at a time; which, the caller says.

    Args:
        rings: sender -> its ring.

    bell: a descriptor that can be read from when somebody found the receiver asleep.
    """

    def __init__(self, rings: Mapping[int, memoryview], bell: int) -> None:
        self.bell = bell
        self._rings, self._read = tuple(rings.items()), dict.fromkeys(rings, 0)
        self._fence = threading.Lock()
        self.sleeps()

    def has_any(self) -> bool:
        """Whether a frame lies there; any thread may ask."""
        read = self._read
        return any(words[_END] != read[sender] for sender, words in self._rings)

    def take(self) -> list[Arrived]:
        """The frames that have come since the last call, those of a sender in its order."""
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
        """From here on it is looked into: nobody rings the bell."""
        for _, words in self._rings:
            words[_SLEEPS] = 0

    def sleeps(self) -> None:
        """From here on the bell rings for a frame.  What came before is to be taken after this call."""
        for _, words in self._rings:
            words[_SLEEPS] = 1
        with self._fence:
            pass

    def heard(self) -> None:
        """The bell has rung."""
        os.eventfd_read(self.bell)


class Outbox:
    """One sender's ring in the inbox of another rank; any thread sends."""

    def __init__(self, words: memoryview, bell: int) -> None:
        self._words, self._bell = words, bell
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
            os.eventfd_write(self._bell, 1)
        return len(taken)


def connect(mesh: Mesh, peers: Iterable[int], *, wanted: bool) -> Inbox | None:
    """Give every peer a ring in this rank's inbox, and send through theirs from now on.  Call it before readers start.

    Args:
        wanted: False: this rank has no inbox; its peers may have one.
    """
    peers = sorted(peers)
    bell, rings = -1, dict[int, memoryview]()
    if wanted and not missing():
        bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    for peer in peers:
        memory = _memory() if bell >= 0 else -1
        mesh.send_descriptor(peer, memory)
        if memory >= 0:
            rings[peer] = _map(memory)
            mesh.send_descriptor(peer, bell)
    for peer in peers:
        memory = mesh.receive_descriptor(peer)
        if memory >= 0:
            mesh.send_through(peer, Outbox(_map(memory), mesh.receive_descriptor(peer)))
    return Inbox(rings, bell) if rings else None


def _memory() -> int:
    """A descriptor of a ring's memory; -1: there is no room."""
    memory = -1
    try:
        memory = os.memfd_create("regista-inbox", os.MFD_CLOEXEC)
        os.posix_fallocate(memory, 0, _BYTES)
    except OSError:
        if memory >= 0:
            os.close(memory)
        return -1
    return memory


def _map(memory: int) -> memoryview:
    words = memoryview(mmap.mmap(memory, _BYTES)).cast("Q")
    os.close(memory)
    return words
