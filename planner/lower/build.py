"""A Plan from a staged graph and its decisions: tasks (fragments, boxing, transfers, sources, fetch), Regsts with quotas, orders of streams."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from planner.cost.analytic import AnalyticCost
from planner.ir.cluster import Cluster
from planner.ir.graph import InputKind, Op
from planner.ir.plan import (
    Access,
    BatchInput,
    Fragment,
    Output,
    Placement,
    Plan,
    Port,
    Search,
    State,
    Stream,
    StreamKind,
    Task,
    TaskKind,
)
from planner.ir.sbp import coordinates
from planner.ir.tensor import TensorType
from planner.lower.drafts import Before, Draft, Drafts
from planner.lower.experts import expert_works
from planner.lower.fragments import draft_fragments, draft_state_writers
from planner.lower.instances import Instance
from planner.lower.moves import draft_fetch, draft_moves, draft_outputs, draft_sources
from planner.lower.names import placement_id
from planner.lower.orders.begun import begun_acts
from planner.lower.orders.pass_order import pass_order
from planner.lower.orders.prefetch import controls_of, with_controls
from planner.lower.regsts import DraftRegst, Rates, apply_asked_quotas, group_regsts, size_regst
from planner.lower.rings import unfold_rings
from planner.lower.work import BOXING_OP, fragment_work
from planner.schedule import PipelineSchedule, Schedule
from planner.search import Assignment
from planner.stages import Staged

__all__ = ["Recipe", "lower", "lower_again"]

_PRIORITY = {TaskKind.BACKWARD: 0, TaskKind.FORWARD: 1, TaskKind.WEIGHT: 2, TaskKind.UPDATE: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The options of lowering.

    quotas: Regst id pattern -> quota, which replaces that of planner.lower.quotas.
    interleave: stages per placement.   hold: micro-batches that a device may hold under the automatic schedule (None: as many as stages).
    order: the order of Schedule.GIVEN.
    """

    model: str
    batch_size: int
    micro_batches: int
    mesh: tuple[int, ...]
    bucket_bytes: int
    schedule: Schedule
    quotas: Mapping[str, int] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    interleave: int = 1
    hold: int | None = None
    order: PipelineSchedule | None = None
    routed: bool = False


def lower(staged: Staged, assignment: Assignment, cluster: Cluster, recipe: Recipe, before: Before | None = None) -> Plan:
    """Build the Plan.

    Args:
        before: what was lowered from the same staged graph with the same recipe; it saves time and changes nothing.

    Raises:
        Unsupported: a quota pattern matches no Regst.
        DeadLock: with the quotas asked for, the Plan is not live.
    """
    staged, assignment = unfold_rings(staged, assignment, recipe.mesh)
    drafts = Drafts(staged, assignment, cluster, recipe.mesh, recipe.micro_batches, _on_same_devices(before, cluster))
    draft_fragments(drafts, recipe.bucket_bytes, split=recipe.schedule.splits_backward)
    draft_state_writers(drafts)
    loss = draft_fetch(drafts)
    draft_outputs(drafts)
    draft_moves(drafts)
    draft_sources(drafts)
    _order(drafts)
    regsts, access = group_regsts(drafts)
    rates = Rates(drafts)
    made: dict[str | None, list[tuple[Instance, Access]]] = defaultdict(list)
    for instance, where in access.items():
        made[drafts.owner.get(instance)].append((instance, where))
    produced: dict[str | None, list[DraftRegst]] = defaultdict(list)
    for draft_regst in regsts.values():
        produced[draft_regst.regst.producer].append(draft_regst)
    tasks = {d.id: _task(drafts, rates, d, regsts, access, made[d.id], produced[d.id]) for d in drafts.tasks.values()}
    consumers: dict[str, list[Task]] = defaultdict(list)
    for task in tasks.values():
        for port in task.consumes:
            consumers[port.regst].append(task)
    controls = controls_of(drafts, recipe.schedule)
    tasks = with_controls(tasks, controls)
    gradients = {name: access[drafts.native(value)] for name, value in staged.graph.gradients.items()}
    batch = [i for i in staged.graph.inputs if i.kind is InputKind.BATCH]
    plan = Plan(
        model=recipe.model,
        options=dict(recipe.options),
        micro_batches=recipe.micro_batches,
        batch_size=recipe.batch_size,
        cluster=cluster,
        placements=_placements(staged.num_stages, recipe.mesh),
        streams=_streams(drafts),
        regsts=(*(draft.regst for draft in regsts.values()), *(control.regst for control in controls)),
        tasks=tuple(tasks.values()),
        states=tuple(_states(drafts, access)),
        batch_inputs=tuple(BatchInput(name=i.name, value=i.value, batch_dim=i.batch_dim, whole_of=i.whole_of) for i in batch),
        loss=access[loss],
        gradients=gradients,
        search=_search(assignment, cluster),
        outputs=tuple(_outputs(drafts, access)),
        experts=expert_works(drafts) if recipe.routed else (),
    )
    order = pass_order(
        recipe.schedule,
        drafts,
        interleave=recipe.interleave,
        hold=recipe.hold,
        given=recipe.order,
        plan=plan,
        act_s=AnalyticCost(cluster).folded_s(plan),
    )
    sized = {r: size_regst(drafts, rates, regst, tasks, consumers, recipe.schedule, order) for r, regst in regsts.items()}
    sized |= {control.regst.id: control.regst for control in controls}
    plan = replace(plan, regsts=tuple(apply_asked_quotas(sized, recipe.quotas).values()))
    return _with_orders(plan, order.streams if order is not None else {})


def _on_same_devices(before: Before | None, cluster: Cluster) -> Before | None:
    """None: the fragments of the earlier Plan are others, since devices have other kernels or there are several kinds."""
    if before is None or cluster.parts or before.plan.cluster.parts or cluster.device != before.plan.cluster.device:
        return None
    return before


def lower_again(before: Before, assignment: Assignment, cluster: Cluster, recipe: Recipe) -> Plan | None:
    """The Plan of decisions that were lowered before, on a cluster where other links make other prices: communicators get other orders.

    Args:
        before: lowered from the same staged graph and with the same recipe, of which only the recorded options may differ.

    Returns:
        What ``lower`` makes; None: decisions or devices differ, or the schedule depends on prices.
    """
    if recipe.schedule is Schedule.ZB_AUTO or _on_same_devices(before, cluster) is None or not before.assignment.decides_as(assignment):
        return None
    plan = before.plan
    compute = {stream.id: stream.order for stream in plan.streams if stream.kind is StreamKind.COMPUTE}
    placed = replace(plan, options=dict(recipe.options), cluster=cluster, search=_search(assignment, cluster))
    return _with_orders(placed, compute)


def _search(assignment: Assignment, cluster: Cluster) -> Search:
    return Search(
        method=assignment.method,
        cost_model=AnalyticCost(cluster).id,
        objective_s=assignment.objective_s,
        lower_bound_s=assignment.lower_bound_s,
    )


def _placements(num_stages: int, mesh: tuple[int, ...]) -> tuple[Placement, ...]:
    size = len(list(coordinates(mesh)))
    return tuple(Placement(id=placement_id(s), ranks=tuple(range(s * size, (s + 1) * size)), mesh=mesh) for s in range(num_stages))


def _order(drafts: Drafts) -> None:
    """Sort the drafts topologically: each task comes after the tasks of the step that make its inputs, otherwise in the order drafted.

    A task that was drafted after its first reader is placed right before it.  A sort by graphlib would be level by level, and so would change the
    order in which equal tasks are performed.
    """
    placed: dict[str, Draft] = {}
    for first in drafts.tasks.values():
        path = [first]
        while path:
            makers = [drafts.owner.get(i) for i in path[-1].reads if i not in drafts.stored]
            waiting = next((m for m in makers if m is not None and m not in placed), None)
            if waiting is None:
                draft = path.pop()
                placed.setdefault(draft.id, draft)
            else:
                path.append(drafts.tasks[waiting])
    drafts.tasks = placed


def _task(
    drafts: Drafts,
    rates: Rates,
    draft: Draft,
    regsts: Mapping[str, DraftRegst],
    access: Mapping[Instance, Access],
    made: Sequence[tuple[Instance, Access]],
    produced: Sequence[DraftRegst],
) -> Task:
    reads = [_named(access[i], name) for i, name in draft.reads.items()]
    if draft.makes:
        writes = [_named(access[i], name) for i, name in draft.makes.items()]
    else:
        writes = [_named(where, instance.name) for instance, where in made]
    own = {made_here.regst.id for made_here in produced}
    consumed = [regst for regst in dict.fromkeys(a.regst for a in reads) if regst not in own]
    return Task(
        id=draft.id,
        kind=draft.kind,
        placement=placement_id(draft.stage),
        stream=draft.stream.id,
        acts=draft.acts,
        priority=_PRIORITY.get(draft.kind, 0),
        consumes=tuple(Port(regst=r, acts_per_block=rates.hold(draft, regsts[r])) for r in consumed),
        produces=tuple(Port(regst=r.regst.id, acts_per_block=rates.fill(draft, r)) for r in produced),
        reads=tuple(reads),
        writes=tuple(writes),
        body=_fragment(drafts, draft, frozenset(w.name for w in writes)) if draft.kind.is_compute else draft.body,
    )


def _named(access: Access, name: str) -> Access:
    return access if access.name == name else replace(access, name=name)


def _fragment(drafts: Drafts, draft: Draft, written: frozenset[str]) -> Fragment:
    ops = drafts.fragment_ops[draft.id]
    known = drafts.before and _same_fragment(drafts, drafts.before, draft.id, ops, written)
    if known:
        return known
    types = {op.id: _named_types(drafts, op) for op in ops if op.target != BOXING_OP}
    device = drafts.cluster.device_of(draft.stage * prod(drafts.mesh))
    work = fragment_work(ops, types, written, device.fusion if device.kernels else None)
    return Fragment(
        ops=tuple(ops),
        flop=work.flop,
        traffic_bytes=work.traffic_bytes,
        workspace_bytes=work.workspace_bytes,
        flop_by_dtype=work.flop_by_dtype,
        kernels=work.kernels,
    )


def _same_fragment(drafts: Drafts, before: Before, task_id: str, ops: Sequence[Op], written: frozenset[str]) -> Fragment | None:
    """The fragment of the earlier Plan, if it performs the same ops on the same parts and writes the same values."""
    task = before.plan.task.get(task_id)
    if task is None or not isinstance(task.body, Fragment) or task.body.ops != tuple(ops) or {w.name for w in task.writes} != written:
        return None
    mine, theirs = drafts.assignment.ops, before.assignment.ops
    laid = [(mine[op.id], theirs.get(op.id)) for op in ops if op.target != BOXING_OP]
    return task.body if all(here is there or (there is not None and here.types == there.types) for here, there in laid) else None


def _named_types(drafts: Drafts, op: Op) -> dict[str, TensorType]:
    """Local types under the names that the op uses inside its fragment."""
    local = drafts.assignment.ops[op.id]
    named = {name: local.types[value] for name, value in zip(op.inputs, local.op.inputs, strict=True)}
    return named | {value: local.types[value] for value in op.outputs if value}


def _streams(drafts: Drafts) -> tuple[Stream, ...]:
    streams = {draft.stream.id: draft.stream for draft in drafts.tasks.values()}
    return tuple(streams[stream] for stream in sorted(streams))


def _states(drafts: Drafts, access: Mapping[Instance, Access]) -> list[State]:
    accesses: dict[str, list[Access]] = {}
    for instance, where in access.items():
        if instance.parent is None:
            accesses.setdefault(instance.value, []).append(where)
    states = [i for i in drafts.staged.graph.inputs if i.kind.is_state]
    names = {i.value: i.name for i in states}
    return [
        State(name=i.name, kind=i.kind, regst=a.regst, index=a.index, copy_of=None if i.copy_of is None else names[i.copy_of])
        for i in states
        for a in accesses.get(i.value, [])
    ]


def _outputs(drafts: Drafts, access: Mapping[Instance, Access]) -> list[Output]:
    at = [(output, access[drafts.native(output.value)]) for output in drafts.staged.graph.outputs]
    return [Output(name=output.name, regst=a.regst, index=a.index, batch_dim=output.batch_dim) for output, a in at]


def _with_orders(plan: Plan, compute: Mapping[str, tuple[str, ...]]) -> Plan:
    """Set the order of each communicator's collectives: that in which the token game starts them, with the cluster's seconds per act.

    Args:
        compute: the orders of compute streams that the schedule prescribes.
    """
    plan = replace(plan, streams=tuple(replace(stream, order=compute.get(stream.id, ())) for stream in plan.streams))
    begun = begun_acts(plan, AnalyticCost(plan.cluster).folded_s(plan))
    streams = [replace(stream, order=begun[stream.id]) if stream.kind is StreamKind.COLLECTIVE else stream for stream in plan.streams]
    return replace(plan, streams=tuple(streams))
