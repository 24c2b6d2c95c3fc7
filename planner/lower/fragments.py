"""Drafts of compute tasks: their ops, their inputs, and the boxing steps without communication that they perform."""

from __future__ import annotations

from collections import defaultdict

from planner.ir.graph import Arg, Op, Ref, Role
from planner.ir.plan import Boxing, TaskKind
from planner.ir.sbp import B, NdSbp, Split
from planner.ir.tensor import TensorType
from planner.lower.drafts import Draft, Drafts
from planner.lower.instances import Instance, UnshardScope
from planner.lower.levels import FragmentKey, fragment_keys
from planner.lower.names import compute_stream, name_in_layout, placement_id
from planner.lower.work import BOXING_OP

__all__ = ["draft_fragments", "draft_state_writers"]

_SHORT = {Role.FORWARD: "fwd", Role.BACKWARD: "bwd", Role.UPDATE: "upd"}
_WEIGHT = "wgt"
_KIND = {Role.FORWARD: TaskKind.FORWARD, Role.BACKWARD: TaskKind.BACKWARD, Role.UPDATE: TaskKind.UPDATE}
_ROLE = {kind: role for role, kind in _KIND.items()} | {TaskKind.WEIGHT: Role.BACKWARD}


def draft_fragments(drafts: Drafts, bucket_bytes: int, *, split: bool = False) -> None:
    """Cut the graph into fragments and draft a task for each, in an order in which they can be performed.

    Args:
        split: the weight part of the backward pass has tasks of its own.
    """
    graph, staged = drafts.staged.graph, drafts.staged
    stage = {op.id: staged.fragment_stage(op) for op in graph.ops}
    consumers = graph.consumers()

    gradient_bytes: dict[str, int] = {}
    for op in graph.ops:
        value = op.outputs[0] if op.role is Role.ACCUMULATE else None
        made_by = drafts.producers.get(op.inputs[0]) if value is not None else None
        if value is not None and made_by is not None and any(drafts.num_moves(reader, value) for reader in consumers[value]):
            gradient_bytes[made_by.id] = drafts.assignment.ops[op.id].types[value].size_bytes
    keys = fragment_keys(graph, stage, drafts.num_moves, gradient_bytes, bucket_bytes, drafts.units(), split=split)
    members: dict[FragmentKey, list[Op]] = defaultdict(list)
    for op in graph.ops:
        members[keys[op.id]].append(op)
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for key in sorted(members, key=lambda k: k.order):
        placement, virtual = key.stage % staged.num_stages, key.stage // staged.num_stages
        # The name of an interleaved stage has the placement and the number there: s0v1 is stage num_stages + 0.
        where = placement_id(placement) + (f"v{virtual}" if staged.interleaved and key.role is not Role.UPDATE else "")
        short, kind = (_WEIGHT, TaskKind.WEIGHT) if key.weight else (_SHORT[key.role], _KIND[key.role])
        number = counts[where, short]
        counts[where, short] += 1
        acts = 1 if key.role is Role.UPDATE else drafts.micro_batches
        task_id = f"{where}.{short}.{number}"
        draft = Draft(task_id, kind, placement, compute_stream(placement), acts, {}, {}, fragment_stage=key.stage)
        drafts.tasks[task_id] = draft
        _fill(drafts, draft, members[key])


def _fill(drafts: Drafts, draft: Draft, members: list[Op]) -> None:
    inside = {value for op in members for value in op.outputs if value}
    ops: list[Op] = []
    present: dict[tuple[str, NdSbp], str] = {}  # (value, layout) -> its name in the fragment, once it is there
    for op in members:
        names: dict[str, str] = {}
        for value in dict.fromkeys(op.inputs):
            wanted = drafts.wanted(op, value)
            if (value, wanted) not in present:
                present[value, wanted] = _bring(drafts, draft, value, wanted, drafts.scope(op, value), value in inside, ops, present)
            names[value] = present[value, wanted]
        ops.append(drafts.assignment.ops[op.id].op.renamed(names))
        for made in filter(None, op.outputs):
            native = drafts.native(made)
            drafts.owner[native] = draft.id
            present[made, native.sbp] = made
    drafts.fragment_ops[draft.id] = ops


def _bring(
    drafts: Drafts,
    draft: Draft,
    value: str,
    wanted: NdSbp,
    scope: UnshardScope | None,
    inside: bool,
    ops: list[Op],
    present: dict[tuple[str, NdSbp], str],
) -> str:
    """The name of ``value`` in the layout wanted inside the fragment; adds the reads and local boxing steps that it needs.

    Args:
        inside: the fragment makes the value.
    """
    native, way = drafts.arrival(value, draft.stage, wanted)
    last = drafts.follow(native, way.moves, scope)
    # A batch input or constant may be delivered in several layouts at once, so its layout is part of its name.
    name = name_in_layout(value, last.sbp) if drafts.is_delivered(value) else last.name
    if not (inside and last is native):
        draft.reads[last] = name
    for step in way.local:
        if (value, step.dst) not in present:
            present[value, step.dst] = name_in_layout(value, step.dst)
            ops.append(_local_step(drafts, name, present[value, step.dst], step, drafts.staged.graph.values[value], draft.kind))
        name = present[value, step.dst]
    return name


def _local_step(drafts: Drafts, source: str, target: str, step: Boxing, logical: TensorType, kind: TaskKind) -> Op:
    """A local step along one axis: slice (B -> S), pad (S -> P) or mask (B -> P).  Compilation adds the rank's coordinate."""
    src, dst = step.src[step.axis], step.dst[step.axis]
    args: tuple[Arg, ...] = (Ref(source), str(src), str(dst), step.axis)
    if isinstance(src, Split):  # pads to the extent that the axis' parts have together
        args = (*args, step.src.replace(step.axis, B).local_shape(logical.shape, drafts.mesh)[src.dim])
    return Op(id=f"box.{target}", target=BOXING_OP, args=args, outputs=(target,), role=_ROLE[kind])


def draft_state_writers(drafts: Drafts) -> None:
    """For each state, bring its new value to the state's stage and layout, and record the instance that replaces the state."""
    graph = drafts.staged.graph
    for old, new in graph.updates.items():
        stage, sbp = drafts.staged.state_stage(old), drafts.assignment.states[old]
        native, way = drafts.arrival(new, stage, sbp)
        last = drafts.follow(native, way.moves)
        if way.moves:
            for step in way.local:  # a cut after a collective is a task of its own, since no fragment follows
                last = drafts.instances.setdefault((new, stage, step.dst, None), Instance(new, stage, step.dst, last, step))
        else:
            draft = drafts.tasks[drafts.owner[native]]
            name = native.name
            for step in way.local:
                last = Instance(name_in_layout(new, step.dst), stage, step.dst)
                drafts.fragment_ops[draft.id].append(_local_step(drafts, name, last.value, step, graph.values[new], draft.kind))
                drafts.owner[last] = draft.id
                name = last.value
        drafts.stored[last] = old
