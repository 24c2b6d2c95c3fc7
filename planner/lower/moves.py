"""Drafts of the tasks that do not compute: sources, fetch, outputs, and the boxing and transfer tasks between fragments."""

from __future__ import annotations

from collections import defaultdict

from planner.ir.collective import Collective
from planner.ir.graph import InputKind, Role
from planner.ir.plan import Boxing, TaskKind
from planner.ir.sbp import NdSbp
from planner.lower.drafts import Draft, Drafts
from planner.lower.instances import Instance
from planner.lower.names import axis_stream, compute_stream, host_stream, link_stream, name_in_layout, placement_id
from planner.search.routes import Move, StageTransfer

__all__ = ["draft_fetch", "draft_moves", "draft_outputs", "draft_sources"]


def draft_fetch(drafts: Drafts) -> Instance:
    """Draft the task that returns the step's loss to the user; returns the instance that it reads."""
    loss = drafts.staged.graph.mean_loss
    stage = drafts.staged.stage[drafts.producers[loss].id]
    native, way = drafts.arrival(loss, stage, NdSbp.broadcast(len(drafts.mesh)))
    last = drafts.follow(native, way.moves)
    drafts.tasks["fetch"] = Draft("fetch", TaskKind.FETCH, stage, host_stream(stage), 1, {last: last.name}, {})
    return last


def draft_outputs(drafts: Drafts) -> None:
    """Draft, per stage, a task that hands over what leaves the step there, in the layout in which it is made."""
    natives = dict.fromkeys(drafts.native(output.value) for output in drafts.staged.graph.outputs)
    for stage in sorted({native.stage for native in natives}):
        task_id = f"{placement_id(stage)}.{TaskKind.OUTPUT.value}"
        reads = {native: native.name for native in natives if native.stage == stage}
        drafts.tasks[task_id] = Draft(task_id, TaskKind.OUTPUT, stage, host_stream(stage), drafts.micro_batches, reads, {})


def draft_moves(drafts: Drafts) -> None:
    """Draft one task (a bucket) for all moves with the same producer, the same steps and the same final readers."""
    readers = _final_readers(drafts)
    groups: dict[tuple[object, ...], list[Instance]] = defaultdict(list)
    for instance in drafts.instances.values():
        if instance.parent is None:
            continue
        root = instance.root
        made_by = drafts.owner.get(root) or f"{drafts.inputs[root.value].kind.value} on {placement_id(root.stage)}"
        per_step = drafts.per_step(root.value)
        key = (made_by, root.stage, instance.moves, per_step, frozenset(readers[instance]), instance in drafts.stored, instance.scope)
        groups[key].append(instance)
    counts: dict[str, int] = defaultdict(int)
    for members in sorted(groups.values(), key=lambda group: len(group[0].moves)):
        move, parent = members[0].via, members[0].parent
        assert move is not None
        assert parent is not None
        label = _label(drafts, members[0], move)
        draft = _draft(drafts, f"{label}.{counts[label]}", move, parent.stage, members)
        counts[label] += 1
        drafts.tasks[draft.id] = draft
        for instance in members:
            drafts.owner[instance] = draft.id


def _final_readers(drafts: Drafts) -> dict[Instance, set[str]]:
    """Instance -> the tasks and states to which it leads."""
    readers: dict[Instance, set[str]] = defaultdict(set)

    def note(instance: Instance | None, reader: str) -> None:
        while instance is not None:
            readers[instance].add(reader)
            instance = instance.parent

    for draft in drafts.tasks.values():
        for instance in draft.reads:
            note(instance, draft.id)
    for instance, state in drafts.stored.items():
        note(instance, f"state on {placement_id(drafts.staged.state_stage(state))}")
    return readers


def _draft(drafts: Drafts, task_id: str, move: Move, stage: int, members: list[Instance]) -> Draft:
    body: Boxing | None = None
    if isinstance(move, StageTransfer):
        kind, stream = TaskKind.TRANSFER, link_stream(move.src_stage, move.dst_stage)
    else:
        kind, body = TaskKind.BOXING, move
        stream = compute_stream(stage) if move.collective is Collective.LOCAL else axis_stream(stage, move.axis)
    acts = 1 if drafts.per_step(members[0].value) and members[0].scope is None else drafts.micro_batches
    reads = {i.parent: i.parent.name for i in members if i.parent is not None}
    return Draft(task_id, kind, stage, stream, acts, reads, {i: i.name for i in members}, body)


def _label(drafts: Drafts, instance: Instance, move: Move) -> str:
    """The first part of a communication task's id: placement, collective, and the kind of value."""
    op = drafts.producers.get(instance.value)
    if instance.value == drafts.staged.graph.mean_loss:
        what = "loss"
    elif op is None:
        what = "param" if drafts.per_step(instance.value) else "input"
    else:
        what = {Role.FORWARD: "fwd", Role.BACKWARD: "bwd", Role.ACCUMULATE: "grad", Role.UPDATE: "param"}[op.role]
    if isinstance(move, StageTransfer):
        return f"{placement_id(move.src_stage)}-{placement_id(move.dst_stage)}.{what}"
    suffix = f".axis{move.axis}" if len(drafts.mesh) > 1 else ""
    what += ".again" if instance.scope is not None else ""
    return f"{placement_id(instance.stage)}.{move.collective.value}{suffix}.{what}"


def draft_sources(drafts: Drafts) -> None:
    """Draft, per stage, one SOURCE for all batch instances that the stage reads, and one STEP_INPUT for all numbers of the step."""
    wanted: dict[tuple[TaskKind, int], dict[Instance, str]] = defaultdict(dict)
    for draft in drafts.tasks.values():
        for instance in draft.reads:
            if instance.parent is None and drafts.is_fed(instance.value):
                kind = TaskKind.STEP_INPUT if drafts.inputs[instance.value].kind is InputKind.STEP_INPUT else TaskKind.SOURCE
                # One batch input in two layouts is two tensors, so the layout is part of the name.
                wanted[kind, instance.stage][instance] = name_in_layout(instance.value, instance.sbp)
    sources: dict[str, Draft] = {}
    for (kind, stage), makes in sorted(wanted.items(), key=lambda entry: (entry[0][0] is TaskKind.STEP_INPUT, entry[0][1])):
        task_id = f"{placement_id(stage)}.{kind.value}"
        acts = drafts.micro_batches if kind is TaskKind.SOURCE else 1
        sources[task_id] = Draft(task_id, kind, stage, host_stream(stage), acts, {}, makes)
        for instance in makes:
            drafts.owner[instance] = task_id
    drafts.tasks = sources | drafts.tasks
