"""How a run holds its memory: the options that travel from ``run`` to the workers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["DEFAULT_MEMORY", "MemoryOptions", "RegisterMode"]


class RegisterMode(Enum):
    """STATIC: every block exists from start to end.   DYNAMIC: a block's memory is taken when it is written and given back when it is read."""

    STATIC = "static"
    DYNAMIC = "dynamic"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOptions:
    """The defaults are right for training; every other value serves a test or a measurement.

    registers: None: STATIC where all blocks at once fit every device, else DYNAMIC (backend.memory.arena.register_mode).
    shared_memory: transfers between processes of one host write into memory that both map, and collectives go through memory that all
        map; False: they go through sockets and gloo.
    workspace: values inside fragments lie in memory that was planned for them (backend.ops.workspace); False: on the heap.  Workspace needs
        STATIC registers; with DYNAMIC ones these values lie on the heap anyway.
    return_freed: the C library gives freed memory back to the kernel at once, so the process is no larger than its plan, but every act
        faults its pages in again: a data-parallel step of a GPT of 4 x 512 takes 1.3 to 1.4 times the processor time [measured: 2 ranks,
        8 steps, 2 cores, load 11, 2026-11-21].  glibc only.
    poison: released blocks, and the workspace before every act, are overwritten with NaN, so that a read of them shows in the results.
    """

    registers: RegisterMode | None = None
    shared_memory: bool = True
    workspace: bool = True
    return_freed: bool = False
    poison: bool = False


DEFAULT_MEMORY = MemoryOptions()
