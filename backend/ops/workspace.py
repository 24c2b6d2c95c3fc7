"""Values that stay inside fragments, in memory that is allocated once per stream: acts of one stream never overlap, so they share it.

    first act of a fragment    on the heap, which gives back what is freed; shapes, dtypes and strides of values are noted
    all had their first act    homes are packed, one piece of memory per stream, no larger than the Plan's workspace; the heap keeps again
    from then on               kernels write into homes: v1 = mm(v0, w, out=h1)

A value has a home if its kernel can write into memory that is there, it lives inside the fragment alone (or is added to a block as soon as the
fragment ends), and it fits; otherwise it lies on the heap as before.  How long a home is needed is said in backend.ops.lifetimes, where it lies in
backend.memory.packing.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Unpack

import torch
from torch import Tensor

from backend.memory.arena import own_memory
from backend.memory.heap import keep_heap
from backend.memory.options import DEFAULT_MEMORY, MemoryOptions, RegisterMode
from backend.memory.packing import Span, pack
from backend.ops.fragment import CompiledFragment, Form, Grant, compile_fragment, fragment_ops, slotted
from backend.ops.lifetimes import ESCAPES, last_needs
from backend.ops.outs import RESHAPES, home_form
from planner.ir.graph import Op
from planner.ir.plan import Fragment, Plan, Task

__all__ = ["Homes", "Seen", "Settled", "Workspace", "homes_of", "spans_of", "stream_workspaces", "uses_workspace"]

Strides = tuple[int, ...]


def _row_major(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements lie one behind the other in this order of dims."""
    expected = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """How a value lay on the heap.  copied: a reshape whose result is memory of its own."""

    shape: tuple[int, ...]
    strides: Strides
    dtype: torch.dtype
    copied: bool

    @property
    def size_bytes(self) -> int:
        count = self.dtype.itemsize
        for extent in self.shape:
            count *= extent
        return count

    @property
    def row_major(self) -> bool:
        return _row_major(self.shape, self.strides)

    @property
    def dense(self) -> bool:
        """Whether its strides visit every element of one piece of memory once."""
        dims = sorted(range(len(self.shape)), key=lambda dim: (-self.strides[dim], -self.shape[dim]))
        return _row_major([self.shape[dim] for dim in dims], [self.strides[dim] for dim in dims])

    def at(self, memory: Tensor, offset: int) -> Tensor:
        """The value's place in ``memory`` (uint8)."""
        return memory[offset : offset + self.size_bytes].view(self.dtype).as_strided(self.shape, self.strides)


@dataclass(slots=True)
class _Watcher:
    """Notes what a fragment computes."""

    seen: dict[str, Seen] = field(default_factory=dict)

    def __call__(self, name: str, value: Tensor, source: Tensor | None) -> None:
        copied = source is None or value.data_ptr() != source.data_ptr()
        self.seen[name] = Seen(shape=tuple(value.shape), strides=value.stride(), dtype=value.dtype, copied=copied)


def uses_workspace(memory: MemoryOptions, mode: RegisterMode) -> bool:
    """Whether values inside fragments lie in planned memory; on the heap where blocks come and go, or when the options say so."""
    return memory.workspace and mode is RegisterMode.STATIC


def stream_workspaces(plan: Plan, rank: int) -> dict[str, int]:
    """Stream -> the largest workspace of its fragments on ``rank``, in bytes, as verify.device_bytes counts it."""
    largest: dict[str, int] = {}
    for task in plan.tasks:
        if isinstance(task.body, Fragment) and rank in plan.ranks_of(task):
            largest[task.stream] = max(largest.get(task.stream, 0), task.body.workspace_bytes)
    return largest


def spans_of(
    ops: Sequence[Op], seen: Mapping[str, Seen], copied: frozenset[str], ending: frozenset[str], escaping: frozenset[str]
) -> dict[str, Span]:
    """The values that may have homes, and while which ops these are needed.

    Args:
        copied, ending, escaping: see lifetimes.last_needs.
    """
    needs = last_needs(ops, copied, ending, escaping)
    found: dict[str, Span] = {}
    for place, op in enumerate(ops):
        value = op.outputs[0] if len(op.outputs) == 1 else None
        how = seen.get(value) if value is not None else None
        if value is None or how is None or value in copied or needs[value] == ESCAPES or not how.size_bytes:
            continue
        fits = how.copied and how.row_major if op.target in RESHAPES else home_form(op.target) is not None
        if fits and how.dense:
            found[value] = Span(size_bytes=how.size_bytes, first=place, last=needs[value])
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Homes:
    """Of one fragment.  offsets: value -> where its home begins.   heap_bytes: of values that could have a home and found no room."""

    offsets: Mapping[str, int]
    seen: Mapping[str, Seen]
    end_bytes: int
    heap_bytes: int

    def places(self, memory: Tensor) -> dict[str, Tensor]:
        return {value: self.seen[value].at(memory, offset) for value, offset in self.offsets.items()}


def homes_of(spans: Mapping[str, Span], seen: Mapping[str, Seen], limit_bytes: int) -> Homes:
    """Pack the values with these spans below ``limit_bytes``."""
    offsets = {value: offset for value, offset in zip(spans, pack(list(spans.values()), limit_bytes), strict=True) if offset is not None}
    return Homes(
        offsets=offsets,
        seen=seen,
        end_bytes=max((offset + spans[value].size_bytes for value, offset in offsets.items()), default=0),
        heap_bytes=sum(span.size_bytes for value, span in spans.items() if value not in offsets),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What a rank's workspace came to, in bytes.

    allocated: of all streams.   planned: the Plan's number for them.   heap: the most that one fragment could not place for want of room.
    """

    allocated_bytes: int = 0
    planned_bytes: int = 0
    heap_bytes: int = 0


class Workspace:
    """The fragments of one rank, each as what performs its next act: ``now[task](values, slots)``.

    Args:
        tasks: of the rank, those with fragments.   grants: task -> what its fragment may write to.
        memory: its ``poison`` overwrites what homes hold before every act; with ``return_freed`` the heap stays tight.
    """

    def __init__(
        self, plan: Plan, rank: int, tasks: Sequence[Task], grants: Mapping[str, Grant], memory: MemoryOptions = DEFAULT_MEMORY
    ) -> None:
        self.now: dict[str, CompiledFragment] = {}
        self.settled: Settled | None = None
        self._limits = stream_workspaces(plan, rank)
        self._plan, self._rank, self._grants, self._options = plan, rank, grants, memory
        self._lock = threading.Lock()
        self._tasks = {task.id: task for task in tasks}
        self._laid: dict[str, tuple[Strides, ...]] = {}
        self._homes: dict[str, Homes] = {}
        self._memory: dict[str, Tensor] = {}
        for task in tasks:
            watcher = _Watcher()
            first = self._compile(task, straight=False, watch=watcher)
            self.now[task.id] = partial(self._learn, task, first, watcher, 1)
        if not tasks:
            self._settle()

    def _compile(self, task: Task, **form: Unpack[Form]) -> CompiledFragment:
        return compile_fragment(task, self._plan.placement[task.placement], self._rank, self._grants[task.id], **form)

    def _learn(self, task: Task, function: CompiledFragment, watcher: _Watcher, times: int, *values: Tensor) -> tuple[Tensor, ...]:
        """An act on the heap that notes what it computes."""
        strides = tuple(value.stride() for value in values[: len(task.reads)])
        results = function(*values)
        grant = self._grants[task.id]
        ops = fragment_ops(task, grant)
        copied = slotted(task, ops, grant)
        given = frozenset(task.writes[place].name for place in grant.slots)
        # What has no slot is added up in the same act (bindings.slot_places), before the stream's next act uses this memory again.
        added = frozenset(access.name for place, access in enumerate(task.writes) if place not in grant.slots)
        spans = spans_of(ops, watcher.seen, copied, (given | added) - copied, frozenset())
        with self._lock:
            self._laid[task.id] = strides
            self._homes[task.id] = homes_of(spans, watcher.seen, self._limit(task))
            self.now[task.id] = partial(self._wait, task, None, times)
            if self.settled is None and len(self._homes) == len(self._tasks):
                self._settle()
        return results

    def _limit(self, task: Task) -> int:
        memory = self._memory.get(task.stream)
        return self._limits[task.stream] if memory is None else memory.nbytes

    def _settle(self) -> None:
        """All fragments have acted: allocate, and let the heap be quick again.  Under the lock."""
        ends: dict[str, int] = dict.fromkeys(self._limits, 0)
        for name, homes in self._homes.items():
            stream = self._tasks[name].stream
            ends[stream] = max(ends[stream], homes.end_bytes)
        self._memory = {stream: own_memory(end) for stream, end in ends.items()}
        self.settled = Settled(
            allocated_bytes=sum(ends.values()),
            planned_bytes=sum(self._limits.values()),
            heap_bytes=max((homes.heap_bytes for homes in self._homes.values()), default=0),
        )
        if not self._options.return_freed:
            keep_heap()

    def _wait(self, task: Task, plain: CompiledFragment | None, times: int, *values: Tensor) -> tuple[Tensor, ...]:
        """On the heap until all have learned.  State may be laid out anew by its first update: what was noted before counts no more."""
        if self.settled is None:
            plain = plain or self._compile(task, straight=True)
            self.now[task.id] = partial(self._wait, task, plain, times)
            return plain(*values)
        if tuple(value.stride() for value in values[: len(task.reads)]) == self._laid[task.id]:
            final = self._final(task)
            self.now[task.id] = final
            return final(*values)
        if times > 1:
            plain = self.now[task.id] = plain or self._compile(task, straight=True)
            return plain(*values)
        watcher = _Watcher()
        return self._learn(task, self._compile(task, straight=True, watch=watcher), watcher, times + 1, *values)

    def _final(self, task: Task) -> CompiledFragment:
        memory = self._memory[task.stream]
        function = self._compile(task, straight=True, homes=self._homes[task.id].places(memory))
        if not self._options.poison:
            return function

        def poisoned(*values: Tensor) -> tuple[Tensor, ...]:
            memory.fill_(255)  # NaN as a float, -1 as a whole number
            return function(*values)

        return poisoned
