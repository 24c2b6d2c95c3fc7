"""The fragments of one rank of this process, compiled for its device.

On CPUs they are functions of blocks alone.  On a device with lanes what lives inside of them lies in planned workspace, one piece per stream,
as in a worker process (backend.ops.workspace): a lane performs one act at a time.
"""

from __future__ import annotations

from backend.devices.device import Device
from backend.memory.blocks import Blocks
from backend.memory.options import MemoryOptions
from backend.ops.fragment import CompiledFragment, compile_fragment
from backend.ops.workspace import Workspace, WorkspaceBytes, uses_workspace
from backend.ops.writable import writable_blocks
from planner.ir.plan import Fragment, Plan

__all__ = ["RankFragments"]


class RankFragments:
    """See the module's text.

    functions: task -> what performs its next act; it may change from act to act.
    """

    def __init__(self, plan: Plan, rank: int, blocks: Blocks, device: Device, memory: MemoryOptions) -> None:
        tasks = [task for task in plan.tasks if isinstance(task.body, Fragment) and rank in plan.ranks_of(task)]
        writable = {task.id: writable_blocks(plan, task, blocks.mode) for task in tasks}
        where = "" if device.torch_device.type == "cpu" else str(device.torch_device)
        self._workspace: Workspace | None = None
        self.functions: dict[str, CompiledFragment]
        if not device.immediate and uses_workspace(memory, blocks.mode):
            self._workspace = Workspace(plan, rank, tasks, writable, memory, allocate=device.allocate, device=where)
            self.functions = self._workspace.functions
        else:
            self.functions = {
                task.id: compile_fragment(task, plan.placement[task.placement], rank, writable[task.id], device=where) for task in tasks
            }

    def is_final(self, task: str) -> bool:
        """Whether the task's function changes no more."""
        return self._workspace is None or task in self._workspace.final

    @property
    def workspace(self) -> WorkspaceBytes:
        """What the workspace takes; zeros where there is none (yet)."""
        return self._workspace.sizes or WorkspaceBytes() if self._workspace is not None else WorkspaceBytes()
