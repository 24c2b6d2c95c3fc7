"""The fragments of one rank of this process, as callables for its device.

On CPUs they are functions of blocks alone.  On a device with lanes what lives inside of them lies in planned workspace, one piece per stream,
as in a worker process (backend.ops.workspace): a lane performs one act at a time.
"""

from __future__ import annotations

from backend.devices.device import Device
from backend.memory.blocks import Blocks
from backend.memory.options import DEFAULT_MEMORY, MemoryOptions
from backend.ops.callables import RankFragments
from backend.ops.inductor import Kernels
from backend.ops.workspace import uses_workspace
from planner.ir.plan import Plan

__all__ = ["fragments_of"]


def fragments_of(
    plan: Plan, blocks: Blocks, device: Device, memory: MemoryOptions = DEFAULT_MEMORY, kernels: Kernels = Kernels.EAGER
) -> RankFragments:
    """See the module's text."""
    return RankFragments(
        plan,
        blocks.rank,
        blocks.mode,
        memory,
        device="" if device.torch_device.type == "cpu" else str(device.torch_device),
        allocate=device.allocate,
        planned=not device.immediate and uses_workspace(memory, blocks.mode),
        kernels=kernels,
    )
