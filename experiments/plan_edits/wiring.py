"""Edits of what tasks read and write, of states, and of what leaves the step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from random import Random

from experiments.plan_edits.kinds import Edit, EditKind, Editor, Reason
from experiments.plan_edits.surgery import (
    blocks_per_step,
    fragments,
    local_type,
    placed,
    rewired,
    same_type_elsewhere,
    with_regsts,
    with_tasks,
    with_tensor,
    without_task,
)
from planner.ir.graph import InputKind
from planner.ir.plan import Plan, RegstKind, Task, TaskKind

__all__ = ["EDITORS"]


def _alike(plan: Plan, task: Task, which: str) -> list[tuple[Task, int, int]]:
    """Pairs of accesses of one type."""
    accesses = getattr(task, which)
    types = [local_type(plan, (access.regst, access.index)) for access in accesses]
    return [(task, i, j) for i, j in combinations(range(len(accesses)), 2) if types[i] == types[j]]


def _names_exchanged(plan: Plan, rng: Random, which: str, kind: EditKind) -> Edit | None:
    tasks = [task for task in plan.tasks if len(getattr(task, which)) > 1]
    pairs = [pair for task in tasks for pair in _alike(plan, task, which)]
    if not pairs:
        return None
    task, i, j = rng.choice(pairs)
    accesses = list(getattr(task, which))
    one, other = accesses[i], accesses[j]
    accesses[i], accesses[j] = replace(one, name=other.name), replace(other, name=one.name)
    same = (one.regst, one.index) == (other.regst, other.index)
    words = f"{task.id} {which} {one.regst}[{one.index}] as {other.name} and {other.regst}[{other.index}] as {one.name}"
    named = task.kind in (TaskKind.BOXING, TaskKind.TRANSFER, TaskKind.FETCH, TaskKind.SAVE, TaskKind.OUTPUT, TaskKind.COPY)
    reason = Reason.SAME_VALUE if same else Reason.NAME if named else None
    return Edit(kind=kind, words=words, plan=with_tasks(plan, replace(task, **{which: tuple(accesses)})), reason=reason)


def _reads_exchanged(plan: Plan, rng: Random) -> Edit | None:
    return _names_exchanged(plan, rng, "reads", EditKind.READS_EXCHANGED)


def _writes_exchanged(plan: Plan, rng: Random) -> Edit | None:
    return _names_exchanged(plan, rng, "writes", EditKind.WRITES_EXCHANGED)


def _read_redirected(plan: Plan, rng: Random) -> Edit | None:
    tasks = [task for task in plan.tasks if task.reads and task.kind is not TaskKind.FETCH]
    task = rng.choice(tasks)
    place = rng.randrange(len(task.reads))
    read = task.reads[place]
    found = same_type_elsewhere(plan, task, read)
    if not found:
        return None
    regst, index = rng.choice(found)
    new = rewired(plan, task, (*task.reads[:place], replace(read, regst=regst, index=index), *task.reads[place + 1 :]))
    if new is None:
        return None
    words = f"{task.id} reads {regst}[{index}] ({plan.regst[regst].tensors[index].name}) as {read.name}, not {read.regst}[{read.index}]"
    return Edit(kind=EditKind.READ_REDIRECTED, words=words, plan=with_tasks(plan, new))


def _loss_redirected(plan: Plan, rng: Random) -> Edit | None:
    fetch = next((task for task in plan.tasks if task.kind is TaskKind.FETCH), None)
    if fetch is None or not fetch.reads:
        return None
    found = same_type_elsewhere(plan, fetch, fetch.reads[0])
    if not found:
        return None
    regst, index = rng.choice(found)
    loss = replace(plan.loss, regst=regst, index=index)
    reads = [loss if (a.regst, a.index) == (plan.loss.regst, plan.loss.index) else a for a in fetch.reads]
    new = rewired(plan, fetch, reads)
    if new is None:
        return None
    name = plan.regst[regst].tensors[index].name
    edited = replace(with_tasks(plan, new), loss=loss)
    return Edit(kind=EditKind.LOSS_REDIRECTED, words=f"the loss is {name} in {regst}[{index}]", plan=edited)


def _gradients_exchanged(plan: Plan, rng: Random) -> Edit | None:
    shapes = {name: placed(plan, access).shape for name, access in plan.gradients.items()}
    pairs = [(a, b) for a, b in combinations(shapes, 2) if shapes[a] == shapes[b] and plan.gradients[a] != plan.gradients[b]]
    if not pairs:
        return None
    one, other = rng.choice(pairs)
    gradients = {**plan.gradients, one: plan.gradients[other], other: plan.gradients[one]}
    words = f"the gradients of {one} and {other} are exchanged"
    return Edit(kind=EditKind.GRADIENTS_EXCHANGED, words=words, plan=replace(plan, gradients=gradients))


def _gradient_redirected(plan: Plan, rng: Random) -> Edit | None:
    if not plan.gradients:
        return None
    name = rng.choice(sorted(plan.gradients))
    access = plan.gradients[name]
    shape = placed(plan, access).shape
    found = [
        (regst.id, index)
        for regst in plan.regsts
        for index, tensor in enumerate(regst.tensors)
        if tensor.shape == shape and (regst.id, index) != (access.regst, access.index)
    ]
    if not found:
        return None
    regst, index = rng.choice(found)
    gradients = {**plan.gradients, name: replace(access, regst=regst, index=index)}
    words = f"the gradient of {name} is {plan.regst[regst].tensors[index].name} in {regst}[{index}]"
    return Edit(kind=EditKind.GRADIENT_REDIRECTED, words=words, plan=replace(plan, gradients=gradients))


def _outputs_exchanged(plan: Plan, rng: Random) -> Edit | None:
    if len(plan.outputs) < 2:
        return None
    i, j = rng.sample(range(len(plan.outputs)), 2)
    outputs = list(plan.outputs)
    outputs[i], outputs[j] = replace(outputs[i], name=outputs[j].name), replace(outputs[j], name=outputs[i].name)
    words = f"outputs {outputs[j].name} and {outputs[i].name} are exchanged"
    return Edit(kind=EditKind.OUTPUTS_EXCHANGED, words=words, plan=replace(plan, outputs=tuple(outputs)))


def _output_dim(plan: Plan, rng: Random) -> Edit | None:
    if not plan.outputs:
        return None
    number = rng.randrange(len(plan.outputs))
    output = plan.outputs[number]
    ndim = len(plan.regst[output.regst].tensors[output.index].shape)
    dims = [dim for dim in (None, *range(ndim)) if dim != output.batch_dim]
    new = replace(output, batch_dim=rng.choice(dims)) if dims else output
    outputs = (*plan.outputs[:number], new, *plan.outputs[number + 1 :])
    words = f"output {output.name} is put together along dim {new.batch_dim}, not {output.batch_dim}"
    reason = Reason.ORDER if plan.micro_batches == 1 else None
    return Edit(kind=EditKind.OUTPUT_DIM, words=words, plan=replace(plan, outputs=outputs), reason=reason)


def _nothing_new(plan: Plan, rng: Random) -> Edit | None:
    """A write of state takes the name under which the state was read."""
    choices = []
    for task, _ in fragments(plan):
        names = {(access.regst, access.index): access.name for access in task.reads}
        choices += [(task, n, names[a.regst, a.index]) for n, a in enumerate(task.writes) if (a.regst, a.index) in names]
    if not choices:
        return None
    task, number, name = rng.choice(choices)
    write = task.writes[number]
    writes = (*task.writes[:number], replace(write, name=name), *task.writes[number + 1 :])
    words = f"{task.id} writes {name} back to {write.regst}[{write.index}], not {write.name}"
    return Edit(kind=EditKind.UPDATE_WRITES_NOTHING_NEW, words=words, plan=with_tasks(plan, replace(task, writes=writes)))


def _update_removed(plan: Plan, rng: Random) -> Edit | None:
    consumed = {port.regst for task in plan.tasks for port in task.consumes}

    def goes(task: Task) -> bool:
        kinds = {plan.regst[port.regst].kind for port in task.produces}
        read = [p for p in task.produces if plan.regst[p.regst].kind is RegstKind.DATA and p.regst in consumed]
        return RegstKind.STATE in kinds and not read

    tasks = [task for task in plan.tasks if goes(task)]
    if not tasks:
        return None
    task = rng.choice(tasks)
    return Edit(kind=EditKind.UPDATE_REMOVED, words=f"{task.id} is removed", plan=without_task(plan, task))


def _states_alike(plan: Plan) -> list[tuple[int, int]]:
    def of(number: int) -> tuple[object, ...]:
        entry = plan.states[number]
        tensor = plan.regst[entry.regst].tensors[entry.index]
        return entry.kind, entry.copy_of is None, tensor.shape, tensor.dtype

    return [(i, j) for i, j in combinations(range(len(plan.states)), 2) if of(i) == of(j) and plan.states[i].name != plan.states[j].name]


def _states_exchanged(plan: Plan, rng: Random) -> Edit | None:
    if not (pairs := _states_alike(plan)):
        return None
    i, j = rng.choice(pairs)
    states = list(plan.states)
    states[i], states[j] = replace(states[i], name=states[j].name), replace(states[j], name=states[i].name)
    words = f"states {plan.states[i].name} and {plan.states[j].name} exchange their places"
    return Edit(kind=EditKind.STATES_EXCHANGED, words=words, plan=replace(plan, states=tuple(states)))


def _state_doubled(plan: Plan, rng: Random) -> Edit | None:
    if not (pairs := _states_alike(plan)):
        return None
    i, j = rng.choice(pairs)
    states = list(plan.states)
    states[i] = replace(states[i], name=states[j].name)
    words = f"the state in {states[i].regst}[{states[i].index}] is said to be {states[j].name}, not {plan.states[i].name}"
    return Edit(kind=EditKind.STATE_DOUBLED, words=words, plan=replace(plan, states=tuple(states)))


def _state_kind(plan: Plan, rng: Random) -> Edit | None:
    number = rng.randrange(len(plan.states))
    old = plan.states[number]
    kind = rng.choice([kind for kind in InputKind if kind.is_state and kind is not old.kind])
    states = (*plan.states[:number], replace(old, kind=kind), *plan.states[number + 1 :])
    words = f"state {old.name} is said to be a {kind.value}, not a {old.kind.value}"
    return Edit(kind=EditKind.STATE_KIND, words=words, plan=replace(plan, states=states))


def _state_copy(plan: Plan, rng: Random) -> Edit | None:
    copies = [n for n, entry in enumerate(plan.states) if entry.copy_of is not None]
    if not copies:
        return None
    number = rng.choice(copies)
    old = plan.states[number]
    shape = plan.regst[old.regst].tensors[old.index].shape
    others = sorted(
        {e.name for e in plan.states if e.kind is InputKind.PARAMETER and plan.regst[e.regst].tensors[e.index].shape == shape}
        - {old.copy_of}
    )
    if not others:
        return None
    states = (*plan.states[:number], replace(old, copy_of=rng.choice(others)), *plan.states[number + 1 :])
    words = f"working copy {old.name} is said to be of {states[number].copy_of}, not of {old.copy_of}"
    return Edit(kind=EditKind.STATE_COPY, words=words, plan=replace(plan, states=states))


def _state_in_place(plan: Plan, rng: Random) -> Edit | None:
    """A Regst of data with one block per step becomes state that begins as a parameter of its shape: its readers see the step before."""
    choices = []
    for regst in plan.regsts:
        if regst.kind is not RegstKind.DATA or blocks_per_step(plan, regst.id) != 1 or not regst.tensors:
            continue
        twins = []
        for tensor in regst.tensors:
            alike = [
                entry
                for entry in plan.states
                if (plan.regst[entry.regst].tensors[entry.index].shape, plan.regst[entry.regst].tensors[entry.index].dtype)
                == (tensor.shape, tensor.dtype)
            ]
            twins.append(alike)
        if all(twins):
            choices.append((regst, twins))
    if not choices:
        return None
    regst, twins = rng.choice(choices)
    entries = [replace(rng.choice(alike), regst=regst.id, index=index) for index, alike in enumerate(twins)]
    edited = with_regsts(plan, replace(regst, kind=RegstKind.STATE, quota=1))
    edited = replace(edited, states=(*plan.states, *entries))
    words = f"{regst.id} ({', '.join(t.name for t in regst.tensors[:3])}) becomes state, which begins as {entries[0].name}"
    return Edit(kind=EditKind.STATE_IN_PLACE, words=words, plan=edited)


def _source_layout(plan: Plan, rng: Random) -> Edit | None:
    """Two tensors of a source exchange their places and descriptions, while readers stay where they were."""
    pairs = [pair for task in plan.tasks if task.kind in (TaskKind.SOURCE, TaskKind.STEP_INPUT) for pair in _alike(plan, task, "writes")]
    if not pairs:
        return None
    task, i, j = rng.choice(pairs)
    one, other = task.writes[i], task.writes[j]
    writes = list(task.writes)
    writes[i], writes[j] = replace(one, name=other.name), replace(other, name=one.name)
    first, second = placed(plan, one), placed(plan, other)
    edited = with_tensor(plan, (one.regst, one.index), second)
    edited = with_tensor(edited, (other.regst, other.index), first)
    edited = with_tasks(edited, replace(task, writes=tuple(writes)))
    words = f"{task.id}: {first.name} and {second.name} exchange their places"
    return Edit(kind=EditKind.SOURCE_LAYOUT, words=words, plan=edited)


_KINDS = (
    (TaskKind.FORWARD, TaskKind.BACKWARD, TaskKind.WEIGHT, TaskKind.UPDATE),
    (TaskKind.SOURCE, TaskKind.STEP_INPUT, TaskKind.PREPARE, TaskKind.COPY),
    (TaskKind.FETCH, TaskKind.SAVE, TaskKind.OUTPUT),
)


def _task_kind(plan: Plan, rng: Random) -> Edit | None:
    choices = [(task, group) for task in plan.tasks for group in _KINDS if task.kind in group]
    task, group = rng.choice(choices)
    kind = rng.choice([kind for kind in group if kind is not task.kind])
    reason = Reason.NAME if kind.is_compute else None
    words = f"{task.id} is said to be {kind.value}, not {task.kind.value}"
    return Edit(kind=EditKind.TASK_KIND, words=words, plan=with_tasks(plan, replace(task, kind=kind)), reason=reason)


EDITORS: Mapping[EditKind, Editor] = {
    EditKind.READS_EXCHANGED: _reads_exchanged,
    EditKind.WRITES_EXCHANGED: _writes_exchanged,
    EditKind.READ_REDIRECTED: _read_redirected,
    EditKind.LOSS_REDIRECTED: _loss_redirected,
    EditKind.GRADIENTS_EXCHANGED: _gradients_exchanged,
    EditKind.GRADIENT_REDIRECTED: _gradient_redirected,
    EditKind.OUTPUTS_EXCHANGED: _outputs_exchanged,
    EditKind.OUTPUT_DIM: _output_dim,
    EditKind.UPDATE_WRITES_NOTHING_NEW: _nothing_new,
    EditKind.UPDATE_REMOVED: _update_removed,
    EditKind.STATES_EXCHANGED: _states_exchanged,
    EditKind.STATE_DOUBLED: _state_doubled,
    EditKind.STATE_KIND: _state_kind,
    EditKind.STATE_COPY: _state_copy,
    EditKind.STATE_IN_PLACE: _state_in_place,
    EditKind.SOURCE_LAYOUT: _source_layout,
    EditKind.TASK_KIND: _task_kind,
}
