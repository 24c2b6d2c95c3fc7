"""The registers of a rank on a device with lanes: what only the host works on lies there, pinned, and the rest on the device."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from backend.devices.device import Device
from backend.memory.arena import Arena, arena_bytes, carve, planned_bytes, regsts_on
from planner.ir.plan import Plan, Regst, TaskKind

__all__ = ["by_memory", "device_arena", "lies_on_host"]


def lies_on_host(plan: Plan, regst: Regst) -> bool:
    """Whether no device works on it: it is loaded or prepared, to be prepared or copied."""
    if regst.producer is None or plan.task[regst.producer].kind not in (TaskKind.SOURCE, TaskKind.PREPARE):
        return False
    consumers = [task for task, _ in plan.consumers[regst.id]]
    return bool(consumers) and all(task.kind in (TaskKind.PREPARE, TaskKind.COPY) for task in consumers)


def by_memory(plan: Plan, rank: int, device: Device) -> tuple[list[Regst], list[Regst]]:
    """The Regsts of a rank whose blocks lie in the host's memory, and those in its device's."""
    here = regsts_on(plan, rank)
    on_host = [regst for regst in here if device.immediate or lies_on_host(plan, regst)]
    return on_host, [regst for regst in here if regst not in on_host]


def device_arena(plan: Plan, rank: int, device: Device, pinning: Device) -> Arena:
    """The blocks of all Regsts of a rank.

    Args:
        pinning: makes the host's memory; a device with lanes that ranks of this process use, so that copies to it need not wait.
    """
    on_host, on_device = by_memory(plan, rank, device)
    regions = [(on_host, pinning.host_memory(arena_bytes(plan, on_host))), (on_device, device.allocate(arena_bytes(plan, on_device)))]
    return _in_regions(plan, rank, regions)


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
