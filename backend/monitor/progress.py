"""The parent reads what the workers report while they run, and passes it on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

from backend.monitor.heartbeat import Heartbeat, HeartbeatReader
from backend.monitor.tail import Tail

__all__ = ["Listener", "Progress"]


@runtime_checkable
class Listener(Protocol):
    """An on_progress that also takes the heartbeats of the ranks."""

    def __call__(self, step: int, loss: float) -> None: ...

    def on_heartbeat(self, heartbeat: Heartbeat) -> None: ...


class Progress:
    """Forwards the whole lines "step loss" that a run's file of progress has gained."""

    def __init__(self, folder: Path, on_progress: Callable[[int, float], None] | None) -> None:
        self._tail = Tail(folder / "progress")
        self._on_progress = on_progress
        self._listener = on_progress if isinstance(on_progress, Listener) else None
        self._heartbeats = HeartbeatReader(folder)
        self._lines: deque[str] = deque()  # read, not yet passed on: an interrupt while they are loses none

    def forward(self) -> None:
        """Pass on what is new.  Raises whatever the caller's function raises."""
        if self._listener is not None:
            for heartbeat in self._heartbeats.new_heartbeats():
                self._listener.on_heartbeat(heartbeat)
        if self._on_progress is None:
            return
        self._lines.extend(self._tail.new_lines().splitlines())
        while self._lines:
            step, loss = self._lines.popleft().split()
            self._on_progress(int(step), float(loss))
