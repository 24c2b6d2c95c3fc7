"""From a logical graph and a cluster to a verified Plan: stages, layouts, lowering."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import inf, prod

from planner.cost import AnalyticCost
from planner.ir.cluster import Cluster
from planner.ir.collector import collector_paused
from planner.ir.errors import OutOfMemory, Unsupported
from planner.ir.graph import LogicalGraph
from planner.ir.peak import live_bytes
from planner.ir.plan import Plan
from planner.ir.text import content_id
from planner.ir.units import MB
from planner.ir.verify import device_bytes, verify
from planner.lower import Recipe, Schedule, in_flight, lower
from planner.search import Method, assign, parse_pins, pieces_of
from planner.shape import Shape, ShapeSearch, ShapeWatch, first_stage, most_stages, shapes
from planner.solve import Watch
from planner.stages import assign_stages, prepare

__all__ = ["PlanOptions", "make_plan", "search_plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What the user fixes; the rest is chosen.

    stages: pipeline stages, each on its own devices (None: searched).  mesh: device mesh inside a stage (None: searched).
    micro_batches: per step (None: searched).
    cuts: module paths that begin the next stage.  pins: 'PATTERN=SBP'.  quotas: Regst id pattern -> blocks.
    bucket_bytes: gradients are reduced in buckets of about so many bytes.
    recompute: make what is inside numbered blocks again in the backward part instead of keeping it (None: where nothing else fits).
    method, seconds: how to search, and when to stop with the best plan so far (that is not part of the record: it is no wish).
    """

    stages: int | None = 1
    mesh: tuple[int, ...] | None = None
    micro_batches: int | None = 1
    cuts: tuple[str, ...] = ()
    pins: tuple[str, ...] = ()
    schedule: Schedule = Schedule.ONE_F_ONE_B
    bucket_bytes: int = 25 * MB
    quotas: Mapping[str, int] = field(default_factory=dict)
    recompute: bool | None = None
    method: Method = Method.EXACT
    seconds: float = inf

    def as_text(self) -> dict[str, str]:
        """For the Plan's record of how it was made."""
        return {
            "stages": str(self.stages),
            "cuts": ",".join(self.cuts),
            "pins": ";".join(self.pins),
            "schedule": self.schedule.value,
            "bucket_bytes": str(self.bucket_bytes),
            "recompute": {None: "", True: "blocks", False: "none"}[self.recompute],
            "quotas": ";".join(f"{p}={q}" for p, q in self.quotas.items()),
        }


def search_plan(
    graph_of: Callable[[int], LogicalGraph],
    *,
    model: str,
    batch_size: int,
    cluster: Cluster,
    options: PlanOptions,
    watch: Watch | None = None,
    on_shape: ShapeWatch | None = None,
) -> Plan:
    """Search stages, mesh and micro-batches where the options leave them open, then the layouts, and lower.

    Args:
        graph_of: micro-batches -> one step, traced at that micro-batch size.
        batch_size: samples per step.
        on_shape: told of every shape that was looked at: (shape, best step in seconds so far, bound in seconds).

    Raises:
        Unsupported, UnknownOp, DeadLock, OutOfMemory: with the way out.
    """
    if options.micro_batches is not None:
        graph_of(options.micro_batches)  # says which counts divide the batch
    _check(options, cluster)
    if options.stages is not None and options.micro_batches is not None:
        most = options.stages
    else:
        most = most_stages(graph_of(options.micro_batches or 1)) if not options.cuts else len(options.cuts) + 1
    open_shapes = shapes(
        batch_size,
        cluster,
        stages=len(options.cuts) + 1 if options.cuts and options.stages is None else options.stages,
        mesh=options.mesh,
        micro_batches=options.micro_batches,
        most_stages=most,
        recompute=options.recompute is True,
    )
    try:
        if len(open_shapes) == 1:
            (shape,) = open_shapes
            fixed, graph = _fixed(options, shape), graph_of(shape.micro_batches)
            return make_plan(graph, model=model, batch_size=batch_size, cluster=cluster, options=fixed, watch=watch)
        with collector_paused():
            return _best_plan(graph_of, open_shapes, model, batch_size, cluster, options, watch, on_shape)
    except OutOfMemory as error:
        raise OutOfMemory(f"{error}; {_would_fit(graph_of, batch_size, cluster, options)}") from None


def _best_plan(
    graph_of: Callable[[int], LogicalGraph],
    candidates: Sequence[Shape],
    model: str,
    batch_size: int,
    cluster: Cluster,
    options: PlanOptions,
    watch: Watch | None,
    on_shape: ShapeWatch | None,
) -> Plan:
    plans: dict[Shape, Plan] = {}

    def work_out(shape: Shape, tight: bool) -> tuple[float, float]:
        fixed = replace(_fixed(options, shape), recompute=shape.recompute, seconds=options.seconds / 4)
        plans[shape] = _make(graph_of(shape.micro_batches), model, batch_size, cluster, fixed, watch, tight=tight)
        return plans[shape].search.objective_s, plans[shape].search.lower_bound_s

    search = ShapeSearch(graph_of, cluster, parse_pins(options.pins), work_out, recompute=options.recompute is None, on_progress=on_shape)
    shape, bound_s = search.best(candidates, options.seconds)
    plan = plans[shape]
    return replace(plan, search=replace(plan.search, method=f"{plan.search.method}, shapes", lower_bound_s=bound_s))


def make_plan(
    graph: LogicalGraph, *, model: str, batch_size: int, cluster: Cluster, options: PlanOptions, watch: Watch | None = None
) -> Plan:
    """Search the layouts of one shape and lower.

    Args:
        graph: one step at micro-batch size, traced for ``options.micro_batches``.
        batch_size: samples per step.

    Raises:
        Unsupported, UnknownOp, DeadLock, OutOfMemory: with the way out.
    """
    _check(options, cluster)
    stages, micro_batches = options.stages or 1, options.micro_batches or 1
    mesh = options.mesh if options.mesh is not None else (cluster.num_devices // stages,)
    fixed = _fixed(options, Shape(stages, micro_batches, mesh))
    with collector_paused():
        try:
            return _make(graph, model, batch_size, cluster, fixed, watch)
        except OutOfMemory:
            if options.recompute is not None or options.method is not Method.EXACT:
                raise
            return _make(graph, model, batch_size, cluster, replace(fixed, recompute=True), watch)


def _check(options: PlanOptions, cluster: Cluster) -> None:
    if (options.stages is not None and options.stages < 1) or (options.micro_batches is not None and options.micro_batches < 1):
        raise Unsupported(f"stages = {options.stages}, micro-batches = {options.micro_batches}; both are at least 1")
    for pattern, wished in options.quotas.items():
        if wished < 1:
            raise Unsupported(f"quota {pattern}={wished}: an actor needs at least 1 block to write to, ask for 1 or more")
    if options.bucket_bytes < 1:
        raise Unsupported(f"buckets of {options.bucket_bytes} bytes hold no gradient; give at least 1 byte")
    if options.stages is not None and cluster.num_devices % options.stages:
        raise Unsupported(f"{options.stages} stages do not divide the {cluster.num_devices} devices of {cluster.name}")
    mesh = options.mesh
    if mesh is None:
        return
    if options.stages is not None and (any(extent < 1 for extent in mesh) or prod(mesh) * options.stages != cluster.num_devices):
        raise Unsupported(
            f"mesh {_by(mesh)} has {prod(mesh)} places, but each of {options.stages} stages has "
            f"{cluster.num_devices // options.stages} devices of {cluster.name}"
        )
    if any(extent < 1 for extent in mesh) or cluster.num_devices % prod(mesh):
        raise Unsupported(
            f"mesh {_by(mesh)} has {prod(mesh)} places, which do not divide the {cluster.num_devices} devices of {cluster.name}"
        )


def _by(mesh: tuple[int, ...]) -> str:
    return "x".join(map(str, mesh))


def _fixed(options: PlanOptions, shape: Shape) -> PlanOptions:
    recompute = True if shape.recompute else options.recompute
    return replace(options, stages=shape.stages, micro_batches=shape.micro_batches, mesh=shape.mesh, recompute=recompute)


def _make(
    graph: LogicalGraph, model: str, batch_size: int, cluster: Cluster, options: PlanOptions, watch: Watch | None, *, tight: bool = False
) -> Plan:
    stages, micro_batches, mesh = options.stages, options.micro_batches, options.mesh
    assert stages is not None and micro_batches is not None and mesh is not None
    staged = prepare(graph, assign_stages(graph, stages, options.cuts), stages, recompute=options.recompute is True)
    recipe = Recipe(
        model=model,
        batch_size=batch_size,
        micro_batches=micro_batches,
        mesh=mesh,
        bucket_bytes=options.bucket_bytes,
        schedule=options.schedule,
        quotas=options.quotas,
        options=options.as_text() | {"graph": content_id(graph)},
    )
    pins, cost = parse_pins(options.pins), AnalyticCost(cluster)
    flight = [in_flight(options.schedule, s, stages, micro_batches) for s in range(stages)]
    memory_bytes = cluster.device.memory_bytes
    limit_bytes, bound_s = memory_bytes if tight else inf, inf
    plan: Plan | None = None
    for _ in range(_ATTEMPTS):
        try:
            assignment = assign(
                staged,
                mesh,
                cluster,
                pins,
                micro_batches,
                method=options.method,
                seconds=options.seconds,
                watch=watch,
                limit_bytes=limit_bytes,
                in_flight=flight,
            )
        except OutOfMemory:
            if plan is None:
                raise
            break  # verify says what the last plan would need
        if limit_bytes >= memory_bytes:
            bound_s = assignment.lower_bound_s  # never counts more memory than there is
        plan = lower(staged, replace(assignment, lower_bound_s=min(bound_s, assignment.objective_s)), cluster, recipe)
        need_bytes = max(device_bytes(plan).values())
        if need_bytes > memory_bytes:
            need_bytes = max(max(live_bytes(plan, duration_s).values()) for duration_s in (lambda task: 1.0, cost.folded_s(plan)))
        if need_bytes <= memory_bytes or options.method is not Method.EXACT:
            break
        # The search counts what lies in Regsts for certain; the rest is known once the Plan is made, and comes off the limit.
        limit_bytes = memory_bytes if limit_bytes == inf else limit_bytes - (need_bytes - memory_bytes) * 1.02
        if limit_bytes <= 0:
            break
    assert plan is not None
    verify(plan)
    return plan


_ATTEMPTS = 4


def _would_fit(graph_of: Callable[[int], LogicalGraph], batch_size: int, cluster: Cluster, options: PlanOptions) -> str:
    """The smallest multiple of the cluster, by doubling, on which some shape holds no more than the devices have."""
    nodes = cluster.num_nodes
    nic = cluster.nic if cluster.nic is not None else cluster.node
    pins = parse_pins(options.pins)
    pieces = cache(lambda micro_batches: pieces_of(graph_of(micro_batches)))
    for _ in range(_DOUBLINGS):
        nodes *= 2
        larger = replace(cluster, num_nodes=nodes, nic=nic)
        wished = shapes(batch_size, larger, micro_batches=options.micro_batches, stages=1)
        for shape in wished[:: max(1, len(wished) // 4)]:
            try:
                _, _, needed = first_stage(pieces(shape.micro_batches), shape, larger, pins)
            except Unsupported:
                continue
            if needed <= cluster.device.memory_bytes:
                return f"the states alone would fit on {nodes} such nodes ({larger.num_devices} devices, mesh {_by(shape.mesh)})"
    return f"not even {nodes} such nodes would do: use devices with more memory"


_DOUBLINGS = 5
