"""From a logical graph and a cluster to a verified Plan: stages, layouts, lowering."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from planner.cost import AnalyticCost
from planner.ir.actors.peak import live_bytes
from planner.ir.actors.verify import device_bytes, verify
from planner.ir.cluster import Cluster
from planner.ir.collector import collector_paused
from planner.ir.errors import OutOfMemory, Unsupported
from planner.ir.graph import LogicalGraph
from planner.ir.plan import Plan
from planner.ir.protocols import DryRun
from planner.ir.text import content_id
from planner.lower import Recipe, lower
from planner.parallelism.narrow import Narrowing
from planner.parallelism.options import PlanOptions, by, check_options, given_order
from planner.parallelism.shape import Shape, ShapeSearch, ShapeWatch, Shares, most_stages, shapes
from planner.schedule import in_flight
from planner.search import Method, assign_layouts, build_model, parse_pins
from planner.solve import Watch, least_peak
from planner.stages import assign_stages, check_recompute, prepare

__all__ = ["FoundPlans", "PlanOptions", "make_plan", "search_plans"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPlans:
    """The best plan, and, where it was asked for, the best of another shape (stages, mesh, micro-batches, recomputation).

    second: None: no other shape was worked out.
    least_other_s: seconds that no plan of another shape goes below (kind ``theory``); infinite: no other shape can be planned; 0: not asked for.
    """

    plan: Plan
    second: Plan | None = None
    least_other_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """What is planned, whatever the shape, and who looks on."""

    model: str
    batch_size: int
    cluster: Cluster
    watch: Watch | None
    dry_run: DryRun | None


def search_plans(
    graph_of: Callable[[int], LogicalGraph],
    *,
    model: str,
    batch_size: int,
    cluster: Cluster,
    options: PlanOptions,
    watch: Watch | None = None,
    on_shape: ShapeWatch | None = None,
    dry_run: DryRun | None = None,
    runner_up: bool = False,
) -> FoundPlans:
    """Search stages, mesh and micro-batches where the options leave them open, then the layouts, and lower.

    Args:
        graph_of: micro-batches -> one step, traced at that micro-batch size.
        batch_size: samples per step.
        dry_run: plays a Plan to see what it holds; None: the planner's own, which is slow for long pipelines.
        on_shape: told of every shape that was looked at: (shape, best step in seconds so far, bound in seconds).
        runner_up: search on until the second is as certain as the first: no shape that is left can be better than it by more than the
            search's gap, unless ``options.seconds`` ended the search; ``least_other_s`` says what is proven.

    Raises:
        Unsupported, UnknownOp, DeadLock, OutOfMemory: with the way out.
    """
    job = _Job(model=model, batch_size=batch_size, cluster=cluster, watch=watch, dry_run=dry_run)
    if options.micro_batches is not None:
        graph_of(options.micro_batches)  # says which counts divide the batch
    check_options(options, cluster)
    if options.recompute is True:
        check_recompute(graph_of(options.micro_batches or 1))
    if options.stages is not None and options.micro_batches is not None:
        most = options.stages
    else:
        most = most_stages(graph_of(options.micro_batches or 1)) if not options.cuts else len(options.cuts) + 1
        most //= options.interleave
    open_shapes = shapes(
        batch_size,
        cluster,
        stages=(len(options.cuts) + 1) // options.interleave if options.cuts and options.stages is None else options.stages,
        mesh=options.mesh,
        micro_batches=options.micro_batches,
        most_stages=most,
        recompute=options.recompute is True,
    )
    try:
        if len(open_shapes) == 1:
            (shape,) = open_shapes
            return FoundPlans(plan=_one_shape(job, graph_of(shape.micro_batches), _fixed(options, shape)), least_other_s=inf)
        with collector_paused():
            return _best_plans(job, graph_of, open_shapes, options, on_shape, runner_up)
    except OutOfMemory as error:
        raise OutOfMemory(f"{error}; {_would_fit(graph_of, batch_size, cluster, options)}") from None


def _best_plans(
    job: _Job,
    graph_of: Callable[[int], LogicalGraph],
    candidates: Sequence[Shape],
    options: PlanOptions,
    on_shape: ShapeWatch | None,
    runner_up: bool,
) -> FoundPlans:
    plans: dict[Shape, Plan] = {}

    def work_out(shape: Shape, tight: bool) -> tuple[float, float]:
        fixed = replace(_fixed(options, shape), recompute=shape.recompute, seconds=options.seconds / 4)
        plans[shape] = _make(job, graph_of(shape.micro_batches), fixed, tight=tight, prices=partial(shares.prices, shape))
        return plans[shape].search.objective_s, plans[shape].search.lower_bound_s

    even = not options.cuts and options.balance is None and options.interleave == 1
    shares = Shares(graph_of, job.batch_size, job.cluster, parse_pins(options.pins), even)
    search = ShapeSearch(shares, work_out, recompute=options.recompute is None, gap=_SHAPE_GAP, on_progress=on_shape)
    other = None
    if runner_up:
        shape, bound_s, other = search.two_best(candidates, options.seconds)
    else:
        shape, bound_s = search.best(candidates, options.seconds)
    plan = plans[shape]
    plan = replace(plan, search=replace(plan.search, method=f"{plan.search.method}, shapes", lower_bound_s=bound_s))
    if other is None:
        return FoundPlans(plan=plan)
    return FoundPlans(plan=plan, second=None if other.shape is None else plans[other.shape], least_other_s=other.least_s)


def make_plan(
    graph: LogicalGraph,
    *,
    model: str,
    batch_size: int,
    cluster: Cluster,
    options: PlanOptions,
    watch: Watch | None = None,
    dry_run: DryRun | None = None,
) -> Plan:
    """Search the layouts of one shape and lower.

    Args:
        graph: one step at micro-batch size, traced for ``options.micro_batches``.
        batch_size: samples per step.

    Raises:
        Unsupported, UnknownOp, DeadLock, OutOfMemory: with the way out.
    """
    job = _Job(model=model, batch_size=batch_size, cluster=cluster, watch=watch, dry_run=dry_run)
    return _one_shape(job, graph, options)


def _one_shape(job: _Job, graph: LogicalGraph, options: PlanOptions) -> Plan:
    check_options(options, job.cluster)
    stages, micro_batches = options.stages or 1, options.micro_batches or 1
    if options.recompute is True:
        check_recompute(graph)
    mesh = options.mesh if options.mesh is not None else (job.cluster.num_devices // stages,)
    fixed = _fixed(options, Shape(stages, micro_batches, mesh))
    with collector_paused():
        try:
            return _make(job, graph, fixed)
        except OutOfMemory:
            if options.recompute is not None or options.method is not Method.EXACT:
                raise
            return _make(job, graph, replace(fixed, recompute=True))


def _fixed(options: PlanOptions, shape: Shape) -> PlanOptions:
    recompute = True if shape.recompute else options.recompute
    return replace(options, stages=shape.stages, micro_batches=shape.micro_batches, mesh=shape.mesh, recompute=recompute)


def _make(
    job: _Job,
    graph: LogicalGraph,
    options: PlanOptions,
    *,
    tight: bool = False,
    prices: Callable[[float], Sequence[float]] | None = None,
) -> Plan:
    """One shape.  tight: memory binds for certain.  prices: memory of a device -> about what a byte is worth, per stage."""
    cluster, dry_run = job.cluster, job.dry_run
    stages, micro_batches, mesh = options.stages, options.micro_batches, options.mesh
    assert stages is not None and micro_batches is not None and mesh is not None
    given = given_order(options)
    stage = assign_stages(graph, stages * options.interleave, options.cuts, balance=options.balance, micro_batches=micro_batches)
    staged = prepare(graph, stage, stages, recompute=options.recompute is True, interleave=options.interleave)
    recipe = Recipe(
        model=job.model,
        batch_size=job.batch_size,
        micro_batches=micro_batches,
        mesh=mesh,
        bucket_bytes=options.bucket_bytes,
        schedule=options.schedule,
        quotas=options.quotas,
        options=options.as_text() | {"graph": content_id(graph)},
        interleave=options.interleave,
        hold=options.hold,
        order=given,
    )
    pins, cost = parse_pins(options.pins), AnalyticCost(cluster)
    held = partial(in_flight, options.schedule, num_stages=stages, micro_batches=micro_batches)
    flight = [held(stage=s, interleave=options.interleave, hold=options.hold, order=given) for s in range(stages)]
    memory_bytes = cluster.device.memory_bytes
    bound_s, plan = 0.0, None
    model_of = partial(build_model, staged, mesh, cluster, pins, micro_batches, in_flight=flight, zero=options.zero)
    first_bytes = memory_bytes if prices is None else memory_bytes * (1 - _MARGIN)
    narrowing = Narrowing(memory_bytes, first_bytes, lambda: least_peak(searched.problem), first_bytes if tight else inf)
    searched = model_of(limit_bytes=narrowing.limit_bytes)
    for _ in range(_ATTEMPTS):
        limit_bytes = narrowing.limit_bytes
        if limit_bytes < inf and not searched.problem.demands:
            searched = model_of(limit_bytes=limit_bytes)
        try:
            assignment = assign_layouts(
                searched,
                method=options.method,
                seconds=options.seconds,
                watch=job.watch,
                limit_bytes=limit_bytes,
                memory_bytes=memory_bytes,
                s_per_byte=prices(limit_bytes) if prices is not None and limit_bytes < inf else (),
            )
        except OutOfMemory:
            if plan is None:
                raise
            if not narrowing.nothing_fits():
                break  # verify says what the last plan would need
            continue
        if assignment.regathered and options.schedule.has_order:
            raise Unsupported(
                f"memory binds so that parameters are gathered again for the backward part, which schedule {options.schedule.value} does not "
                f"order; ask for 1f1b or gpipe, or ZeRO level 2 at most"
            )
        bound_s = max(bound_s, assignment.lower_bound_s)
        # Layouts are chosen as if the pipeline were 1F1B; what another schedule saves is known to the simulator only.
        method = f"{assignment.method}, priced as 1f1b" if options.schedule.has_order else assignment.method
        plan = lower(staged, replace(assignment, method=method, lower_bound_s=min(bound_s, assignment.objective_s)), cluster, recipe)
        need_bytes = max(device_bytes(plan).values())
        if need_bytes > memory_bytes:
            need_bytes = max(_live(plan, cost, dry_run))
        if need_bytes <= memory_bytes or options.method is not Method.EXACT or not narrowing.too_large(need_bytes, assignment.held_bytes):
            break
    assert plan is not None
    verify(plan, dry_run)
    return plan


def _live(plan: Plan, cost: AnalyticCost, dry_run: DryRun | None) -> Sequence[int]:
    """Live bytes at the worst moment, with acts of equal length and with the cluster's prices."""
    if dry_run is not None:
        return [*dry_run(plan).values(), *dry_run(plan, cost).values()]
    return [*live_bytes(plan).values(), *live_bytes(plan, cost.folded_s(plan)).values()]


_ATTEMPTS = 6
_SHAPE_GAP = 0.01
_MARGIN = 0.03
"""Share of a device's memory that the first try leaves for what the search does not count."""


def _would_fit(graph_of: Callable[[int], LogicalGraph], batch_size: int, cluster: Cluster, options: PlanOptions) -> str:
    """The smallest multiple of the cluster, by doubling, on which some shape holds no more than the devices have."""
    nodes = cluster.num_nodes
    nic = cluster.nic if cluster.nic is not None else cluster.node
    pins = parse_pins(options.pins)
    for _ in range(_DOUBLINGS):
        nodes *= 2
        larger = replace(cluster, num_nodes=nodes, nic=nic)
        wished = shapes(batch_size, larger, micro_batches=options.micro_batches, stages=1)
        shares = Shares(graph_of, batch_size, larger, pins)
        for shape in wished[:: max(1, len(wished) // 4)]:
            try:
                needed = shares.of(shape).smallest.held_bytes
            except Unsupported:
                continue
            if needed <= cluster.device.memory_bytes:
                return f"the states alone would fit on {nodes} such nodes ({larger.num_devices} devices, mesh {by(shape.mesh)})"
    return f"not even {nodes} such nodes would do: use devices with more memory"


_DOUBLINGS = 5
