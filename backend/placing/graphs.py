"""Recorded graphs of acts: from its second time on, an act on the same memory is put into its lane as one launch.

act on these slots    first time   as it is: libraries set themselves up at first use, which must not be captured
                      second time  captured, then replayed; where that fails, as it is from then on, and it is said once
                      later        replayed
"""

from __future__ import annotations

import threading
import warnings

from backend.devices.device import CaptureFailed, Lane, Work
from planner.ir.actors.actor import Actor, ActorId

__all__ = ["Graphs", "NotCaptured"]


class NotCaptured(UserWarning):
    """A fragment cannot be recorded as a graph; it is put into its lane op by op."""


class Graphs:
    """Those of all acts of one process.  captured, failed: how many graphs there are, and how many acts have none."""

    def __init__(self) -> None:
        self.captured, self.failed = 0, 0
        self._replays: dict[tuple[ActorId, tuple[int, ...]], Work | None] = {}
        self._eager: set[ActorId] = set()
        self._lock = threading.Lock()

    def of(self, actor: Actor, slots: tuple[int, ...], lane: Lane, work: Work) -> Work:
        """What to put into the lane for an act.

        Args:
            slots: what tells the memory of this act from that of others.   work: the act as it is.
        """
        key = actor.id, slots
        if actor.id in self._eager:
            return work
        if key not in self._replays:
            self._replays[key] = None
            return work
        replay = self._replays[key]
        if replay is not None:
            return replay
        try:
            replay = self._replays[key] = lane.again(work)
        except CaptureFailed as error:
            self._give_up(actor, error)
            return work
        with self._lock:
            self.captured += 1
        return replay

    def _give_up(self, actor: Actor, error: CaptureFailed) -> None:
        with self._lock:
            self._eager.add(actor.id)
            self.failed += 1
            is_first = self.failed == 1
        if is_first:
            warnings.warn(
                f"task {actor.task.id} on rank {actor.rank} cannot be recorded as a graph ({error}); it and any other such task are put into "
                "their lanes op by op, with the same results; leave --graphs out to silence this",
                NotCaptured,
                stacklevel=2,
            )

    @property
    def about(self) -> str:
        """For the trace."""
        return f"{self.captured} captured" + (f", {self.failed} tasks without, as their capture failed" if self.failed else "")
