"""Who owns the memory of a device with lanes, counted before anything is taken.

    registers    all blocks of all Regsts of its ranks, padding included           the Plan's number
    workspace    of each stream the largest of its fragments                        the Plan's number
    libraries    a cuBLAS workspace per lane that computes                          backend.devices.libraries

What kernels take beside it while they run (cuDNN's own workspace, a value that found no room in the workspace) is measured, not counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from backend.devices.device import Device
from backend.memory.arena import arena_bytes, register_mode
from backend.memory.options import MemoryOptions
from backend.ops.workspace import uses_workspace
from backend.placing.arenas import by_memory
from planner.ir.actors.verify import stream_workspaces
from planner.ir.errors import OutOfMemory
from planner.ir.plan import Plan

__all__ = ["OwnedBytes", "check_room", "owned_bytes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedBytes:
    """Bytes of one device by owner."""

    registers: int = 0
    workspace: int = 0
    libraries: int = 0

    @property
    def total(self) -> int:
        return self.registers + self.workspace + self.libraries

    def __str__(self) -> str:
        return f"{self.total} B: registers {self.registers}, workspace {self.workspace}, libraries {self.libraries}"


def owned_bytes(plan: Plan, devices: Mapping[int, Device], memory: MemoryOptions) -> dict[str, OwnedBytes]:
    """Device with lanes -> what a run takes there for good, all its ranks together.

    Args:
        devices: per rank; ranks whose devices have one name share one.
    """
    mode = memory.registers or register_mode(plan)
    by_device: dict[str, list[int]] = {}
    for rank, device in devices.items():
        if not device.immediate:
            by_device.setdefault(device.name, []).append(rank)
    owned: dict[str, OwnedBytes] = {}
    for name, ranks in by_device.items():
        computing = sum(len({task.stream for task in plan.tasks if task.kind.is_compute and rank in plan.ranks_of(task)}) for rank in ranks)
        planned = [sum(stream_workspaces(plan, rank).values()) for rank in ranks] if uses_workspace(memory, mode) else []
        owned[name] = OwnedBytes(
            registers=sum(arena_bytes(plan, by_memory(plan, rank, devices[rank])[1]) for rank in ranks),
            workspace=sum(planned),
            libraries=devices[ranks[0]].library_bytes(computing),
        )
    return owned


def check_room(owned: Mapping[str, OwnedBytes], devices: Mapping[int, Device]) -> None:
    """Refuse a run that a device has no room for.

    Raises:
        OutOfMemory: with the owners' numbers.
    """
    for name, bytes_of in owned.items():
        ranks = [rank for rank, device in devices.items() if device.name == name]
        free = devices[ranks[0]].free_bytes()
        if free and bytes_of.total > free:
            raise OutOfMemory(
                f"ranks {ranks} take {bytes_of} of {name}, which has {free} B left; use smaller quotas, more micro-batches, or fewer ranks "
                "on this device"
            )
