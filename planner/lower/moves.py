"""Drafts of what is not computing: sources, fetch, and the boxing and transfer tasks between fragments."""

from __future__ import annotations

from collections import defaultdict

from planner.ir.collective import Collective
from planner.ir.graph import Role
from planner.ir.plan import Boxing, TaskKind
from planner.ir.sbp import NdSbp
from planner.lower.drafts import Draft, Drafts
from planner.lower.instances import Hop, Instance, Move

__all__ = ["draft_fetch", "draft_moves", "draft_sources"]


def draft_fetch(drafts: Drafts) -> Instance:
    """The task that hands the step's loss to the user; returns the instance it reads."""
    loss = drafts.staged.graph.mean_loss
    stage = drafts.staged.stage[drafts.producers[loss].id]
    last = drafts.follow(*drafts.route(loss, stage, NdSbp.broadcast(len(drafts.mesh))))
    drafts.tasks["fetch"] = Draft("fetch", TaskKind.FETCH, stage, f"s{stage}.host", 1, {last: last.name}, {})
    return last


def draft_moves(drafts: Drafts) -> None:
    """Moves with the same producer, the same steps and the same final readers become one task: a bucket."""
    readers = _final_readers(drafts)
    groups: dict[tuple[object, ...], list[Instance]] = defaultdict(list)
    for instance in drafts.instances.values():
        if instance.parent is None:
            continue
        root = instance.root
        made_by = drafts.owner.get(root) or f"{drafts.inputs[root.value].kind.value} on s{root.stage}"
        per_step = drafts.per_step(root.value)
        key = (made_by, root.stage, instance.moves, per_step, tuple(sorted(readers[instance])), instance in drafts.stored, instance.turn)
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
    """Instance -> tasks and states that are reached through it."""
    readers: dict[Instance, set[str]] = defaultdict(set)

    def note(instance: Instance | None, reader: str) -> None:
        while instance is not None:
            readers[instance].add(reader)
            instance = instance.parent

    for draft in drafts.tasks.values():
        for instance in draft.reads:
            note(instance, draft.id)
    for instance, state in drafts.stored.items():
        note(instance, f"state on s{drafts.staged.home(state)}")
    return readers


def _draft(drafts: Drafts, task_id: str, move: Move, stage: int, members: list[Instance]) -> Draft:
    body: Boxing | None = None
    if isinstance(move, Hop):
        kind, stream = TaskKind.TRANSFER, f"s{move.src_stage}.link.s{move.dst_stage}"
    else:
        kind, body = TaskKind.BOXING, move
        stream = f"s{stage}.compute" if move.collective is Collective.LOCAL else f"s{stage}.axis{move.axis}"
    acts = 1 if drafts.per_step(members[0].value) and not members[0].turn else drafts.micro_batches
    reads = {i.parent: i.parent.name for i in members if i.parent is not None}
    return Draft(task_id, kind, stage, stream, acts, reads, {i: i.name for i in members}, body)


def _label(drafts: Drafts, instance: Instance, move: Move) -> str:
    """What a communication task is called: place, collective, and what kind of value it carries."""
    op = drafts.producers.get(instance.value)
    if instance.value == drafts.staged.graph.mean_loss:
        what = "loss"
    elif op is None:
        what = "param" if drafts.per_step(instance.value) else "input"
    else:
        what = {Role.FORWARD: "fwd", Role.BACKWARD: "bwd", Role.ACCUMULATE: "grad", Role.UPDATE: "param"}[op.role]
    if isinstance(move, Hop):
        return f"s{move.src_stage}-s{move.dst_stage}.{what}"
    suffix = f".axis{move.axis}" if len(drafts.mesh) > 1 else ""
    what += ".again" if instance.turn else ""
    return f"s{instance.stage}.{move.collective.value}{suffix}.{what}"


def draft_sources(drafts: Drafts) -> None:
    """One SOURCE per stage makes every batch instance that the stage reads."""
    wanted: dict[int, dict[Instance, str]] = defaultdict(dict)
    for draft in drafts.tasks.values():
        for instance in draft.reads:
            if instance.parent is None and drafts.is_batch(instance.value):
                # The same batch argument in two layouts is two tensors, so the layout is part of the name.
                wanted[instance.stage][instance] = f"{instance.value}@{instance.sbp}"
    sources: dict[str, Draft] = {}
    for stage, makes in sorted(wanted.items()):
        task_id = f"s{stage}.source"
        sources[task_id] = Draft(task_id, TaskKind.SOURCE, stage, f"s{stage}.host", drafts.micro_batches, {}, makes)
        for instance in makes:
            drafts.owner[instance] = task_id
    drafts.tasks = sources | drafts.tasks
