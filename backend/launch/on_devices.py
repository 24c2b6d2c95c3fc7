"""What is refused, and said, before worker processes start on devices with streams."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import torch.distributed as dist

from backend.devices.options import DEFAULT_DEVICE_OPTIONS, DeviceOptions, check_options
from backend.memory.arena import register_mode
from backend.memory.options import MemoryOptions, RegisterMode
from backend.placing.carriers import carriers
from backend.placing.graphs import NotCaptured
from planner.ir.actors.launches import check_launches, launch_orders
from planner.ir.actors.verify import device_bytes
from planner.ir.errors import OutOfMemory, Unsupported
from planner.ir.plan import Plan

__all__ = ["NotByNccl", "check_devices", "say_not_captured"]


class NotByNccl(UserWarning):
    """Collectives of ranks on devices are carried by gloo."""


def check_devices(plan: Plan, devices: Mapping[int, str], options: DeviceOptions, memory: MemoryOptions) -> tuple[str, ...]:
    """The name of each rank's device, once a run on them was found possible; empty: all are on CPUs.

    Args:
        devices: rank -> name; ranks left out are on CPUs.

    Raises:
        Unsupported: ranks of different kinds meet in a collective; an option that would be ignored.
        OutOfMemory: all blocks at once do not fit a device.   DeadLock: launches could wait for each other for ever (SEMANTICS 3.12).
    """
    names = tuple(devices.get(rank, "cpu") for rank in range(plan.num_ranks))
    check_options(options, set(names), own_process=False)
    if set(names) == {"cpu"}:
        return ()
    if options.ahead != DEFAULT_DEVICE_OPTIONS.ahead:
        raise Unsupported(
            "ahead is an option of all ranks in one process: a process per device waits for each act; leave it out, or use --performer threads"
        )
    if memory.poison or memory.registers is not None:
        raise Unsupported("memory options poison and registers do not apply to devices with streams; leave them out, or use --device cpu")
    if register_mode(plan) is RegisterMode.DYNAMIC:
        needs, limit = max(device_bytes(plan).values()), plan.cluster.device.memory_bytes
        raise OutOfMemory(
            f"on devices with streams every block is memory of its own from start to end: {needs} B at once, but a device of "
            f"{plan.cluster.name} has {limit} B; use smaller quotas or more micro-batches"
        )
    carried = carriers(plan, dict(enumerate(names)), has_nccl=dist.is_nccl_available())
    if any(each.in_order for each in carried.values()):
        check_launches(plan, launch_orders(plan))
    reasons = dict.fromkeys(each.why for each in carried.values() if each.why)
    if reasons:
        warnings.warn(f"gloo carries collectives, through the host's memory: {'; '.join(reasons)}", NotByNccl, stacklevel=3)
    return names


def say_not_captured(tasks: int) -> None:
    """Say once, for all workers, that some tasks were performed without a graph."""
    if tasks:
        warnings.warn(
            f"{tasks} tasks of the workers could not be recorded as graphs and were put into their lanes op by op, with the same results; leave "
            "--graphs out to silence this",
            NotCaptured,
            stacklevel=3,
        )
