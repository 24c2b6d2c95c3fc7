"""A save that was not planned: before the workers of an interrupted run are ended, they save the state after a step on which they agree.

    launcher   writes RUN/stop and waits for the checkpoint of the step that RUN/stop.step names
    worker     finds the file at its SAVE act after n steps; the first to find it tells the store that all save after n + 2

No rank is more than one step ahead of another, since the update of a step waits for the gradients of all stages, and so none is past that step.
"""

from __future__ import annotations

from pathlib import Path

from torch._C._distributed_c10d import Store

__all__ = ["Stop", "ask_to_stop", "stopped_at"]

_ASKED, _STEP = "stop", "stop.step"
_AHEAD = 2


class Stop:
    """A worker's side."""

    def __init__(self, folder: Path, store: Store) -> None:
        self._asked, self._answer, self._store = folder / _ASKED, folder / _STEP, store
        self._step: int | None = None

    def saves_at(self, step: int) -> bool:
        """Whether the state after ``step`` steps is the one to save; called once per step, in order."""
        if self._step is None and self._asked.exists():
            self._step = int(self._store.compare_set("stop", "", str(step + _AHEAD)))
            self._answer.write_text(f"{self._step}\n")
        return step == self._step


def ask_to_stop(folder: Path) -> None:
    """Let the workers of the run in this folder save soon."""
    (folder / _ASKED).touch()


def stopped_at(folder: Path) -> int | None:
    """The step on which the workers have agreed; None: not yet."""
    answer = folder / _STEP
    text = answer.read_text() if answer.exists() else ""
    return int(text) if text.endswith("\n") else None
