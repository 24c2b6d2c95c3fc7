"""The fragments of one rank that are performed as compiled code, made before its first act, and why the others are not.

compiled     forward, backward and weight-gradient fragments of at least two ops that compute
op by op     updates, whose kernels are fused already; fragments with one op or none, where there is nothing to join; and those that cannot be
             compiled, or whose compiled code fails in its first act: these are named with the reason

A compiled fragment's operands are row-major: others are copied first.  What lives inside of it lies in memory that inductor takes and gives back,
outside the planned workspace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from backend.layout.boxing import BOXING
from backend.memory.blocks import store
from backend.ops.fragment import CompiledFragment
from backend.ops.inductor.compiling import Origin, compiled, reason_of
from backend.ops.inductor.tracing import FragmentTypes, returned_places, types_of
from backend.ops.writable import WritableBlocks
from planner.ir.graph import ACCUMULATE
from planner.ir.plan import Fragment, Plan, Task, TaskKind
from planner.opset import is_creation, is_view

__all__ = ["InductorFragments", "row_major"]

_Strides = tuple[int, ...]


class InductorFragments:
    """See the module's text.

    Args:
        tasks: of the rank, those with fragments.   writable: task -> what its fragment may write to.   device: torch's name; empty: the CPU.
        op_by_op: how a task is performed whose compiled code fails.

    Attributes:
        functions: task -> what performs it; those that are left out are performed op by op.
        why_not: task -> why it is performed op by op although it was to be compiled.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        op_by_op: Callable[[Task], CompiledFragment],
        tasks: Sequence[Task],
        writable: Mapping[str, WritableBlocks],
        *,
        device: str = "",
    ) -> None:
        self.functions: dict[str, CompiledFragment] = {}
        self.why_not: dict[str, str] = {}
        self._op_by_op = op_by_op
        self._origins: Counter[Origin] = Counter()
        self._wanted = [task for task in tasks if _is_worth_it(task)]
        for task in self._wanted:
            types = types_of(plan, task, rank, writable[task.id], device)
            made = compiled(task, plan.placement[task.placement], rank, writable[task.id], types)
            if made.function is None:
                self.why_not[task.id] = made.why_not
                continue
            self._origins[made.origin] += 1
            self.functions[task.id] = self._guarded(task, _placed(task, writable[task.id], types, made.function))

    def join(self, table: dict[str, CompiledFragment]) -> None:
        """Put the functions into this table, and keep them there."""
        table |= self.functions
        self.functions = table

    def _guarded(self, task: Task, function: CompiledFragment) -> CompiledFragment:
        """The same, but the first act falls back where compiled code fails: slots are written anew, and state is only written by what succeeds."""

        def first(*operands: Tensor) -> tuple[Tensor, ...]:
            try:
                results = function(*operands)
            except Exception as error:
                self.why_not[task.id] = f"its compiled code failed, {reason_of(error)}"
                plain = self.functions[task.id] = self._op_by_op(task)
                return plain(*operands)
            self.functions[task.id] = function
            return results

        return first

    @property
    def about(self) -> dict[str, str]:
        """For the trace."""
        done = len(self._wanted) - len(self.why_not)
        known = self._origins[Origin.PROCESS] + self._origins[Origin.DISK]
        about = {"kernels": "compiled", "compiled fragments": f"{done} of {len(self._wanted)}, {known} of them from the cache"}
        if self.why_not:
            about["fragments op by op"] = "; ".join(f"{task}: {why}" for task, why in self.why_not.items())
        return about


def _is_worth_it(task: Task) -> bool:
    """Whether two ops at least compute something."""
    if task.kind is TaskKind.UPDATE or not isinstance(task.body, Fragment):
        return False
    return sum(op.target == BOXING or not (is_view(op) or is_creation(op)) for op in task.body.ops if op.target != ACCUMULATE) > 1


def row_major(shape: Sequence[int]) -> _Strides:
    """
    >>> row_major((2, 3, 4))
    (12, 4, 1)
    """
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def _placed(task: Task, writable: WritableBlocks, types: FragmentTypes, function: Callable[..., Sequence[Tensor]]) -> CompiledFragment:
    """The compiled function in the form of a fragment's: takes values, slots and perhaps the micro-batch; returns the values of task.writes."""
    returned = returned_places(task, writable)
    given = len(task.reads)
    layouts = [row_major(t.shape) for t in (*types.reads, *types.slots)]
    # Of all slots those that the compiled function writes to; the others are state, which it reads.
    direct = [number for number, place in enumerate(writable.slots) if place not in returned]
    sources = [_Source.of(place, writable, returned) for place in range(len(task.writes))]
    numbers = [torch.tensor(n) for n in range(task.acts)] if types.micro_batch else []

    def fragment(*operands: Tensor) -> tuple[Tensor, ...]:
        slots = operands[given : given + len(writable.slots)]
        passed = [*operands[:given], *(slots[number] for number in direct)]
        operated = [value if value.stride() == layout else value.contiguous() for value, layout in zip(passed, layouts, strict=True)]
        results = function(*operated, *([numbers[operands[-1]]] if numbers else []))  # the micro-batch
        for slot, written in zip(passed[given:], operated[given:], strict=True):
            if slot is not written:
                slot.copy_(written)
        return tuple(source.value(slots, results) for source in sources)

    return fragment


class _Source:
    """Where the value of one place of task.writes is after an act.   slot, result: its number among slots and results; -1: not there."""

    def __init__(self, slot: int, result: int) -> None:
        self._slot, self._result = slot, result

    @classmethod
    def of(cls, place: int, writable: WritableBlocks, returned: Sequence[int]) -> _Source:
        slot = writable.slots.index(place) if place in writable.slots else -1
        return cls(slot, returned.index(place) if place in returned else -1)

    def value(self, slots: Sequence[Tensor], results: Sequence[Tensor]) -> Tensor:
        if self._slot < 0:
            return results[self._result]
        return slots[self._slot] if self._result < 0 else store(slots[self._slot], results[self._result])
