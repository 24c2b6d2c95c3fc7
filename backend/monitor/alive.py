"""Signs of life of the processes of a run on one host: numbers in shared memory that each process counts up, so that a stopped one is noticed.

    RUN/alive   | launcher | fork server | rank 0 | rank 1 | ...      8 bytes each; one writer per number

    launcher stands still       the fork server ends the workers, and itself; where that stands still too, the workers end it and themselves
    fork server stands still    the launcher ends it, and the kernel the workers; where the launcher stands still too, the workers do
    a worker stands still       the launcher ends the run, and says which rank it was

Counts, not times: whoever looks counts its own time since a number last changed, so that its own pause is nobody else's silence.
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["ALIVE", "LAUNCHER", "SERVER", "AliveCounts", "Silence", "count_and_watch", "is_stopped", "place_of"]

LAUNCHER, SERVER = 0, 1
PERIOD_S = 0.25
LATER_S = 1.5
"""The workers come after whoever else should have noticed, and can say so."""
_MOST_TICK_S = 1.0
ALIVE = "alive"
"""The name of the file."""
_NUMBER = struct.Struct("<Q")


def place_of(rank: int) -> int:
    return 2 + rank


class AliveCounts:
    """The numbers in a run's folder."""

    def __init__(self, region: mmap.mmap) -> None:
        self._region = region

    @classmethod
    def create(cls, folder: Path, ranks: int) -> AliveCounts:
        """For an attempt: all numbers begin at 0."""
        size_bytes = _NUMBER.size * place_of(ranks)
        path = folder / ALIVE
        path.unlink(missing_ok=True)  # workers of the attempt before look at the old one
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.truncate(file, size_bytes)
            return cls(mmap.mmap(file, size_bytes))
        finally:
            os.close(file)

    @classmethod
    def open(cls, folder: Path) -> AliveCounts:
        """Raises OSError: there is none."""
        with (folder / ALIVE).open("r+b") as file:
            return cls(mmap.mmap(file.fileno(), 0))

    def count(self, place: int) -> None:
        """Say that the process at this place runs."""
        offset = place * _NUMBER.size
        _NUMBER.pack_into(self._region, offset, _NUMBER.unpack_from(self._region, offset)[0] + 1)

    def of(self, place: int) -> int:
        number: int = _NUMBER.unpack_from(self._region, place * _NUMBER.size)[0]
        return number


@dataclass
class Silence:
    """How long, in this process's own time, numbers have not changed."""

    counts: AliveCounts
    places: Sequence[int]
    _seen: dict[int, int] = field(default_factory=dict)
    _silent_s: dict[int, float] = field(default_factory=dict)
    _looked_s: float = field(default_factory=time.monotonic)

    def longer_than(self, limit_s: float) -> list[int]:
        """The places that have been silent for longer; it is asked again and again, at least once a second."""
        now_s = time.monotonic()
        # A longer tick is a pause of this process itself, in which others may have paused as well.
        tick_s, self._looked_s = min(now_s - self._looked_s, _MOST_TICK_S), now_s
        for place in self.places:
            number = self.counts.of(place)
            if self._seen.get(place) != number:
                self._seen[place], self._silent_s[place] = number, 0.0
            else:
                self._silent_s[place] += tick_s
        return [place for place in self.places if self._silent_s[place] > limit_s]


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped the process; False where the system does not say."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except OSError:
        return False


def count_and_watch(folder: Path, rank: int, limit_s: float) -> None:
    """A worker's part, on a thread of its own for as long as the process lives; nothing where the folder has no counts."""
    try:
        counts = AliveCounts.open(folder)
    except OSError:
        return
    parent = os.getppid()
    threading.Thread(target=_count_and_watch, args=(counts, rank, limit_s, parent), daemon=True, name="alive").start()


def _count_and_watch(counts: AliveCounts, rank: int, limit_s: float, parent: int) -> None:
    silence = Silence(counts, (LAUNCHER, SERVER))
    while True:
        counts.count(place_of(rank))
        if silent := silence.longer_than(limit_s + LATER_S):
            if SERVER in silent and os.getppid() == parent:
                os.kill(parent, signal.SIGKILL)  # it stands still; its other workers end with it
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(PERIOD_S)
