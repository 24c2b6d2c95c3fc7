"""State in shared memory that the launcher keeps when the workers have ended.

    launcher:  memfd of all ranks' pieces --its path under /proc--> worker:  takes and maps its rank's piece; its Regsts of state lie there
    run ends:  the launcher maps the pieces and reads from them what it is asked for

Of the copies of a part the lowest rank leaves its own; a rank's piece has the Regsts of which it leaves some part.  The memory has no name: when
the last process that maps it ends, however it ends, it is gone.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from backend.checkpoint.shares import Share, shares
from backend.memory.arena import arena_bytes, carve, regsts_on
from planner.ir.plan import Plan, Regst

__all__ = ["StateMemory", "own_state_memory", "state_memory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateMemory:
    """A rank's piece: ``size_bytes`` at ``offset_bytes`` of the memory of all ranks, which hold ``regsts`` one behind the other."""

    rank: int
    regsts: tuple[Regst, ...]
    shares: tuple[Share, ...]
    offset_bytes: int
    size_bytes: int

    def map(self, handle: int) -> Tensor:
        """The piece, uint8, shape [size_bytes], of the memory that ``handle`` is open on.  Raises OSError."""
        region = mmap.mmap(handle, self.size_bytes, offset=self.offset_bytes)
        return torch.frombuffer(region, dtype=torch.uint8)

    def tensors(self, plan: Plan, memory: Tensor) -> dict[str, Tensor]:
        """Name of a state -> the part of it that this rank leaves."""
        tables = carve(plan, self.rank, self.regsts, memory)
        return {share.state.name: tables[share.state.regst][0][share.state.index] for share in self.shares}


def pieces(plan: Plan) -> tuple[StateMemory, ...]:
    """Those of all ranks that leave something; launcher and workers work them out alike."""
    work = shares(plan, spread=False)
    found: list[StateMemory] = []
    offset = 0
    for rank in range(plan.num_ranks):
        own = tuple(share for share in work if share.rank == rank)
        held = {share.state.regst for share in own}
        regsts = tuple(regst for regst in regsts_on(plan, rank) if regst.id in held)
        if size_bytes := arena_bytes(plan, regsts):
            found.append(StateMemory(rank=rank, regsts=regsts, shares=own, offset_bytes=offset, size_bytes=size_bytes))
            offset += -(-size_bytes // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
    return tuple(found)


@contextmanager
def state_memory(plan: Plan, wanted: bool) -> Iterator[str]:
    """The path under which workers of this host find memory for their states while the context lasts; empty: there is none.

    No page of it is taken here.
    """
    own = pieces(plan) if wanted and hasattr(os, "memfd_create") else ()
    if not own:
        yield ""
        return
    handle = os.memfd_create("regista-state", os.MFD_CLOEXEC)
    try:
        os.ftruncate(handle, own[-1].offset_bytes + own[-1].size_bytes)
        yield f"/proc/{os.getpid()}/fd/{handle}"
    finally:
        os.close(handle)


def own_state_memory(plan: Plan, rank: int, path: str) -> tuple[tuple[Regst, ...], Tensor] | None:
    """The Regsts of ``rank`` that lie in the memory at ``path`` and its piece of it, every page taken; None: it leaves nothing, or it cannot.

    It cannot where the kernel lets it not open what the launcher holds, or where there is no room.
    """
    piece = next((piece for piece in pieces(plan) if piece.rank == rank), None) if path else None
    if piece is None:
        return None
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.posix_fallocate(handle, piece.offset_bytes, piece.size_bytes)
            return piece.regsts, piece.map(handle)
        finally:
            os.close(handle)
    except OSError:
        return None
