"""A point as the Plan that the published system ran: everything that its source fixes is pinned, and the search fills in the small rest.

    batch on the axis of replicas (S(0));  qkv, c_fc and the vocabulary by columns, both c_proj by rows on the tensor-parallel axis;
    what a layer returns whole on that axis, or, with sequence parallelism, split along time

Megatron   gradients are all-reduced once the stage's last backward pass is over (one buffer, nothing overlaps): control Regsts hold them
           back; a recomputed layer is recomputed whole; passes stand in the order of the program.
OneFlow    gradients are reduced as they arise, beside the backward pass; with tensor parallelism after it, since its script then has every
           collective on the stream that computes (``if tensor_model_parallel_size > 1: nccl_use_compute_stream(True)``, OneFlow-Benchmark,
           LanguageModeling/GPT/oneflow_gpt/training.py).  Only what the backward pass reads is recomputed; an act begins as soon as its
           Regsts allow (1F1B by quotas).

Pins name parameters and what modules return; ops of the backward pass, and those that are made again, have no name.  The search does there what
the systems do because of the prices that it is told (_search_cluster), which nothing that is calibrated later changes.  Memory has no limit
here: the points ran.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from experiments.fidelity.model import layer_paths, megatron_gpt
from experiments.fidelity.points import Point, System
from planner.cost import AnalyticCost
from planner.ir.actors.liveness import play
from planner.ir.actors.verify import verify
from planner.ir.cluster import Cluster, DeviceSpec, LinkSpec
from planner.ir.collective import Collective
from planner.ir.collector import collector_paused
from planner.ir.graph import LogicalGraph
from planner.ir.plan import Boxing, Fragment, Plan, Port, Regst, RegstKind, StreamKind, Task, TaskKind
from planner.ir.tensor import TensorType
from planner.ir.units import MB
from planner.lower.build import Recipe, lower
from planner.schedule import Schedule
from planner.schedule.actions import Pass
from planner.schedule.classic import one_f_one_b
from planner.search import Assignment, Method, build_model
from planner.search.methods.method import search
from planner.search.pins import parse_pins
from planner.stages import assign_stages, prepare
from simulator.live_bytes import dry_run

__all__ = ["Planned", "plan_of", "reference_cluster"]

_ALL_BYTES = 10**15
_BUCKET_BYTES = {System.MEGATRON: 10**15, System.ONEFLOW: 25 * MB}
"""One buffer for all gradients; or buckets that leave while the backward pass goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """types: op id -> local types under the names that the op has in its fragment."""

    plan: Plan
    types: Mapping[str, Mapping[str, TensorType]]


def reference_cluster(point: Point) -> Cluster:
    """As many nodes of 8 as the point has, at round rates: for what lowering decides (buckets, orders), before anything is calibrated."""
    devices = point.devices
    return Cluster(
        name=point.machine,
        source="round rates; prices come later",
        num_nodes=max(1, devices // 8),
        devices_per_node=min(8, devices),
        device=DeviceSpec(
            kind=point.machine, memory_bytes=_ALL_BYTES, rate_flop_per_s=1e14, memory_bandwidth_bytes_per_s=1e12, act_overhead_s=1e-5
        ),
        node=LinkSpec(latency_s=5e-5, bandwidth_bytes_per_s=200e9),
        nic=LinkSpec(latency_s=1e-4, bandwidth_bytes_per_s=100e9),
    )


def _search_cluster(point: Point) -> Cluster:
    """A cluster whose artificial prices make the search choose Megatron's layout where pins cannot: in backward and recomputed ops, and in the loss.

    A collective takes a latency, and as long again for a layer's activations; a layer's largest product 300 of them; memory is free.  So one
    all-reduce is cheaper than a reduce-scatter and an all-gather with elementwise ops on the parts between them, or than a whole weight gathered
    to split rows; two all-reduces of a number per token are cheaper than the logits gathered; and no product is done twice.
    """
    cluster, latency_s = reference_cluster(point), 1e-4
    activations = point.micro_batch * point.size.seq * point.size.hidden
    link = LinkSpec(latency_s=latency_s, bandwidth_bytes_per_s=2 * activations / latency_s)
    rate_flop_per_s = 8 * activations * point.size.hidden / (300 * latency_s)
    device = replace(cluster.device, rate_flop_per_s=rate_flop_per_s, memory_bandwidth_bytes_per_s=1e17)
    return replace(cluster, device=device, node=link, nic=link)


def plan_of(point: Point, graphs: dict[tuple[object, ...], LogicalGraph] | None = None, cluster: Cluster | None = None) -> Planned:
    """Plan a point.

    Args:
        graphs: traced graphs, kept for other points of the same model and micro-batch.
        cluster: for which the Plan is made once it is found; None: the reference cluster.
    """
    size, m = point.size, point.micro_batches
    selective, whole, tied = point.sequence_parallel, point.system is System.MEGATRON, point.pp == 1
    key = (size, point.micro_batch * point.dp, m, selective, whole, tied)
    if graphs is None or key not in graphs:
        graph = megatron_gpt(size, batch=point.batch, tied=tied, selective=selective, whole=whole).graph(m)
        if graphs is not None:
            graphs[key] = graph
    else:
        graph = graphs[key]
    with collector_paused():
        return _planned(point, graph, cluster)


def _planned(point: Point, graph: LogicalGraph, target: Cluster | None) -> Planned:
    m = point.micro_batches
    mesh = tuple(extent for extent in (point.dp, point.tp) if extent > 1) or (1,)
    paths = layer_paths(point.size.layers, selective=point.sequence_parallel)
    chunks = point.pp * point.interleave
    cuts = tuple(paths[i * len(paths) // chunks] for i in range(1, chunks))
    stage = assign_stages(graph, chunks, cuts)
    staged = prepare(graph, stage, point.pp, recompute=True, interleave=point.interleave)
    model = build_model(staged, mesh, _search_cluster(point), parse_pins(_pins(point)), m, in_flight=[1] * point.pp, zero=0)
    solution = search(model, Method.EXACT)
    step_s = model.step_s(solution.choice)
    bound_s = min(step_s, solution.lower_bound / point.pp)
    assignment = model.decode(solution.choice, solution.method, step_s, bound_s, model.problem.peak(solution.choice))
    recipe = Recipe(
        model=f"{point.data}: {point.name}",
        batch_size=point.batch,
        micro_batches=m,
        mesh=mesh,
        bucket_bytes=_BUCKET_BYTES[point.system],
        schedule=Schedule.INTERLEAVED if point.interleave > 1 else Schedule.ONE_F_ONE_B,
        interleave=point.interleave,
    )
    plan = lower(staged, assignment, target or reference_cluster(point), recipe)
    if point.system is System.MEGATRON:
        plan = plan if point.interleave > 1 else _in_program_order(plan)
    if point.dp > 1 and (point.system is System.MEGATRON or point.tp > 1):
        plan = _late_gradients(plan)
    verify(plan, dry_run)
    return Planned(plan=plan, types=_local_types(plan, assignment))


def _pins(point: Point) -> list[str]:
    def on(replicas: str, parts: str) -> str:
        return ",".join([replicas] * (point.dp > 1) + [parts] * (point.tp > 1)) or "B"

    # (batch, time, hidden), or with sequence parallelism (time, batch, hidden)
    rows, between = ("S(1)", "S(0)") if point.sequence_parallel else ("S(0)", "B")
    pins = [f"input.*={on('S(0)', 'B')}", f"wte.weight={on('B', 'S(0)')}", f"wpe.weight={on('B', 'B')}", f"ln_f.*={on('B', 'B')}"]
    for name in ("attn.qkv", "mlp.c_fc"):
        pins += [f"h.*.{name}.weight={on('B', 'S(0)')}", f"h.*.{name}.bias={on('B', 'S(0)')}", f"out:h.*.{name}={on(rows, 'S(2)')}"]
    for name in ("attn.c_proj", "mlp.c_proj"):
        pins += [f"h.*.{name}.weight={on('B', 'S(1)')}", f"h.*.{name}.bias={on('B', 'B')}", f"out:h.*.{name}={on(rows, between)}"]
    pins += [f"h.*.ln_*={on('B', 'B')}", f"out:h.*.ln_*={on(rows, between)}", f"out:ln_f={on(rows, between)}"]
    if point.pp > 1:
        pins.append(f"lm_head.weight={on('B', 'S(0)')}")
    return [*pins, *(f"out:{name}={on(rows, 'S(2)')}" for name in ("lm_head", "log_probs"))]


def _in_program_order(plan: Plan) -> Plan:
    """1F1B as a program says it: a stage begins no pass before the one that stands before it is over, whatever could start.

    Collectives keep the order in which they then come to start.
    """
    schedule = one_f_one_b(len(plan.placements), plan.micro_batches)
    orders = {}
    for placement, actions in zip(plan.placements, schedule.orders, strict=True):
        here = [task for task in plan.tasks if task.placement == placement.id and task.kind.is_compute]
        members = {
            Pass.FORWARD: [t.id for t in here if t.kind is TaskKind.FORWARD],
            Pass.BACKWARD: [t.id for t in here if t.kind is TaskKind.BACKWARD],
        }
        (stream,) = {task.stream for task in here}
        passes = [task for action in actions for task in members[action.kind]]
        orders[stream] = (*passes, *(t.id for t in here if t.kind is TaskKind.UPDATE))
    plan = replace(plan, streams=tuple(replace(s, order=orders.get(s.id, ())) for s in plan.streams))
    started: dict[str, list[str]] = {s.id: [] for s in plan.streams}
    for firing in play(plan, 1, AnalyticCost(plan.cluster).folded_s(plan)):
        started[plan.task[firing.task].stream].append(firing.task)
    return replace(
        plan,
        streams=tuple(replace(s, order=tuple(started[s.id])) if s.kind is StreamKind.COLLECTIVE else s for s in plan.streams),
    )


def _late_gradients(plan: Plan) -> Plan:
    """Collectives of gradients among the replicas wait for the stage's last backward act; whatever is gradient comes last on its stream."""
    regsts: list[Regst] = []
    produces: dict[str, Port] = {}
    consumes: dict[str, Port] = {}
    updates = [task for task in plan.tasks if task.kind is TaskKind.UPDATE]
    gradients = _before(plan, updates) - _before(plan, [task for task in plan.tasks if task.kind is TaskKind.BACKWARD])
    for placement in plan.placements:
        here = [task for task in plan.tasks if task.placement == placement.id]
        late = [t.id for t in here if t.id in gradients and isinstance(t.body, Boxing) and t.body.axis == 0]
        backward = [t for t in here if t.kind is TaskKind.BACKWARD]
        if not late or not backward:
            continue
        last = backward[-1]
        control = Regst(id=f"{last.id}.all.done", kind=RegstKind.CONTROL, placement=placement.id, producer=last.id, quota=1)
        regsts.append(control)
        produces[last.id] = Port(regst=control.id, acts_per_block=last.acts)
        consumes.update((name, Port(regst=control.id)) for name in late)
    tasks = tuple(
        replace(
            task,
            consumes=(*task.consumes, consumes[task.id]) if task.id in consumes else task.consumes,
            produces=(*task.produces, produces[task.id]) if task.id in produces else task.produces,
        )
        for task in plan.tasks
    )
    once = {t.id for t in plan.tasks if t.id in gradients and isinstance(t.body, Boxing) and t.body.collective is not Collective.LOCAL}
    streams = tuple(
        replace(s, order=(*(t for t in s.order if t not in once), *(t for t in s.order if t in once))) if once & set(s.order) else s
        for s in plan.streams
    )
    return replace(plan, tasks=tasks, regsts=(*plan.regsts, *regsts), streams=streams)


def _before(plan: Plan, tasks: Iterable[Task]) -> set[str]:
    """Tasks whose results reach one of these within the step."""
    waiting = list(tasks)
    producers: set[str] = set()
    while waiting:
        for port in waiting.pop().consumes:
            regst = plan.regst[port.regst]
            if regst.kind is not RegstKind.STATE and regst.producer is not None and regst.producer not in producers:
                producers.add(regst.producer)
                waiting.append(plan.task[regst.producer])
    return producers


def _local_types(plan: Plan, assignment: Assignment) -> Mapping[str, Mapping[str, TensorType]]:
    types_of: dict[str, Mapping[str, TensorType]] = {}
    for task in plan.tasks:
        for op in task.body.ops if isinstance(task.body, Fragment) else ():
            local = assignment.ops.get(op.id)
            if local is not None:
                named = {name: local.types[value] for name, value in zip(op.inputs, local.op.inputs, strict=True)}
                types_of[op.id] = named | {value: local.types[value] for value in op.outputs if value}
    return types_of
