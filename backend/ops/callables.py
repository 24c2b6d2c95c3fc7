"""The one place where the fragments of a rank become callables, for every performer: op by op, in planned workspace or not, or as compiled code.

kernels      memory of values inside            performed by
compiled     inductor's                         backend.ops.inductor, but for what it leaves
eager        planned workspace                  backend.ops.workspace
             the heap                           backend.ops.fragment
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Unpack

from torch import Tensor

from backend.memory.options import DEFAULT_MEMORY, MemoryOptions, RegisterMode
from backend.ops.fragment import CompiledFragment, CompileOptions, compile_fragment
from backend.ops.inductor import Kernels, NotCompiled
from backend.ops.workspace import Workspace, WorkspaceBytes
from backend.ops.writable import NO_BLOCKS, writable_blocks
from planner.ir.plan import Fragment, Plan, Task

if TYPE_CHECKING:
    from backend.ops.inductor.fragments import InductorFragments

__all__ = ["RankFragments", "say_not_compiled"]


class _AtFirstUse(dict[str, CompiledFragment]):
    """Task -> its function, written when it is asked for."""

    def __init__(self, make: Callable[[str], CompiledFragment]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, task: str) -> CompiledFragment:
        function = self[task] = self._make(task)
        return function


class RankFragments:
    """See the module's text.

    Args:
        mode: of the rank's blocks; None: fragments write to no block (the reference performer).
        device: torch's name of the rank's; empty: the CPU.   allocate: takes bytes of it; None: those of this process.
        planned: values inside fragments lie in planned workspace (backend.ops.workspace), but for compiled code.
        lays_out: the first values that come to blocks may give them another layout; compiled code asks for row-major ones and is given them.
        at_once: all are made now, and not as they are asked for.

    Attributes:
        functions: task -> what performs its next act; it may change from act to act.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        mode: RegisterMode | None,
        memory: MemoryOptions = DEFAULT_MEMORY,
        *,
        device: str = "",
        allocate: Callable[[int], Tensor] | None = None,
        planned: bool = False,
        kernels: Kernels = Kernels.EAGER,
        lays_out: bool = False,
        at_once: bool = True,
    ) -> None:
        self._plan, self._rank, self._device = plan, rank, device
        tasks = {task.id: task for task in plan.tasks if isinstance(task.body, Fragment) and rank in plan.ranks_of(task)}
        self._writable = {name: NO_BLOCKS if mode is None else writable_blocks(plan, task, mode) for name, task in tasks.items()}
        self._inductor: InductorFragments | None = None
        if kernels is Kernels.COMPILED:
            from backend.ops.inductor.fragments import InductorFragments  # late: it takes a second to load

            self._inductor = InductorFragments(plan, rank, self._op_by_op, list(tasks.values()), self._writable, device=device)
        left = [task for name, task in tasks.items() if self._inductor is None or name not in self._inductor.functions]
        lays_out = lays_out and self._inductor is None
        self._workspace: Workspace | None = None
        self._planned = frozenset[str]()
        self.functions: dict[str, CompiledFragment] = _AtFirstUse(lambda name: self._op_by_op(plan.task[name]))
        if planned:
            self._planned = frozenset(task.id for task in left)
            self._workspace = Workspace(plan, rank, left, self._writable, memory, allocate=allocate, device=device, lays_out=lays_out)
            self.functions = self._workspace.functions
        elif at_once:
            for task in left:
                self.functions[task.id] = self._op_by_op(task)
                if lays_out and self._writable[task.id].slots:
                    # The first act computes first and copies then, so that the slots take on the layout of the values.
                    self.functions[task.id] = _once(self.functions, task.id, self._op_by_op(task, into_slots=False))
        if self._inductor is not None:
            self._inductor.join(self.functions)

    def _op_by_op(self, task: Task, **options: Unpack[CompileOptions]) -> CompiledFragment:
        options["device"] = self._device
        return compile_fragment(task, self._plan.placement[task.placement], self._rank, self._writable.get(task.id, NO_BLOCKS), **options)

    def is_final(self, task: str) -> bool:
        """Whether the task's function changes no more, once it has acted."""
        return self._workspace is None or task in self._workspace.final or task not in self._planned

    @property
    def workspace(self) -> WorkspaceBytes:
        """What the workspace takes; zeros where there is none (yet)."""
        return self._workspace.sizes or WorkspaceBytes() if self._workspace is not None else WorkspaceBytes()

    @property
    def about(self) -> dict[str, str]:
        """For the trace: of compiled code how much there is; nothing where none was asked for."""
        return self._inductor.about if self._inductor is not None else {}

    @property
    def not_compiled(self) -> dict[str, str]:
        """Task -> why it is performed op by op although it was to be compiled."""
        return dict(self._inductor.why_not) if self._inductor is not None else {}


def _once(table: dict[str, CompiledFragment], name: str, first: CompiledFragment) -> CompiledFragment:
    """``first``, which when it is called puts back the function that the table has now."""
    later = table[name]

    def act(*values: Tensor) -> tuple[Tensor, ...]:
        table[name] = later
        return first(*values)

    return act


def say_not_compiled(reasons: Mapping[str, str]) -> None:
    """Say once, for all ranks, which fragments were performed op by op.

    Args:
        reasons: task -> why.
    """
    if reasons:
        named = "; ".join(f"{task} ({why})" for task, why in reasons.items())
        warnings.warn(
            f"{len(reasons)} fragments could not be compiled and were performed op by op, to the same results: {named}; leave --kernels out to "
            "silence this",
            NotCompiled,
            stacklevel=3,
        )
