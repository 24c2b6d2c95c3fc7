"""The registers of one worker, from start to end: how they are held, where they lie, what they took.

    take --> blocks --> connect (memory shared with senders) --> [acts] --> prove (allocated == planned) --> footprint, about

Switches for tests and measurements, as environment variables of the parent: REGISTA_REGISTERS=static|dynamic (instead of the Plan's numbers),
REGISTA_SHM=0 (payloads through sockets), REGISTA_POISON=1 (released blocks are overwritten with NaN), REGISTA_MALLOC=tight (workspace goes
back to the kernel when it is freed: the process is no larger than its plan, but a data-parallel step of a GPT of 4 x 512 takes 1.3 to 1.4 times
the processor time, as every act faults its pages in again [measured: 2 ranks, 8 steps, 2 cores, load 11, 2026-11-21]).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from pathlib import Path

from torch import Tensor

from backend.arena import Arena, RegisterMode, planned_bytes, register_mode
from backend.blocks import Blocks, state_parts
from backend.initial.values import Values
from backend.shm import far_tables, reserve, switch
from backend.transport import Mesh
from planner.ir.errors import InvalidProgram
from planner.ir.plan import Access, Plan
from planner.ir.verify import device_bytes

__all__ = ["RUNTIME_BYTES", "Registers", "process_bytes", "reset_process_peak"]

RUNTIME_BYTES = 64 << 20
"""What a worker takes beside its plan, between the first block and the end: libraries that load at the first call, threads, gloo, rows of the
trace [measured: 54 to 68 MiB, plans of 0.1 to 470 MiB, torch 2.13 on CPU, 2 ranks, 2026-11-21]."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""mallopt's numbers for them [malloc.h]."""


def _tight_malloc() -> None:
    """Undo the workers' setting that keeps freed memory: with it fragments of workspace pile up, 80 to 150 MiB beside 470 [measured as above].

    Raises:
        InvalidProgram: a C library without mallopt.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        raise InvalidProgram("REGISTA_MALLOC=tight needs glibc; leave the variable out") from None
    mallopt(_M_MMAP_THRESHOLD, 256 << 10)
    mallopt(_M_TRIM_THRESHOLD, 128 << 10)


def process_bytes() -> tuple[int, int]:
    """(resident now, its peak) of this process, pages of shared memory included; (0, 0) where the kernel does not say."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0, 0
    found = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines) if name in ("VmRSS", "VmHWM")}
    return found.get("VmRSS", 0), found.get("VmHWM", 0)


def reset_process_peak() -> bool:
    """Let the peak start again from what is resident now; False where the kernel cannot [Linux: proc(5), clear_refs 5]."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


class Registers:
    """See the module's text.

    base_bytes: resident after imports and before the first block.
    """

    def __init__(self, plan: Plan, rank: int, *, one_host: bool, taps: Iterable[Access] = ()) -> None:
        if switch("REGISTA_MALLOC", ("", "tight"), "") == "tight":
            _tight_malloc()
        self.base_bytes = process_bytes()[0]
        self._plan, self._rank, self._one_host = plan, rank, one_host
        self.mode = self._mode()
        self._shared = reserve(plan, rank, one_host=one_host, static=self.mode is RegisterMode.STATIC)
        arena = Arena.make(plan, rank, self._shared.regsts, self._shared.memory) if self.mode is RegisterMode.STATIC else None
        self.blocks = Blocks(plan, rank, taps=taps, arena=arena, poison=switch("REGISTA_POISON", ("0", "1"), "0") == "1")
        self._far_bytes = 0
        self._peak_was_reset = False

    def _mode(self) -> RegisterMode:
        wanted = register_mode(self._plan)
        asked = switch("REGISTA_REGISTERS", ("", "static", "dynamic"), "")
        if asked == RegisterMode.STATIC.value and wanted is RegisterMode.DYNAMIC:
            need, limit = max(device_bytes(self._plan).values()), self._plan.cluster.device.memory_bytes
            raise InvalidProgram(
                f"REGISTA_REGISTERS=static, but all blocks at once take {need} B and a device has {limit} B; leave the variable out"
            )
        return RegisterMode(asked) if asked else wanted

    def fill(self, state: Mapping[str, Tensor] | Values) -> None:
        """Put this rank's parts of the logical state, one by one, so that no part is held twice."""
        self.blocks.fill_state(state_parts(self._plan, self._rank, state))

    def connect(self, mesh: Mesh) -> dict[int, Mapping[str, list[list[Tensor]]]]:
        """Blocks of the ranks that this one sends to, where it can write to them; for RankBody.attach."""
        far = far_tables(self._plan, self._rank, mesh, self._shared, one_host=self._one_host)
        self._far_bytes = sum(t.nbytes for tables in far.values() for slots in tables.values() for row in slots for t in row)
        return far

    def started(self) -> None:
        """The last moment before the first act: from here on the process peak counts."""
        self._peak_was_reset = reset_process_peak()

    def ended(self) -> dict[str, int]:
        """After the last act: prove the law of the mode, and what this process took.

        Returns:
            planned_bytes, allocated_bytes: of blocks (allocated 0: they came and went).   far_bytes: blocks of other ranks that are mapped
            here.   device_bytes: the Plan's number, workspace included.   base_bytes, process_peak_bytes: resident before the first block,
            and at the worst moment of the acts (0: the kernel does not say).

        Raises:
            InvalidPlan, OutOfMemory: see Blocks.prove.
        """
        peak_bytes = process_bytes()[1] if self._peak_was_reset else 0
        self.blocks.prove()
        arena = self.blocks.arena
        return {
            "planned_bytes": planned_bytes(self._plan, self._rank),
            "device_bytes": device_bytes(self._plan)[self._rank],
            "allocated_bytes": arena.allocated_bytes if arena is not None else 0,
            "padding_bytes": arena.padding_bytes if arena is not None else 0,
            "far_bytes": self._far_bytes,
            "base_bytes": self.base_bytes,
            "process_peak_bytes": peak_bytes,
        }

    @property
    def about(self) -> dict[str, str]:
        """For the trace: how registers were held and how transfers came in."""
        return {"registers": self.mode.value, "transfers": self._shared.about}
