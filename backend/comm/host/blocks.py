"""Blocks that several processes of a host write to: they lie in memory shared by descriptor, so a transfer is one copy and a 16-byte frame.

    receiver:  memfd --reserve--> map, carve --fd over the unix socket--> sender:  map, carve the same --copy_--> slot,  "done"

The memory has no name: when the last process that maps it ends, however it ends, it is gone.  The receiver owns it and says with one byte per
sender whether there is any; without, payloads travel through sockets (several hosts, blocks that come and go, no room, no memfd).
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from backend.comm.host.memory import allocated
from backend.comm.transport import Mesh
from backend.memory.arena import arena_bytes, carve, regsts_on
from planner.ir.actors.routes import routes
from planner.ir.plan import Plan, Regst, TaskKind

__all__ = ["Shared", "mapped_blocks", "reserve", "senders_of", "shared_regsts"]


def senders_of(plan: Plan, rank: int) -> tuple[int, ...]:
    """Other ranks that send something to ``rank`` in a TRANSFER."""
    senders: set[int] = set()
    for task in plan.tasks:
        if task.kind is TaskKind.TRANSFER:
            senders |= {src for src, targets in routes(plan, task).items() if rank in targets}
    return tuple(sorted(senders - {rank}))


def shared_regsts(plan: Plan, rank: int) -> tuple[Regst, ...]:
    """Regsts on ``rank`` that some other rank writes to; both sides work them out alike."""
    shared: list[Regst] = []
    for regst in regsts_on(plan, rank):
        producer = plan.task[regst.producer] if regst.producer is not None else None
        if producer is None or producer.kind is not TaskKind.TRANSFER:
            continue
        if any(rank in targets for src, targets in routes(plan, producer).items() if src != rank):
            shared.append(regst)
    return tuple(shared)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Memory of this rank that others write to.

    memory: None where payloads travel through sockets; ``why`` says why.   fd: to hand out, closed by ``mapped_blocks``.
    """

    regsts: tuple[Regst, ...] = ()
    memory: Tensor | None = None
    fd: int = -1
    why: str = ""

    @property
    def about(self) -> str:
        """One phrase for the trace: how transfers to this rank travel."""
        if self.memory is not None:
            return f"shared memory ({self.memory.nbytes} B)"
        return f"sockets ({self.why})" if self.why else "none"


def reserve(plan: Plan, rank: int, *, one_host: bool, static: bool, wanted: bool = True, on_host: bool = True) -> Shared:
    """Allocate the shared blocks of ``rank``, or say why not.

    Args:
        static: registers are STATIC.   wanted: MemoryOptions.shared_memory.   on_host: blocks lie in the host's memory.
    """
    regsts = shared_regsts(plan, rank)
    if not regsts:
        return Shared()
    if not one_host:
        return Shared(why="several hosts")
    if not static:
        return Shared(why="blocks come and go")
    if not on_host:
        return Shared(why="blocks lie on a device")
    if not wanted:
        return Shared(why="memory option shared_memory=False")
    if not hasattr(os, "memfd_create"):
        return Shared(why="this system has no memfd_create")
    size_bytes = arena_bytes(plan, regsts)
    try:
        fd = allocated(f"regista-{rank}", max(size_bytes, 1))
    except OSError as error:
        return Shared(why=f"no room for {size_bytes} B: {error.strerror}")
    try:
        memory = _map(fd, size_bytes)
    except OSError as error:
        os.close(fd)
        return Shared(why=f"no room for {size_bytes} B: {error.strerror}")
    return Shared(regsts=regsts, memory=memory, fd=fd)


def _map(fd: int, size_bytes: int) -> Tensor:
    return torch.frombuffer(mmap.mmap(fd, max(size_bytes, 1)), dtype=torch.uint8)[:size_bytes]


def mapped_blocks(plan: Plan, rank: int, mesh: Mesh, shared: Shared, *, one_host: bool) -> dict[int, Mapping[str, list[list[Tensor]]]]:
    """Hand out this rank's shared memory and map that of the ranks it sends to: receiver -> its blocks.  Call it before readers start.

    Nobody waits in a circle: handing out one byte never blocks.
    """
    blocks_of: dict[int, Mapping[str, list[list[Tensor]]]] = {}
    if not one_host:
        return blocks_of
    for sender in senders_of(plan, rank):
        mesh.send_descriptor(sender, shared.fd)
    for receiver in range(plan.num_ranks):
        if receiver == rank or rank not in senders_of(plan, receiver):
            continue
        fd = mesh.receive_descriptor(receiver)
        if fd < 0:
            continue
        regsts = shared_regsts(plan, receiver)
        blocks_of[receiver] = carve(plan, receiver, regsts, _map(fd, arena_bytes(plan, regsts)))
        os.close(fd)
    if shared.fd >= 0:
        os.close(shared.fd)
    return blocks_of
