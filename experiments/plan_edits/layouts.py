"""Edits of layouts and types, of rates, and of when acts happen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random

from experiments.plan_edits.kinds import Edit, EditKind, Editor, Reason
from experiments.plan_edits.surgery import fragments, with_regsts, with_tasks, with_tensor
from planner.ir.plan import Plan, Regst, RegstKind, Task
from planner.ir.sbp import B, P, Partial, ReduceOp, Sbp, Split
from planner.ir.tensor import DType

__all__ = ["EDITORS"]


def _layout(plan: Plan, rng: Random, regst_kind: RegstKind, kind: EditKind) -> Edit | None:
    choices = [(r, i) for r in plan.regsts if r.kind is regst_kind for i in range(len(r.tensors))]
    if not choices:
        return None
    regst, index = rng.choice(choices)
    tensor = regst.tensors[index]
    mesh = plan.placement[regst.placement].mesh
    axis = rng.randrange(len(mesh))
    old = tensor.sbp[axis]
    entries: list[Sbp] = [B, P, Partial(ReduceOp.MAX), *(Split(dim) for dim in range(len(tensor.shape)))]
    fitting = [entry for entry in entries if entry != old and _fits(tensor.shape, mesh, tensor.sbp.replace(axis, entry))]
    if not fitting:
        return None
    new = tensor.sbp.replace(axis, rng.choice(fitting))
    words = f"{regst.id}[{index}] ({tensor.name}) is said to lie as {new}, not {tensor.sbp}"
    edited = with_tensor(plan, (regst.id, index), replace(tensor, sbp=new))
    reason = Reason.ONE_RANK if mesh[axis] == 1 else None
    return Edit(kind=kind, words=words, plan=edited, reason=reason)


def _fits(shape: tuple[int, ...], mesh: tuple[int, ...], sbp: object) -> bool:
    return sbp.splits_evenly(shape, mesh)  # type: ignore[attr-defined, no-any-return]


def _data_layout(plan: Plan, rng: Random) -> Edit | None:
    return _layout(plan, rng, RegstKind.DATA, EditKind.DATA_LAYOUT)


def _state_layout(plan: Plan, rng: Random) -> Edit | None:
    return _layout(plan, rng, RegstKind.STATE, EditKind.STATE_LAYOUT)


def _data_type(plan: Plan, rng: Random) -> Edit | None:
    choices = [(r, i) for r in plan.regsts for i in range(len(r.tensors))]
    regst, index = rng.choice(choices)
    tensor = regst.tensors[index]
    if tensor.shape and rng.random() < 0.5:
        dim = rng.randrange(len(tensor.shape))
        extent = rng.choice((tensor.shape[dim] * 2, tensor.shape[dim] + 1))
        new = replace(tensor, shape=(*tensor.shape[:dim], extent, *tensor.shape[dim + 1 :]))
    else:
        new = replace(tensor, dtype=rng.choice([d for d in (DType.FLOAT32, DType.BFLOAT16, DType.INT64) if d is not tensor.dtype]))
    words = f"{regst.id}[{index}] ({tensor.name}) is said to be {new.dtype.value}{list(new.shape)}, not {tensor.dtype.value}{list(tensor.shape)}"
    return Edit(kind=EditKind.DATA_TYPE, words=words, plan=with_tensor(plan, (regst.id, index), new), reason=Reason.DECLARED)


def _ranks(plan: Plan, rng: Random) -> Edit | None:
    placements = [p for p in plan.placements if len(p.ranks) > 1]
    if not placements:
        return None
    placement = rng.choice(placements)
    ranks = list(placement.ranks)
    rng.shuffle(ranks)
    new = replace(placement, ranks=tuple(ranks))
    edited = replace(plan, placements=tuple(new if p.id == new.id else p for p in plan.placements))
    return Edit(kind=EditKind.RANKS_PERMUTED, words=f"{placement.id} has ranks {ranks}", plan=edited, reason=Reason.RANKS)


def _accumulation(plan: Plan, rng: Random) -> Edit | None:
    """A port that is filled by m acts is filled by fewer, and its readers keep each block for fewer acts, act more often, or once as before."""
    choices = [(task, n) for task in plan.tasks for n, port in enumerate(task.produces) if port.acts_per_block > 1]
    if not choices:
        return None
    task, number = rng.choice(choices)
    port = task.produces[number]
    counts = [count for count in range(1, port.acts_per_block) if port.acts_per_block % count == 0]
    count = rng.choice(counts)
    produces = (*task.produces[:number], replace(port, acts_per_block=count), *task.produces[number + 1 :])
    edited = with_tasks(plan, replace(task, produces=produces))
    words = f"{task.id} fills a block of {port.regst} with {count} acts, not {port.acts_per_block}"
    if rng.random() < 0.7:
        edited = _more_often(edited, port.regst, port.acts_per_block // count)
        words += f"; what follows acts {port.acts_per_block // count} times as often"
    return Edit(kind=EditKind.ACCUMULATION_COUNT, words=words, plan=edited)


def _more_often(plan: Plan, regst: str, times: int) -> Plan:
    """All tasks behind a Regst that act once per step act so many times."""
    waiting, reached = [regst], set()
    while waiting:
        here = waiting.pop()
        for task, _ in plan.consumers[here]:
            if task.acts == 1 and task.id not in reached:
                reached.add(task.id)
                waiting += [port.regst for port in task.produces if plan.regst[port.regst].kind is RegstKind.DATA]
    made_by = {port.regst for task in plan.tasks if task.id in reached for port in task.produces}

    def again(task: Task) -> Task:
        if task.id in reached:
            return replace(task, acts=times)
        consumes = tuple(
            replace(p, acts_per_block=p.acts_per_block // times) if p.regst in made_by and p.acts_per_block % times == 0 else p
            for p in task.consumes
        )
        return replace(task, consumes=consumes)

    streams = tuple(replace(s, order=tuple(i for i in s.order for _ in range(times if i in reached else 1))) for s in plan.streams)
    return replace(plan, tasks=tuple(again(task) for task in plan.tasks), streams=streams)


def _micro_batches(plan: Plan, rng: Random) -> Edit | None:
    """All that acts per micro-batch acts another number of times; ports, orders and the batch follow."""
    m = plan.micro_batches
    new = rng.choice([n for n in (m // 2, 2 * m) if n >= 1 and n != m])
    if any(task.acts not in (1, m) for task in plan.tasks) or m == 1:
        return None

    def port(p):
        return replace(p, acts_per_block=new) if p.acts_per_block == m else p

    tasks = tuple(
        replace(t, acts=new, consumes=tuple(map(port, t.consumes)), produces=tuple(map(port, t.produces))) if t.acts == m else t
        for t in plan.tasks
    )
    per_pass = {t.id for t in plan.tasks if t.acts == m}
    streams = tuple(replace(s, order=_repeated(s.order, per_pass, m, new)) for s in plan.streams)
    edited = replace(plan, micro_batches=new, tasks=tasks, streams=streams)
    words = f"{new} micro-batches per step, not {m}"
    if rng.random() < 0.5:
        edited = replace(edited, batch_size=plan.batch_size * new // m)
        words += f", and a batch of {edited.batch_size}, not {plan.batch_size}"
    return Edit(kind=EditKind.MICRO_BATCHES, words=words, plan=edited)


def _repeated(order: tuple[str, ...], per_pass: set[str], m: int, new: int) -> tuple[str, ...]:
    made: list[str] = []
    seen: dict[str, int] = {}
    for task in order:
        seen[task] = seen.get(task, 0) + 1
        if task not in per_pass:
            made.append(task)
        elif seen[task] <= new:
            made += [task] * (new // m if new > m else 1)
    return tuple(made)


def _batch_inputs(plan: Plan, rng: Random) -> Edit | None:
    if len(plan.batch_inputs) < 2:
        return None
    i, j = rng.sample(range(len(plan.batch_inputs)), 2)
    inputs = list(plan.batch_inputs)
    which = rng.choice(("value", "name"))
    inputs[i] = replace(inputs[i], **{which: getattr(plan.batch_inputs[j], which)})
    inputs[j] = replace(inputs[j], **{which: getattr(plan.batch_inputs[i], which)})
    words = f"batch inputs {plan.batch_inputs[i].name} and {plan.batch_inputs[j].name} exchange their {which}s"
    return Edit(kind=EditKind.BATCH_INPUTS_EXCHANGED, words=words, plan=replace(plan, batch_inputs=tuple(inputs)))


def _batch_dim(plan: Plan, rng: Random) -> Edit | None:
    if not plan.batch_inputs:
        return None
    number = rng.randrange(len(plan.batch_inputs))
    old = plan.batch_inputs[number]
    dims = [dim for dim in (None, 0, 1) if dim != old.batch_dim]
    new = replace(old, batch_dim=rng.choice(dims))
    inputs = (*plan.batch_inputs[:number], new, *plan.batch_inputs[number + 1 :])
    words = f"micro-batches slice dim {new.batch_dim} of {old.name}, not {old.batch_dim}"
    reason = Reason.ORDER if plan.micro_batches == 1 else None
    return Edit(kind=EditKind.BATCH_DIM, words=words, plan=replace(plan, batch_inputs=inputs), reason=reason)


def _stream_order(plan: Plan, rng: Random) -> Edit | None:
    streams = [s for s in plan.streams if len(set(s.order)) > 1]
    if not streams:
        return None
    stream = rng.choice(streams)
    order = list(stream.order)
    i = rng.randrange(len(order) - 1)
    j = i + 1 if rng.random() < 0.7 else rng.randrange(len(order))
    if order[i] == order[j]:
        return None
    order[i], order[j] = order[j], order[i]
    edited = replace(plan, streams=tuple(replace(s, order=tuple(order)) if s.id == stream.id else s for s in plan.streams))
    words = f"{stream.id}: act {i} ({order[j]}) and act {j} ({order[i]}) are exchanged"
    return Edit(kind=EditKind.STREAM_ORDER, words=words, plan=edited, reason=Reason.ORDER)


def _quota(plan: Plan, rng: Random) -> Edit | None:
    data = [r for r in plan.regsts if r.kind is not RegstKind.STATE]
    if not data:
        return None
    regst: Regst = rng.choice(data)
    quota = rng.choice([q for q in (1, regst.quota + 1, regst.quota * 2, 7) if q != regst.quota])
    edited = with_regsts(plan, replace(regst, quota=quota))
    return Edit(kind=EditKind.QUOTA, words=f"{regst.id} has {quota} blocks, not {regst.quota}", plan=edited, reason=Reason.ORDER)


def _priority(plan: Plan, rng: Random) -> Edit | None:
    task = rng.choice(plan.tasks)
    new = replace(task, priority=task.priority + rng.choice((-3, 3, 7)))
    words = f"{task.id} has priority {new.priority}, not {task.priority}"
    return Edit(kind=EditKind.PRIORITY, words=words, plan=with_tasks(plan, new), reason=Reason.ORDER)


def _control_removed(plan: Plan, rng: Random) -> Edit | None:
    controls = [r.id for r in plan.regsts if r.kind is RegstKind.CONTROL]
    if not controls:
        return None
    control = rng.choice(controls)
    tasks = tuple(
        replace(
            t,
            consumes=tuple(p for p in t.consumes if p.regst != control),
            produces=tuple(p for p in t.produces if p.regst != control),
        )
        for t in plan.tasks
    )
    edited = replace(plan, tasks=tasks, regsts=tuple(r for r in plan.regsts if r.id != control))
    return Edit(kind=EditKind.CONTROL_REMOVED, words=f"{control} is removed", plan=edited, reason=Reason.ORDER)


def _counted(plan: Plan, rng: Random) -> Edit | None:
    task, body = rng.choice(list(fragments(plan)))
    new = replace(body, traffic_bytes=body.traffic_bytes + 1 + rng.randrange(100), flop=body.flop + rng.randrange(100))
    words = f"{task.id} is counted as {new.flop} flop and {new.traffic_bytes} B"
    edited = with_tasks(plan, replace(task, body=new))
    return Edit(kind=EditKind.COUNTED_WORK, words=words, plan=edited, reason=Reason.COUNTED)


EDITORS: Mapping[EditKind, Editor] = {
    EditKind.DATA_LAYOUT: _data_layout,
    EditKind.STATE_LAYOUT: _state_layout,
    EditKind.DATA_TYPE: _data_type,
    EditKind.RANKS_PERMUTED: _ranks,
    EditKind.ACCUMULATION_COUNT: _accumulation,
    EditKind.MICRO_BATCHES: _micro_batches,
    EditKind.BATCH_INPUTS_EXCHANGED: _batch_inputs,
    EditKind.BATCH_DIM: _batch_dim,
    EditKind.STREAM_ORDER: _stream_order,
    EditKind.QUOTA: _quota,
    EditKind.PRIORITY: _priority,
    EditKind.CONTROL_REMOVED: _control_removed,
    EditKind.COUNTED_WORK: _counted,
}
