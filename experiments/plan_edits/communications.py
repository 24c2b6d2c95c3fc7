"""Edits of boxing steps and transfers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random

from experiments.plan_edits.kinds import Edit, EditKind, Editor, Reason
from experiments.plan_edits.surgery import (
    local_type,
    placed,
    redirected,
    rewired,
    same_type_elsewhere,
    with_tasks,
    with_tensor,
    without_task,
)
from planner.ir.collective import Collective
from planner.ir.plan import Boxing, Plan, RegstKind, Task, TaskKind
from planner.ir.sbp import Partial, ReduceOp, Split

__all__ = ["EDITORS"]


def _boxings(plan: Plan) -> list[tuple[Task, Boxing]]:
    return [(task, task.body) for task in plan.tasks if isinstance(task.body, Boxing)]


def _one_rank(plan: Plan, task: Task, axis: int) -> Reason | None:
    return Reason.ONE_RANK if plan.placement[task.placement].mesh[axis] == 1 else None


def _without(plan: Plan, rng: Random, *, relabelled: bool) -> tuple[Task, Boxing, Plan] | None:
    boxings = [
        (task, body)
        for task, body in _boxings(plan)
        if all(plan.regst[port.regst].kind is RegstKind.DATA for port in task.produces)
        and (not relabelled or all(local_type(plan, (r.regst, r.index)) == local_type(plan, (w.regst, w.index)) for r, w in _pairs(task)))
    ]
    if not boxings:
        return None
    task, body = rng.choice(boxings)
    pairs = _pairs(task)
    edited = redirected(plan, {(write.regst, write.index): (read.regst, read.index) for read, write in pairs})
    if edited is None:
        return None
    if relabelled:
        for read, write in pairs:
            source = placed(plan, read)
            edited = with_tensor(edited, (read.regst, read.index), replace(source, sbp=placed(plan, write).sbp))
    return task, body, without_task(edited, task)


def _pairs(task: Task) -> list[tuple]:
    return list(zip(task.reads, task.writes, strict=True))


def _removed(plan: Plan, rng: Random) -> Edit | None:
    if (made := _without(plan, rng, relabelled=False)) is None:
        return None
    task, body, edited = made
    words = f"{task.id} ({body.src} -> {body.dst}) is removed, its readers take {', '.join(a.name for a in task.reads[:3])}"
    return Edit(kind=EditKind.COMMUNICATION_REMOVED, words=words, plan=edited, reason=_one_rank(plan, task, body.axis))


def _removed_relabelled(plan: Plan, rng: Random) -> Edit | None:
    if (made := _without(plan, rng, relabelled=True)) is None:
        return None
    task, body, edited = made
    words = f"{task.id} is removed, and its source is said to be {body.dst}, not {body.src}"
    return Edit(kind=EditKind.COMMUNICATION_REMOVED_RELABELLED, words=words, plan=edited, reason=_one_rank(plan, task, body.axis))


def _without_effect(plan: Plan, rng: Random) -> Edit | None:
    boxings = [(task, body) for task, body in _boxings(plan) if body.src != body.dst]
    if not boxings:
        return None
    task, body = rng.choice(boxings)
    same = rng.choice((body.src, body.dst))
    edited = with_tasks(plan, replace(task, body=replace(body, src=same, dst=same, collective=Collective.LOCAL)))
    words = f"{task.id} goes from {same} to {same}, not from {body.src} to {body.dst}"
    return Edit(kind=EditKind.COMMUNICATION_WITHOUT_EFFECT, words=words, plan=edited, reason=_one_rank(plan, task, body.axis))


def _reduction(plan: Plan, rng: Random) -> Edit | None:
    boxings = [(task, body) for task, body in _boxings(plan) if isinstance(body.src[body.axis], Partial)]
    if not boxings:
        return None
    task, body = rng.choice(boxings)
    old = body.src[body.axis]
    assert isinstance(old, Partial)
    new = Partial(rng.choice([op for op in ReduceOp if op is not old.op]))
    edited = with_tasks(plan, replace(task, body=replace(body, src=body.src.replace(body.axis, new))))
    words = f"{task.id} reduces by {new.op.value}, not by {old.op.value}"
    if rng.random() < 0.5:
        words += ", and its source is said to be such a partial value"
        for access in task.reads:
            source = placed(plan, access)
            edited = with_tensor(edited, (access.regst, access.index), replace(source, sbp=source.sbp.replace(body.axis, new)))
    return Edit(kind=EditKind.BOXING_REDUCTION, words=words, plan=edited, reason=_one_rank(plan, task, body.axis))


def _dim(plan: Plan, rng: Random) -> Edit | None:
    boxings = [(task, body) for task, body in _boxings(plan) if any(isinstance(s[body.axis], Split) for s in (body.src, body.dst))]
    if not boxings:
        return None
    task, body = rng.choice(boxings)
    side = rng.choice([name for name in ("src", "dst") if isinstance(getattr(body, name)[body.axis], Split)])
    layout = getattr(body, side)
    ndim = min(len(placed(plan, access).shape) for access in task.reads)
    dims = [dim for dim in range(ndim) if Split(dim) != layout[body.axis] and Split(dim) != body.dst[body.axis]]
    if not dims:
        return None
    new = layout.replace(body.axis, Split(rng.choice(dims)))
    step = replace(body, **{side: new})
    edited = with_tasks(plan, replace(task, body=step))
    if rng.random() < 0.5:
        for access in task.reads if side == "src" else task.writes:
            tensor = placed(plan, access)
            edited = with_tensor(edited, (access.regst, access.index), replace(tensor, sbp=tensor.sbp.replace(body.axis, new[body.axis])))
    words = f"{task.id} goes from {step.src} to {step.dst}, not from {body.src} to {body.dst}"
    return Edit(kind=EditKind.BOXING_DIM, words=words, plan=edited, reason=_one_rank(plan, task, body.axis))


def _axis(plan: Plan, rng: Random) -> Edit | None:
    boxings = [(task, body) for task, body in _boxings(plan) if len(body.src) > 1]
    if not boxings:
        return None
    task, body = rng.choice(boxings)
    other = rng.choice([axis for axis in range(len(body.src)) if axis != body.axis])

    def exchanged(layout):
        return layout.replace(body.axis, layout[other]).replace(other, layout[body.axis])

    if rng.random() < 0.5:
        step = replace(body, axis=other, src=exchanged(body.src), dst=exchanged(body.dst))
    else:
        step = replace(body, axis=other)
    words = f"{task.id} goes along axis {other} ({step.src} -> {step.dst}), not along axis {body.axis} ({body.src} -> {body.dst})"
    stream = task.stream
    twins = [s.id for s in plan.streams if s.placement == task.placement and s.kind is plan.stream[stream].kind and s.id != stream]
    edited = with_tasks(plan, replace(task, body=step))
    if twins and rng.random() < 0.5:
        edited = _moved(edited, task.id, rng.choice(twins))
    return Edit(kind=EditKind.BOXING_AXIS, words=words, plan=edited)


def _moved(plan: Plan, task: str, stream: str) -> Plan:
    old = plan.task[task]
    streams = tuple(
        replace(s, order=tuple(i for i in s.order if i != task) if s.id == old.stream else (*s.order, *([task] * old.acts)))
        if s.id in (old.stream, stream)
        else s
        for s in plan.streams
    )
    return replace(with_tasks(plan, replace(old, stream=stream)), streams=streams)


def _pairs_exchanged(plan: Plan, rng: Random) -> Edit | None:
    choices = []
    for task in plan.tasks:
        if task.kind in (TaskKind.BOXING, TaskKind.TRANSFER, TaskKind.COPY):
            for i, one in enumerate(task.writes):
                for j, other in enumerate(task.writes[:i]):
                    alike = local_type(plan, (one.regst, one.index)) == local_type(plan, (other.regst, other.index))
                    choices += [(task, j, i)] * (5 if alike else 1)
    if not choices:
        return None
    task, i, j = rng.choice(choices)
    writes = list(task.writes)
    writes[i], writes[j] = writes[j], writes[i]
    words = f"{task.id}: {task.reads[i].name} becomes {writes[i].name}, {task.reads[j].name} becomes {writes[j].name}"
    return Edit(kind=EditKind.PAIRS_EXCHANGED, words=words, plan=with_tasks(plan, replace(task, writes=tuple(writes))))


def _transfer_source(plan: Plan, rng: Random) -> Edit | None:
    transfers = [task for task in plan.tasks if task.kind is TaskKind.TRANSFER]
    if not transfers:
        return None
    task = rng.choice(transfers)
    place = rng.randrange(len(task.reads))
    read = task.reads[place]
    shape = placed(plan, read).shape
    found = [
        (regst, index)
        for regst, index in same_type_elsewhere(plan, task, read)
        if plan.regst[regst].tensors[index].shape == shape and not plan.regst[regst].tensors[index].sbp.has_partial
    ]
    if not found:
        return None
    regst, index = rng.choice(found)
    reads = (*task.reads[:place], replace(read, regst=regst, index=index), *task.reads[place + 1 :])
    new = rewired(plan, task, reads)
    if new is None:
        return None
    name = plan.regst[regst].tensors[index].name
    return Edit(kind=EditKind.TRANSFER_SOURCE, words=f"{task.id} sends {name} as {read.name}", plan=with_tasks(plan, new))


EDITORS: Mapping[EditKind, Editor] = {
    EditKind.COMMUNICATION_REMOVED: _removed,
    EditKind.COMMUNICATION_REMOVED_RELABELLED: _removed_relabelled,
    EditKind.COMMUNICATION_WITHOUT_EFFECT: _without_effect,
    EditKind.BOXING_REDUCTION: _reduction,
    EditKind.BOXING_DIM: _dim,
    EditKind.BOXING_AXIS: _axis,
    EditKind.PAIRS_EXCHANGED: _pairs_exchanged,
    EditKind.TRANSFER_SOURCE: _transfer_source,
}
