"""Registers allocated once: all blocks of all Regsts of a rank in one piece of memory (or two, the second shared between processes).

    | block: tensor . tensor . | block: ...        every tensor begins at a multiple of 64 B; the tensors of one dtype stand together
    0

Within a block the tensors of one dtype lie one behind the other in the Regst's order, so a bucket of a collective *is* a piece of a block
and nothing is packed for it.  A tensor has the room of the largest part of its placement (plan.block_bytes), so what is allocated is the
Plan's number, to the byte; padding is below 64 B per tensor and counted by itself.  Without it a matmul would take another path through its
library, and the last bits would depend on where a tensor happens to lie.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backend.layout.sharding import torch_dtype
from backend.memory.options import RegisterMode
from backend.memory.packing import aligned
from planner.ir.actors.verify import device_bytes
from planner.ir.errors import InvalidPlan
from planner.ir.plan import Plan, Regst

__all__ = ["Arena", "arena_bytes", "carve", "zeroed_memory", "planned_bytes", "register_mode", "regsts_on"]

_HUGE_BYTES = 2 << 20


def regsts_on(plan: Plan, rank: int) -> tuple[Regst, ...]:
    """The Regsts that lie on ``rank``, in Plan order."""
    return tuple(r for r in plan.regsts if rank in plan.placement[r.placement].ranks)


def planned_bytes(plan: Plan, rank: int) -> int:
    """Bytes of all blocks of all Regsts on ``rank``: verify.device_bytes without the workspace of fragments."""
    return sum(regst.quota * plan.block_bytes(regst) for regst in regsts_on(plan, rank))


def register_mode(plan: Plan) -> RegisterMode:
    """STATIC where all blocks at once fit every device; a Plan that was accepted because its live bytes fit is DYNAMIC."""
    fits = max(device_bytes(plan).values(), default=0) <= plan.cluster.device.memory_bytes
    return RegisterMode.STATIC if fits else RegisterMode.DYNAMIC


def arena_bytes(plan: Plan, regsts: Sequence[Regst]) -> int:
    """Memory that ``carve`` needs for these Regsts, padding included."""
    return sum(regst.quota * _block_extent(plan, regst) for regst in regsts)


def _block_extent(plan: Plan, regst: Regst) -> int:
    placement = plan.placement[regst.placement]
    return sum(aligned(tensor.local_bytes(placement)) for tensor in regst.tensors)


def zeroed_memory(size_bytes: int) -> Tensor:
    """Zeroed bytes of this process, every page in place: what is planned is really there before the first act.

    Large pages where the kernel gives them, as blocks live as long as the run.
    """
    if size_bytes == 0:
        return torch.empty(0, dtype=torch.uint8)
    rounded = -(-size_bytes // _HUGE_BYTES) * _HUGE_BYTES if size_bytes > _HUGE_BYTES else size_bytes
    region = mmap.mmap(-1, rounded, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE") and rounded >= _HUGE_BYTES:
        region.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(region, dtype=torch.uint8)[:size_bytes].zero_()


def carve(plan: Plan, rank: int, regsts: Sequence[Regst], memory: Tensor) -> dict[str, list[list[Tensor]]]:
    """Regst id -> slot -> tensor number -> its place in ``memory``, in the shapes of ``rank``.

    Args:
        memory: bytes (uint8), arena_bytes(plan, regsts) of them.

    Both ends of a transfer call it with the same Regsts and so agree on every place without any talk.
    """
    tables: dict[str, list[list[Tensor]]] = {}
    offset = 0
    for regst in regsts:
        parts = list(_parts(plan, rank, regst))
        slots: list[list[Tensor]] = []
        for _ in range(regst.quota):
            slots.append([_view(memory, offset + start, shape, dtype) for start, shape, dtype in parts])
            offset += _block_extent(plan, regst)
        tables[regst.id] = slots
    return tables


def _parts(plan: Plan, rank: int, regst: Regst) -> Iterator[tuple[int, tuple[int, ...], torch.dtype]]:
    """(offset in the block, local shape, dtype) per tensor, in the Regst's order."""
    placement = plan.placement[regst.placement]
    order = sorted(range(len(regst.tensors)), key=lambda n: (regst.tensors[n].dtype.value, n))
    starts: dict[int, int] = {}
    used = 0
    for number in order:
        starts[number] = used
        used += aligned(regst.tensors[number].local_bytes(placement))
    for number, tensor in enumerate(regst.tensors):
        local = tensor.local_type(placement, rank)
        yield starts[number], local.shape, torch_dtype(local.dtype)


def _view(memory: Tensor, offset: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    size_bytes = dtype.itemsize
    for extent in shape:
        size_bytes *= extent
    return memory[offset : offset + size_bytes].view(dtype).view(shape)


def _place(slot: Tensor) -> tuple[int, tuple[int, ...]]:
    return slot.data_ptr(), tuple(slot.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arena:
    """The blocks of one rank.

    tables: Regst id -> slot -> tensor number -> its memory.   allocated_bytes: of all blocks.   padding_bytes: between tensors.
    shared: ids of the Regsts whose blocks other processes write to.
    """

    rank: int
    tables: dict[str, list[list[Tensor]]]
    places: dict[tuple[str, int, int], tuple[int, tuple[int, ...]]]
    allocated_bytes: int
    padding_bytes: int
    shared: frozenset[str]

    @staticmethod
    def make(
        plan: Plan,
        rank: int,
        shared: Sequence[Regst] = (),
        shared_memory: Tensor | None = None,
        placed: tuple[Sequence[Regst], Tensor] | None = None,
    ) -> Arena:
        """Allocate and carve the blocks of every Regst on ``rank``.

        Args:
            shared, shared_memory: Regsts whose blocks lie in memory that is there already, because other processes write to it.
            placed: Regsts for which there is memory already for another reason, and that memory.
        """
        given = [(regsts, memory) for regsts, memory in ((shared, shared_memory), placed or ((), None)) if memory is not None]
        apart = {regst.id for regsts, _ in given for regst in regsts}
        own = [regst for regst in regsts_on(plan, rank) if regst.id not in apart]
        memory = zeroed_memory(arena_bytes(plan, own))
        tables = carve(plan, rank, own, memory)
        regions = [memory]
        for regsts, region in given:
            tables |= carve(plan, rank, regsts, region)
            regions.append(region)
        padding = sum(r.quota * (_block_extent(plan, r) - plan.block_bytes(r)) for r in regsts_on(plan, rank))
        return Arena(
            rank=rank,
            tables=tables,
            places={(r, s, i): _place(t) for r, slots in tables.items() for s, row in enumerate(slots) for i, t in enumerate(row)},
            allocated_bytes=sum(region.nbytes for region in regions) - padding,
            padding_bytes=padding,
            shared=frozenset(regst.id for regst in shared),
        )

    def check(self, plan: Plan) -> None:
        """What was allocated is what the Plan says, and every block still lies where it was put.

        Raises:
            InvalidPlan: it is not; a fault of ours, never of the user's.
        """
        planned = planned_bytes(plan, self.rank)
        if self.allocated_bytes != planned:
            raise InvalidPlan(
                f"rank {self.rank} allocated {self.allocated_bytes} B for registers, the plan says {planned} B; please report it"
            )
        for (regst, slot, index), place in self.places.items():
            actual = _place(self.tables[regst][slot][index])
            if actual != place:
                raise InvalidPlan(
                    f"rank {self.rank}: tensor {index} of block {slot} of regst {regst} lay at {place[0]:#x} in shape {place[1]} and lies at "
                    f"{actual[0]:#x} in shape {actual[1]}; an op computed another shape than it was planned for"
                )
