"""State that leaves a run as files: one per rank, each element of the state in one of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from backend.checkpoint.folder import PreparedFile, write_part
from backend.checkpoint.manifest import SavedFile
from backend.checkpoint.shares import file_name, shares
from planner.ir.plan import Plan

__all__ = ["FOLDER", "leave_state", "left_file"]

FOLDER = "state"
"""Under the run's folder."""


def left_file(plan: Plan, rank: int) -> str | None:
    """The file under the run's folder in which this rank leaves its shares; None: others hold all that it has."""
    return f"{FOLDER}/{file_name(rank)}" if any(share.rank == rank for share in shares(plan)) else None


def leave_state(
    folder: Path, plan: Plan, rank: int, state_of: Callable[[str, int], Tensor], *, spread: bool = True
) -> tuple[SavedFile, ...]:
    """Write this rank's shares into the run's folder: one file, or none.

    Args:
        state_of: (regst, index) -> this rank's part of the state, on any device.
        spread: see shares.

    Raises:
        InvalidFile: no room for it.
    """
    (folder / FOLDER).mkdir(exist_ok=True)
    own = {
        share.state.name: state_of(share.state.regst, share.state.index).detach().to("cpu").contiguous()
        for share in shares(plan, spread=spread)
        if share.rank == rank
    }
    # torch.save writes whole storages, here that of all blocks; copies would take as long as the writing.
    like = {name: torch.empty(value.shape, dtype=value.dtype) for name, value in own.items()}
    return (write_part(folder / FOLDER / file_name(rank), PreparedFile(like, own), durable=False),) if own else ()
