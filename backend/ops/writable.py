"""Which memory of blocks an act may write its results to."""

from __future__ import annotations

from dataclasses import dataclass

from backend.memory.options import RegisterMode
from planner.ir.plan import Plan, RegstKind, Task

__all__ = ["NO_BLOCKS", "WritableBlocks", "slot_places", "state_places", "writable_blocks"]


def slot_places(task: Task, mode: RegisterMode) -> tuple[int, ...]:
    """Places in task.writes whose results an act can write straight to their slot: all but those that are accumulated."""
    if mode is RegisterMode.DYNAMIC:
        return ()
    filling = {port.regst for port in task.produces if port.acts_per_block > 1}
    return tuple(place for place, access in enumerate(task.writes) if access.regst not in filling)


def state_places(plan: Plan, task: Task) -> tuple[int, ...]:
    """Places in task.writes that lie in state: they are read in the same act, so they are written last."""
    return tuple(place for place, access in enumerate(task.writes) if plan.regst[access.regst].kind is RegstKind.STATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class WritableBlocks:
    """Which memory of blocks a fragment may write to; without any, all it returns is new memory.

    overwritable: values among task.reads that lie in blocks which this task replaces, so that it may update them in place.
    slots: places in task.writes whose memory is given, as parameters after the values.
    state: those of them that lie in state, which the task reads while it acts.
    """

    overwritable: frozenset[str] = frozenset()
    slots: tuple[int, ...] = ()
    state: tuple[int, ...] = ()


NO_BLOCKS = WritableBlocks()


def writable_blocks(plan: Plan, task: Task, mode: RegisterMode) -> WritableBlocks:
    """What a task may do with the blocks of its Regsts; the state that it replaces is read by nobody else while it acts."""
    replaced = frozenset(
        access.name
        for access in task.reads
        if plan.regst[access.regst].producer == task.id and plan.regst[access.regst].kind is RegstKind.STATE
    )
    return WritableBlocks(overwritable=replaced, slots=slot_places(task, mode), state=state_places(plan, task))
