"""The registers of one worker, from start to end: their mode, the memory of their blocks, and what the process took.

Registers() --> fill --> connect (memory shared with senders) --> started --> [acts] --> ended (allocated == planned, bytes taken)
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from torch import Tensor

from backend.comm.host.blocks import mapped_blocks, reserve
from backend.comm.transport import Mesh
from backend.devices.device import Device
from backend.initial.values import Values
from backend.memory.arena import Arena, planned_bytes, register_mode
from backend.memory.blocks import Blocks, state_parts
from backend.memory.heap import tighten_heap
from backend.memory.options import DEFAULT_MEMORY, MemoryOptions, RegisterMode
from backend.ops.workspace import WorkspaceBytes, uses_workspace
from backend.placing import device_arena
from planner.ir.actors.verify import device_bytes
from planner.ir.errors import InvalidProgram
from planner.ir.plan import Access, Plan, Regst

__all__ = ["RUNTIME_BYTES", "Registers", "process_bytes", "reset_process_peak", "resident_bytes"]

RUNTIME_BYTES = 48 << 20
"""What a worker takes beside its plan and the scratch of its collectives, between the first block and the end, where no calibration has measured it
(planner.cost.Beside): pages of libraries' code, threads, gloo, rows of the trace, values outside of the workspace [measured: 31 to 60 MiB,
transformers of 40 to 220 MiB, 2 ranks; 65 to 90 with convolutions, of which code is 25, and the mapped batches, which grow with the steps, up to 25;
torch 2.13 on CPU, 2026-11-22]."""


def process_bytes() -> tuple[int, int]:
    """(resident now, its peak) of this process, pages of shared memory included; (0, 0) where the kernel does not say."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0, 0
    sizes = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines) if name in ("VmRSS", "VmHWM")}
    return sizes.get("VmRSS", 0), sizes.get("VmHWM", 0)


def resident_bytes(name: str) -> int:
    """Bytes resident now in the mappings of files called ``name``; 0 where the kernel does not say."""
    try:
        lines = Path("/proc/self/smaps").read_text().splitlines()
    except OSError:
        return 0
    total, counts = 0, False
    for line in lines:
        word, _, rest = line.partition(" ")
        if not word.endswith(":"):  # the head of a mapping: its addresses first, its file last
            counts = line.endswith(f"/{name}")
        elif counts and word == "Rss:":
            total += int(rest.split()[0]) * 1024
    return total


def reset_process_peak() -> bool:
    """Let the peak start again from what is resident now; False where the kernel cannot [Linux: proc(5), clear_refs 5]."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


class Registers:
    """See the module's text.

    Args:
        device: of the rank, where it has lanes.
        placed: Regsts of this rank for which there is memory already (arena_bytes of it), used where registers are STATIC and on the host.

    base_bytes: resident after imports and before the first block.   in_placed_memory: whether ``placed`` is used.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        *,
        one_host: bool,
        taps: Iterable[Access] = (),
        memory: MemoryOptions = DEFAULT_MEMORY,
        device: Device | None = None,
        placed: tuple[Sequence[Regst], Tensor] | None = None,
    ) -> None:
        if memory.return_freed and not tighten_heap():
            raise InvalidProgram("memory option return_freed needs glibc; leave it out")
        self.base_bytes = process_bytes()[0]
        self._plan, self._rank, self._one_host = plan, rank, one_host
        self.mode = self._mode(memory)
        if uses_workspace(memory, self.mode):
            tighten_heap()  # until backend.ops.workspace knows what values inside fragments need
        static = self.mode is RegisterMode.STATIC
        elsewhere = device if device is not None and device.torch_device.type != "cpu" else None
        self._shared = reserve(plan, rank, one_host=one_host, static=static, wanted=memory.shared_memory, on_host=elsewhere is None)
        arena = None
        if static and elsewhere is not None:
            arena = device_arena(plan, rank, elsewhere, elsewhere)
        elif static:
            arena = Arena.make(plan, rank, self._shared.regsts, self._shared.memory, placed)
        self.blocks = Blocks(plan, rank, taps=taps, arena=arena, poison=memory.poison)
        self.in_placed_memory = placed is not None and static and elsewhere is None
        self._mapped_bytes = 0
        self._peak_was_reset = False
        self._started_ns = 0

    def _mode(self, memory: MemoryOptions) -> RegisterMode:
        wanted = register_mode(self._plan)
        if memory.registers is RegisterMode.STATIC and wanted is RegisterMode.DYNAMIC:
            need, limit = max(device_bytes(self._plan).values()), self._plan.cluster.device.memory_bytes
            raise InvalidProgram(
                f"memory option registers=static, but all blocks at once take {need} B and a device has {limit} B; leave it out"
            )
        return memory.registers or wanted

    def fill(self, state: Mapping[str, Tensor] | Values) -> None:
        """Put this rank's parts of the logical state, one by one, so that no part is held twice."""
        self.blocks.fill_state(state_parts(self._plan, self._rank, state))

    def connect(self, mesh: Mesh) -> dict[int, Mapping[str, list[list[Tensor]]]]:
        """Blocks of the ranks that this one sends to, where it can write to them; for RankBody.attach."""
        mapped = mapped_blocks(self._plan, self._rank, mesh, self._shared, one_host=self._one_host)
        self._mapped_bytes = sum(t.nbytes for tables in mapped.values() for slots in tables.values() for row in slots for t in row)
        return mapped

    def started(self) -> None:
        """The last moment before the first act: from here on the process peak counts."""
        self._peak_was_reset = reset_process_peak()
        self._started_ns = time.process_time_ns()

    def ended(self, workspace: WorkspaceBytes, scratch_bytes: int) -> dict[str, int]:
        """After the last act: check that memory was what the Plan says, and say what this process took.

        Args:
            workspace: of the fragments.   scratch_bytes: held by the collectives.

        Returns:
            planned_bytes, allocated_bytes: of blocks (allocated 0: they came and went).   mapped_bytes: blocks of other ranks that are mapped
            here.   device_bytes: the Plan's number, workspace included.   base_bytes, process_peak_bytes: resident before the first block,
            and at the worst moment of the acts (0: the kernel does not say).   workspace_bytes: of fragments, allocated, of workspace_planned_bytes;
            workspace_heap_bytes: the most that values of one fragment took on the heap for want of workspace.   scratch_bytes: as given;
            padding_bytes: between tensors; neither is in the Plan's number.   processor_ns: time of all threads during the acts.

        Raises:
            InvalidPlan, OutOfMemory: see Blocks.check.
        """
        peak_bytes, processor_ns = process_bytes()[1] if self._peak_was_reset else 0, time.process_time_ns() - self._started_ns
        self.blocks.check()
        arena = self.blocks.arena
        return {
            "planned_bytes": planned_bytes(self._plan, self._rank),
            "device_bytes": device_bytes(self._plan)[self._rank],
            "allocated_bytes": arena.allocated_bytes if arena is not None else 0,
            "padding_bytes": arena.padding_bytes if arena is not None else 0,
            "workspace_bytes": workspace.allocated_bytes,
            "workspace_planned_bytes": workspace.planned_bytes,
            "workspace_heap_bytes": workspace.heap_bytes,
            "scratch_bytes": scratch_bytes,
            "mapped_bytes": self._mapped_bytes,
            "base_bytes": self.base_bytes,
            "process_peak_bytes": peak_bytes,
            "processor_ns": processor_ns,
        }

    @property
    def about(self) -> dict[str, str]:
        """For the trace: how registers were held and how transfers came in."""
        return {"registers": self.mode.value, "transfers": self._shared.about}
