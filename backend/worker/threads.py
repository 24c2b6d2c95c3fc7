"""The threads that perform the acts of one rank.

    act --> what its end lets start:  short acts           performed next, by this thread
                                      one of the others    performed after them, by this thread; rather one that computes
                                      the rest             handed to threads that sleep

A stream is busy or free by its gate, so any thread may serve any stream, and a chain of acts across streams runs without a wake-up: 14 us
and more each on 2 cores, and a second thread that only runs Python waits for the first one's interpreter anyway.  A short act is one
that took less than SHORT_NS of late and never waits for anybody else.  What waits (a collective, a socket, a file) is done last, so
nothing is kept behind it.  The readers of sockets perform short acts too, and hand over all others, so that they soon read on.

At most one act per stream runs at a time, and there are as many threads as streams: what is handed over finds a thread.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable

import torch

from backend.acts.bookkeeper import BegunAct
from planner.ir.actors.actor import Actor
from planner.ir.plan import TaskKind

__all__ = ["SHORT_NS", "ActThreads", "prepare_thread"]

SHORT_NS = 100_000
"""Below this, to wait costs the next act no more than a wake-up of another thread would: 34 us in the median in one process, 120 to 145 us in
two processes with a load of 7 [measured: experiments.benchmarks.acts with a thread per stream, 2 cores, 2026-11-21]."""

MOST_SHORT = 4
"""Short acts in a row before the long act kept for later, or the socket, is seen to."""


def prepare_thread() -> None:
    """What torch keeps per thread.  Without the first line a small matmul costs 23 times as much."""
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)


class ActThreads:
    """See the module's text.

    Args:
        perform: does an act; returns the acts that may start now, begun already; None: the run is over.
        waits: whether an act of this actor may have to wait for others than this processor.
    """

    def __init__(self, perform: Callable[[BegunAct], list[BegunAct] | None], waits: Callable[[Actor], bool]) -> None:
        self._perform, self._waits = perform, waits
        self._queue: queue.SimpleQueue[BegunAct | None] = queue.SimpleQueue()
        self._recent_ns: dict[str, float] = {}
        self._count = 0

    def start(self, count: int) -> None:
        self._count = count
        for number in range(count):
            threading.Thread(target=self._serve, daemon=True, name=f"acts {number}").start()

    def stop(self) -> None:
        for _ in range(self._count):
            self._queue.put(None)

    def hand_over(self, acts: list[BegunAct]) -> None:
        """To threads that sleep, or to the next one that has nothing to do."""
        for act in acts:
            self._queue.put(act)

    def took(self, actor: Actor, duration_ns: int) -> None:
        """Remember how long an act took: the mean of the last few, where one that was held up counts little."""
        recent_ns = self._recent_ns.get(actor.task.id, 4.0 * SHORT_NS)
        self._recent_ns[actor.task.id] = recent_ns + (min(duration_ns, 4 * SHORT_NS) - recent_ns) / 4

    def is_short(self, actor: Actor) -> bool:
        """Whether the actor's acts are; not before a few of them were done."""
        return self._recent_ns.get(actor.task.id, SHORT_NS) < SHORT_NS and not self._waits(actor)

    def work(self, acts: list[BegunAct], *, long: bool = True) -> None:
        """Perform acts on this thread, and those that come of them, as the module's text says.

        Args:
            long: one long act at a time may be performed here; False: short ones only, on a thread that has other duties.
        """
        short: deque[BegunAct] = deque()
        kept: BegunAct | None = None
        row = 0
        while True:
            for act in acts:
                if self.is_short(act[0]) and (long or row + len(short) < MOST_SHORT):
                    short.appendleft(act) if act[0].task.kind is TaskKind.TRANSFER else short.append(act)
                elif long and kept is None:
                    kept = act
                elif kept is not None and self._waits(kept[0]) and not self._waits(act[0]):
                    self._queue.put(kept)
                    kept = act
                else:
                    self._queue.put(act)
            if not short:
                if kept is None:
                    return
                act, kept, row = kept, None, 0
            else:
                act, row = short.popleft(), row + 1
                if kept is not None and row == MOST_SHORT:
                    self._queue.put(kept)
                    kept = None
            found = self._perform(act)
            if found is None:
                return
            acts = found

    def _serve(self) -> None:
        prepare_thread()
        while (act := self._queue.get()) is not None:
            self.work([act])
