"""What the workers report while they run, read by their parent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

__all__ = ["Progress"]


class Progress:
    """Forwards the whole lines "step loss" that a run's file of progress has gained."""

    def __init__(self, folder: Path, on_progress: Callable[[int, float], None] | None) -> None:
        self._path = folder / "progress"
        self._on_progress = on_progress
        self._read = 0

    def forward(self) -> None:
        """Raises whatever the caller's function raises."""
        if self._on_progress is None or not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            step, loss = line.split()
            self._on_progress(int(step), float(loss))
