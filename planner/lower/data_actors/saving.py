"""Saving as an actor: per placement, one task on a stream of its own reads all state that is saved there, once per step.

    state (version k) --> forward, backward of step k --> update of step k writes version k+1
                     \\-> SAVE act k copies version k and acknowledges; the update waits only for that copy

Act k reads the state after k steps, with the same k on every rank, whatever the stages perform meanwhile.  So a checkpoint is consistent.
Where a placement has state that forward writes in each of m micro-batches (batch norm), its task acts m times per step, and act k m is the one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from planner.ir.plan import Access, Plan, Port, State, Stream, StreamKind, Task, TaskKind
from planner.ir.traces.trace import Trace

__all__ = ["saved_entries", "plain", "with_saving", "without_saving"]

_LAST = 100
"""Priority of SAVE tasks; it has no effect, because their streams have no other tasks."""


def saved_entries(plan: Plan) -> Mapping[str, State]:
    """State name -> the State entry that is saved; of a tied weight, which has several entries with one value, the first.

    Working copies are not saved: they are parameters, cast.
    """
    first_of_name: dict[str, State] = {}
    for entry in plan.states:
        if entry.copy_of is None:
            first_of_name.setdefault(entry.name, entry)
    return first_of_name


def with_saving(plan: Plan) -> Plan:
    """The same Plan with a SAVE task on every placement on which state is saved; a Plan that has SAVE tasks is returned unchanged.

    The task produces nothing, so it delays only the next update, by its own duration.
    """
    if any(task.kind is TaskKind.SAVE for task in plan.tasks):
        return plan
    reads: dict[str, list[Access]] = {}
    for entry in saved_entries(plan).values():
        reads.setdefault(plan.regst[entry.regst].placement, []).append(Access(name=entry.name, regst=entry.regst, index=entry.index))
    written = {port.regst: task.acts // port.acts_per_block for task in plan.tasks for port in task.produces}
    acts = {placement: max(written.get(access.regst, 1) for access in accesses) for placement, accesses in reads.items()}
    streams = tuple(Stream(id=f"{placement}.save", kind=StreamKind.HOST, placement=placement) for placement in reads)
    tasks = tuple(
        Task(
            id=f"{placement}.save",
            kind=TaskKind.SAVE,
            placement=placement,
            stream=f"{placement}.save",
            acts=acts[placement],
            priority=_LAST,
            consumes=tuple(
                Port(regst=regst, acts_per_block=acts[placement] // written.get(regst, 1))
                for regst in dict.fromkeys(access.regst for access in accesses)
            ),
            produces=(),
            reads=tuple(accesses),
        )
        for placement, accesses in reads.items()
    )
    return replace(plan, streams=(*plan.streams, *streams), tasks=(*plan.tasks, *tasks))


def plain(plan: Plan) -> Plan:
    """The Plan without SAVE tasks and their streams: the inverse of ``with_saving``."""
    saving = {task.id for task in plan.tasks if task.kind is TaskKind.SAVE}
    streams = {task.stream for task in plan.tasks if task.id in saving}
    if not saving:
        return plan
    return replace(
        plan,
        streams=tuple(stream for stream in plan.streams if stream.id not in streams),
        tasks=tuple(task for task in plan.tasks if task.id not in saving),
    )


def without_saving(plan: Plan, trace: Trace) -> Trace:
    """A trace of ``with_saving(plan)`` as a trace of ``plan``, without the acts of SAVE tasks.  A trace of ``plan`` is returned unchanged.

    To remove a reader only weakens the laws of a trace, so the result obeys those of ``plan``.
    """
    if trace.plan_id == plan.plan_id:
        return trace
    return replace(trace, plan_id=plan.plan_id, acts=tuple(act for act in trace.acts if act.task in plan.task))
