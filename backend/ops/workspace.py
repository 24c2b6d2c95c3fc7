"""Values that stay inside fragments, in memory that is allocated once per stream: acts of one stream never overlap, so they share it.

    first act of a fragment    values lie on the heap, which gives back what is freed; their shapes, dtypes and strides are noted
    all had their first act    places are packed, one piece of memory per stream, no larger than the Plan's workspace; from now on the heap
                               keeps what is freed
    later acts                 kernels write into these places: v1 = mm(v0, w, out=w1)

backend.ops.workspace_layout says which values have a place.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Unpack

from torch import Tensor

from backend.memory.arena import zeroed_memory
from backend.memory.heap import keep_heap
from backend.memory.options import DEFAULT_MEMORY, MemoryOptions, RegisterMode
from backend.ops.fragment import CompiledFragment, CompileOptions, compile_fragment, fragment_ops, values_in_slots
from backend.ops.workspace_layout import HeapLayout, Strides, WorkspaceLayout, lay_out_workspace, lifetimes_of
from backend.ops.writable import WritableBlocks
from planner.ir.actors.verify import stream_workspaces
from planner.ir.plan import Plan, Task

__all__ = ["Workspace", "WorkspaceBytes", "uses_workspace"]


@dataclass(slots=True)
class _LayoutNotes:
    """Notes how the values of a fragment lay on the heap."""

    heap: dict[str, HeapLayout] = field(default_factory=dict)

    def __call__(self, name: str, value: Tensor, source: Tensor | None) -> None:
        copied = source is None or value.data_ptr() != source.data_ptr()
        self.heap[name] = HeapLayout(shape=tuple(value.shape), strides=value.stride(), dtype=value.dtype, copied=copied)


def uses_workspace(memory: MemoryOptions, mode: RegisterMode) -> bool:
    """Whether values inside fragments lie in planned memory; on the heap where blocks come and go, or when the options say so."""
    return memory.workspace and mode is RegisterMode.STATIC


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceBytes:
    """What a rank's workspace takes, in bytes.

    allocated: of all streams.   planned: the Plan's number for them.   heap: the most that values of one fragment took on the heap, because
    the workspace had no room left for them.
    """

    allocated_bytes: int = 0
    planned_bytes: int = 0
    heap_bytes: int = 0


class Workspace:
    """The fragments of one rank, each as the function that performs its next act: ``functions[task](*values, *slots)``.

    Args:
        tasks: of the rank, those with fragments.   writable: task -> what its fragment may write to.
        memory: ``poison`` overwrites the workspace before every act; with ``return_freed`` the heap gives back what is freed all the time.
        allocate: takes bytes of a device; None: this process's, whose heap keeps what is freed from then on.
        device: of ``allocate``, for ops without operand; its slots stay laid out as they are, since acts are bound before they are performed.
        lays_out: elsewhere the first values may give slots their layout.

    Attributes:
        final: tasks whose functions change no more.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        tasks: Sequence[Task],
        writable: Mapping[str, WritableBlocks],
        memory: MemoryOptions = DEFAULT_MEMORY,
        *,
        allocate: Callable[[int], Tensor] | None = None,
        device: str = "",
        lays_out: bool = True,
    ) -> None:
        self.final: set[str] = set()
        self._take, self._device = allocate, device
        self.functions: dict[str, CompiledFragment] = {}
        self.sizes: WorkspaceBytes | None = None
        self._limits = stream_workspaces(plan, rank)
        self._plan, self._rank, self._writable, self._options = plan, rank, writable, memory
        self._lock = threading.Lock()
        self._tasks = {task.id: task for task in tasks}
        self._read_strides: dict[str, tuple[Strides, ...]] = {}
        self._layouts: dict[str, WorkspaceLayout] = {}
        self._memory: dict[str, Tensor] = {}
        for task in tasks:
            notes = _LayoutNotes()
            first = self._compile(task, into_slots=allocate is not None or not lays_out, observe=notes)
            self.functions[task.id] = partial(self._observed, task, first, notes, 1)
        if not tasks:
            self._allocate()

    def _compile(self, task: Task, **options: Unpack[CompileOptions]) -> CompiledFragment:
        placement = self._plan.placement[task.placement]
        options["device"] = self._device
        return compile_fragment(task, placement, self._rank, self._writable[task.id], **options)

    def _observed(self, task: Task, function: CompiledFragment, notes: _LayoutNotes, times: int, *values: Tensor) -> tuple[Tensor, ...]:
        """An act on the heap that notes what it computes."""
        strides = tuple(value.stride() for value in values[: len(task.reads)])
        results = function(*values)
        writable = self._writable[task.id]
        ops = fragment_ops(task, writable)
        copied = values_in_slots(task, ops, writable)
        given = frozenset(task.writes[place].name for place in writable.slots)
        # What has no slot is added up in the same act (bindings.slot_places), before the stream's next act uses this memory again.
        added = frozenset(access.name for place, access in enumerate(task.writes) if place not in writable.slots)
        lifetimes = lifetimes_of(ops, notes.heap, copied, (given | added) - copied, frozenset())
        with self._lock:
            self._read_strides[task.id] = strides
            self._layouts[task.id] = lay_out_workspace(lifetimes, notes.heap, self._limit(task))
            self.functions[task.id] = partial(self._on_heap, task, None, times)
            if self.sizes is None and len(self._layouts) == len(self._tasks):
                self._allocate()
        return results

    def _limit(self, task: Task) -> int:
        memory = self._memory.get(task.stream)
        return self._limits[task.stream] if memory is None else memory.nbytes

    def _allocate(self) -> None:
        """All fragments have acted once: allocate, and let the heap keep what is freed.  Under the lock."""
        ends: dict[str, int] = dict.fromkeys(self._limits, 0)
        for name, layout in self._layouts.items():
            stream = self._tasks[name].stream
            ends[stream] = max(ends[stream], layout.end_bytes)
        take = self._take or zeroed_memory
        self._memory = {stream: take(end) for stream, end in ends.items()}
        self.sizes = WorkspaceBytes(
            allocated_bytes=sum(ends.values()),
            planned_bytes=sum(self._limits.values()),
            heap_bytes=max((layout.heap_bytes for layout in self._layouts.values()), default=0),
        )
        if self._take is None and not self._options.return_freed:
            keep_heap()

    def _on_heap(self, task: Task, plain: CompiledFragment | None, times: int, *values: Tensor) -> tuple[Tensor, ...]:
        """On the heap until all fragments have acted once.  The first update of state may lay it out anew; then the act is observed once more."""
        if self.sizes is None:
            plain = plain or self._compile(task, into_slots=True)
            self.functions[task.id] = partial(self._on_heap, task, plain, times)
            return plain(*values)
        if tuple(value.stride() for value in values[: len(task.reads)]) == self._read_strides[task.id]:
            final = self._compiled_for_workspace(task)
            self.functions[task.id] = final
            return final(*values)
        if times > 1:
            plain = self.functions[task.id] = plain or self._compile(task, into_slots=True)
            self.final.add(task.id)
            return plain(*values)
        notes = _LayoutNotes()
        return self._observed(task, self._compile(task, into_slots=True, observe=notes), notes, times + 1, *values)

    def _compiled_for_workspace(self, task: Task) -> CompiledFragment:
        memory = self._memory[task.stream]
        self.final.add(task.id)
        function = self._compile(task, into_slots=True, workspace=self._layouts[task.id].places(memory))
        if not self._options.poison:
            return function

        def poisoned(*values: Tensor) -> tuple[Tensor, ...]:
            memory.fill_(255)  # NaN as a float, -1 as a whole number
            return function(*values)

        return poisoned
