"""Registers of all ranks of one process, each in the memory of its rank's device.

A rank on a device of its own keeps there what its device works on; what is loaded and prepared on the host, and all blocks of CPU ranks beside
such a device, lie in host memory that it can copy without waiting (pinned).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields

from backend.devices.device import Device
from backend.memory.arena import Arena, register_mode
from backend.memory.blocks import Blocks
from backend.memory.options import DEFAULT_MEMORY, MemoryOptions, RegisterMode
from backend.placing import device_arena
from planner.ir.actors.verify import device_bytes
from planner.ir.errors import OutOfMemory, Unsupported
from planner.ir.plan import Access, Plan

__all__ = ["make_blocks"]


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
        arena = None
        if mode is RegisterMode.STATIC:
            arena = Arena.make(plan, rank) if pinning is None else device_arena(plan, rank, devices[rank], pinning)
        blocks_of[rank] = Blocks(plan, rank, taps=tapped, arena=arena, poison=memory.poison)
    return blocks_of


def _refuse(memory: MemoryOptions, *, on_cpus: bool) -> None:
    """Refuse an option that would be ignored."""
    here = ("registers", "poison") if on_cpus else ("workspace",)
    ignored = [f.name for f in fields(memory) if f.name not in here and getattr(memory, f.name) != getattr(DEFAULT_MEMORY, f.name)]
    if ignored:
        where = "one process" if on_cpus else "a device with streams"
        raise Unsupported(f"memory options {', '.join(ignored)} do not apply to ranks of {where}; leave them out or use --performer gloo")
