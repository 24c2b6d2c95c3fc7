"""Registers of all ranks of one process, each in the memory of its rank's device.

A rank on a device of its own keeps there what its device works on; what is loaded and prepared on the host, and all blocks of CPU ranks beside
such a device, lie in host memory that it can copy without waiting (pinned).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields

from torch import Tensor

from backend.devices.device import Device
from backend.memory.arena import Arena, arena_bytes, carve, planned_bytes, register_mode, regsts_on
from backend.memory.blocks import Blocks
from backend.memory.options import DEFAULT_MEMORY, MemoryOptions, RegisterMode
from planner.ir.actors.verify import device_bytes
from planner.ir.errors import OutOfMemory, Unsupported
from planner.ir.plan import Access, Plan, Regst, TaskKind

__all__ = ["by_memory", "lies_on_host", "make_blocks"]


def lies_on_host(plan: Plan, regst: Regst) -> bool:
    """Whether no device works on it: it is loaded or prepared, to be prepared or copied."""
    if regst.producer is None or plan.task[regst.producer].kind not in (TaskKind.SOURCE, TaskKind.PREPARE):
        return False
    consumers = [task for task, _ in plan.consumers[regst.id]]
    return bool(consumers) and all(task.kind in (TaskKind.PREPARE, TaskKind.COPY) for task in consumers)


def make_blocks(
    plan: Plan, devices: Mapping[int, Device], taps: Iterable[Access] = (), memory: MemoryOptions = DEFAULT_MEMORY
) -> dict[int, Blocks]:
    """Blocks per rank.

    Args:
        memory: ``registers`` and ``poison``, where all devices are CPUs, ``workspace``, where one is not; the others are options of worker
            processes.

    Raises:
        Unsupported: an option that does not apply here.
        OutOfMemory: all blocks at once do not fit a device whose work ends later than it is put there; or a device is full.
    """
    pinning = next((device for device in devices.values() if not device.immediate), None)
    _refuse(memory, on_cpus=pinning is None)
    mode = memory.registers or register_mode(plan)
    if pinning is not None and mode is RegisterMode.DYNAMIC:
        needs, limit = max(device_bytes(plan).values()), plan.cluster.device.memory_bytes
        raise OutOfMemory(
            f"on {pinning.name} every block is memory of its own from start to end: {needs} B at once, but a device of {plan.cluster.name} "
            f"has {limit} B; use smaller quotas or more micro-batches"
        )
    tapped = tuple(taps)
    blocks_of: dict[int, Blocks] = {}
    for rank in range(plan.num_ranks):
        arena = _arena(plan, rank, devices[rank], pinning) if mode is RegisterMode.STATIC else None
        blocks_of[rank] = Blocks(plan, rank, taps=tapped, arena=arena, poison=memory.poison)
    return blocks_of


def _refuse(memory: MemoryOptions, *, on_cpus: bool) -> None:
    """Refuse an option that would be ignored."""
    here = ("registers", "poison") if on_cpus else ("workspace",)
    ignored = [f.name for f in fields(memory) if f.name not in here and getattr(memory, f.name) != getattr(DEFAULT_MEMORY, f.name)]
    if ignored:
        where = "one process" if on_cpus else "a device with streams"
        raise Unsupported(f"memory options {', '.join(ignored)} do not apply to ranks of {where}; leave them out or use --performer gloo")


def _arena(plan: Plan, rank: int, device: Device, pinning: Device | None) -> Arena:
    if pinning is None:
        return Arena.make(plan, rank)
    on_host, on_device = by_memory(plan, rank, device)
    regions = [(on_host, pinning.host_memory(arena_bytes(plan, on_host))), (on_device, device.allocate(arena_bytes(plan, on_device)))]
    return _in_regions(plan, rank, regions)


def by_memory(plan: Plan, rank: int, device: Device) -> tuple[list[Regst], list[Regst]]:
    """The Regsts of a rank whose blocks lie in the host's memory, and those in its device's."""
    here = regsts_on(plan, rank)
    on_host = [regst for regst in here if device.immediate or lies_on_host(plan, regst)]
    return on_host, [regst for regst in here if regst not in on_host]


def _in_regions(plan: Plan, rank: int, regions: Sequence[tuple[Sequence[Regst], Tensor]]) -> Arena:
    tables: dict[str, list[list[Tensor]]] = {}
    for regsts, memory in regions:
        tables |= carve(plan, rank, regsts, memory)
    taken = sum(memory.nbytes for _, memory in regions)
    padding = taken - planned_bytes(plan, rank)
    places = {
        (regst, slot, index): (tensor.data_ptr(), tuple(tensor.shape))
        for regst, slots in tables.items()
        for slot, row in enumerate(slots)
        for index, tensor in enumerate(row)
    }
    return Arena(rank=rank, tables=tables, places=places, allocated_bytes=taken - padding, padding_bytes=padding, shared=frozenset())
