"""Where a run begins: at the first step with given values, or where the newest checkpoint of its folder ends."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from backend.checkpoint.folder import latest, steps_of
from backend.checkpoint.saved import Saved, verify
from planner.ir.errors import InvalidFile

__all__ = ["Start", "empty_folder", "resume_point"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where a run goes on.   steps: done before.   values: the state after them."""

    steps: int
    values: Saved


def resume_point(folder: str | Path) -> Start | None:
    """The newest checkpoint, every byte of it verified; None when there is none yet.

    Raises:
        InvalidFile: it is damaged; the message names the file, and removing the checkpoint's folder makes the one before it the newest.
    """
    newest = latest(folder)
    if newest is None:
        return None
    try:
        return Start(steps=verify(newest).next_batch, values=Saved(str(newest)))
    except InvalidFile as error:
        raise InvalidFile(f"{error} (remove {newest} to resume from the checkpoint before it)") from error


def empty_folder(folder: str | Path) -> None:
    """Refuse to mix two runs in one folder.

    Raises:
        InvalidFile: it holds checkpoints.
    """
    steps = steps_of(Path(folder))
    if steps:
        raise InvalidFile(
            f"{folder} holds {len(steps)} checkpoints, the newest of step {steps[-1]}; resume from it (--resume), or give another folder"
        )
