"""The threads that perform the acts of one rank.

    act --> the acts that may start at its end:   short acts       performed next, by this thread
                                                  one long act     performed after them, by this thread; one that computes goes first
                                                  the other acts   handed to sleeping threads

The bookkeeper knows which streams are busy, so any thread may perform acts of any stream, and a chain of acts across streams runs without
waking a thread.  A wake-up takes 14 us or more on 2 cores, and a second thread that only runs Python would wait for the first one's
interpreter anyway.  A short act is one that took less than SHORT_NS in its last few executions and never waits for another rank, a socket or a
file.  Acts that wait are performed last, so that they delay no other.  Threads that read sockets also perform short acts, and hand over all
others, so that they soon return to reading.

At most one act per stream runs at a time, and there are as many threads as streams, so there is a thread for every act that is handed over.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable

import torch

from backend.acts.bookkeeper import BegunAct
from backend.worker.reading import SharedReader
from planner.ir.actors.actor import Actor
from planner.ir.plan import TaskKind

__all__ = ["SHORT_NS", "ActThreads", "prepare_thread"]

SHORT_NS = 100_000
"""Waiting for an act shorter than this costs the next act no more than waking another thread: 34 us in the median in one process, 120 to 145 us
in two processes with a load of 7 [measured: experiments.benchmarks.acts with a thread per stream, 2 cores, 2026-11-21]."""

_LONGEST_NS = 4.0 * SHORT_NS
"""The longest duration that enters a task's moving mean; longer acts count as this long."""

MOST_SHORT = 4
"""So many short acts may follow each other before the postponed long act is handed over, or the socket is read again."""


_TRANSFER = TaskKind.TRANSFER
"""Looked up once: finding an enum's member costs more than comparing it."""


def prepare_thread() -> None:
    """What torch keeps per thread.  Without the first line a small matmul costs 23 times as much."""
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)


class ActThreads:
    """See the module's text.

    Args:
        perform: performs an act; returns the acts that may start now, begun already; None: the run is over.
        waits: whether an act of this actor may wait for another rank, a socket or a file.
        reader: where a thread looks for messages after its acts, and before it sleeps; None: nowhere, others read them.
    """

    def __init__(
        self,
        perform: Callable[[BegunAct], list[BegunAct] | None],
        waits: Callable[[Actor], bool],
        reader: SharedReader | None = None,
    ) -> None:
        self._perform, self._waits, self._reader = perform, waits, reader
        self._queue: queue.SimpleQueue[BegunAct | None] = queue.SimpleQueue()
        self._recent_ns: dict[str, float] = {}
        self._short: set[str] = set()
        """Tasks whose acts are short, of those that never wait."""
        self._count = 0

    def start(self, count: int) -> None:
        self._count = count
        for number in range(count):
            threading.Thread(target=self._serve, daemon=True, name=f"acts {number}").start()

    def stop(self) -> None:
        for _ in range(self._count):
            self._queue.put(None)

    def hand_over(self, acts: list[BegunAct]) -> None:
        """Give acts to sleeping threads, or to the next that has nothing to do."""
        for act in acts:
            self._queue.put(act)

    def took(self, actor: Actor, duration_ns: int) -> None:
        """Remember how long an act took, as a moving mean of the last few; a long outlier counts as 4 SHORT_NS."""
        task = actor.task.id
        recent_ns = self._recent_ns.get(task, _LONGEST_NS)
        self._recent_ns[task] = recent_ns = recent_ns + ((duration_ns if duration_ns < _LONGEST_NS else _LONGEST_NS) - recent_ns) / 4
        if recent_ns >= SHORT_NS:
            self._short.discard(task)
        elif task not in self._short and not self._waits(actor):
            self._short.add(task)

    def is_short(self, actor: Actor) -> bool:
        """Whether the actor's acts are short; False until a few of them have been performed."""
        return actor.task.id in self._short

    def work(self, acts: list[BegunAct], *, long: bool = True) -> None:
        """Perform acts on this thread, and those that may start at their ends, as the module's text says.

        Where there is a reader, this thread attends when it comes and when it goes, and not while it performs a long act.

        Args:
            long: one long act at a time may be performed here; False: short ones only, on a thread that has other duties.
        """
        short: deque[BegunAct] = deque()
        postponed: BegunAct | None = None
        in_row, reader = 0, self._reader
        while True:
            for act in acts:
                if act[0].task.id in self._short and (long or in_row + len(short) < MOST_SHORT):
                    short.appendleft(act) if act[0].task.kind is _TRANSFER else short.append(act)
                elif long and postponed is None:
                    postponed = act
                elif postponed is not None and self._waits(postponed[0]) and not self._waits(act[0]):
                    self._queue.put(postponed)
                    postponed = act
                else:
                    self._queue.put(act)
            if not short:
                if postponed is None:
                    return
                if reader is not None and (acts := reader.leave()):
                    reader.attend()
                    continue
                act, postponed, in_row = postponed, None, 0
                next_acts = self._perform(act)
                if reader is not None:
                    reader.attend()
            else:
                act, in_row = short.popleft(), in_row + 1
                if postponed is not None and in_row == MOST_SHORT:
                    self._queue.put(postponed)
                    postponed = None
                next_acts = self._perform(act)
            if next_acts is None:
                return
            acts = next_acts
            if reader is not None:
                acts += reader.take_now()

    def _serve(self) -> None:
        prepare_thread()
        reader = self._reader
        while (act := self._queue.get()) is not None:
            if reader is not None:
                reader.attend()
            self.work([act])
            if reader is not None:
                reader.look(self.work)
