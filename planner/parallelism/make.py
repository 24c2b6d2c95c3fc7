"""From a logical graph and a cluster to a verified Plan: stages, layouts, lowering."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from time import perf_counter

from planner.ir.cluster import Cluster
from planner.ir.collector import collector_paused
from planner.ir.errors import Cancelled, OutOfMemory, Unsupported
from planner.ir.graph import LogicalGraph
from planner.ir.plan import Plan
from planner.ir.protocols import DryRun
from planner.parallelism.bounding import Ahead, BoundKind, SecondTrace, TracedBeside, WholeBounds
from planner.parallelism.bounds import ShapeBounds
from planner.parallelism.kinds import best_of_kinds, least_step_s
from planner.parallelism.memory import SearchMemory
from planner.parallelism.one_shape import Job, OtherBound, bound_one_shape, is_known, plan_one_shape
from planner.parallelism.options import SHARES, PlanOptions, check_options, of_shape, of_shape_alone
from planner.parallelism.proof import SearchCutShort, check_search, with_open_parts
from planner.parallelism.proof.would_fit import would_fit
from planner.parallelism.proven import ProvenShapes, proven_on
from planner.parallelism.replicated import Replicated, refuse_ops_without_rule, replicated_work
from planner.parallelism.shape import Shape, most_stages, shapes
from planner.parallelism.shape_search import RunnerUp, ShapeSearch, ShapeWatch
from planner.parallelism.unsplit import ZeroUnmet, check_zero
from planner.search import Method
from planner.search.model import SearchModel, Standing
from planner.search.pins import parse_pins
from planner.solve.problem import NotFoundInTime, Watch
from planner.solve.time_limit import Cancel, Clock, TimeLimit
from planner.stages import assign_stages, check_recompute
from planner.stages.recompute import recompute_of
from planner.stages.recompute.asked import BLOCKS, SELECTIVE

__all__ = ["FoundPlans", "PlanOptions", "make_plan", "search_plans"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPlans:
    """The best plan, and, where it was asked for, the best of another shape (stages, mesh, micro-batches, recomputation).

    second: None if no other shape was worked out.
    next_best: the best of the other shapes that were worked out on the way; nothing is proven of it.
    least_other_s: a lower bound in seconds on every plan of another of the shapes searched over (kind ``theory``; proof.covered_text says
        which they are); infinite: no other of them can be planned; 0: not asked for.
    """

    plan: Plan
    second: Plan | None = None
    next_best: Plan | None = None
    least_other_s: float = 0.0


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
    cancel: Cancel | None = None,
    memory: SearchMemory | None = None,
    second: SecondTrace | None = None,
    prove: Callable[[Plan], None] | None = None,
) -> FoundPlans:
    """Search stages, mesh and micro-batches where the options leave them open, then the layouts, and lower.

    Args:
        graph_of: micro-batches -> one step, traced at that micro-batch size.
        batch_size: samples per step.
        dry_run: plays a Plan and returns the bytes that it holds; None: the planner plays it itself, which is slow for long pipelines.
        on_shape: called with (shape, best step so far in seconds, bound in seconds) whenever a shape was bounded or worked out.
        runner_up: also find the second best shape: the search goes on until no other shape can be better than it by more than the
            search's gap, or ``options.seconds`` are over; ``least_other_s`` is what is proven.
        cancel: ends the search from outside, with the best plan so far.
        memory: what searches of the same program have worked out, which changes no result.
        second: how a second process may trace at the second size that a search over sizes needs; None: none may.  It is worth it for a large
            model.
        prove: raises unless a Plan computes its program; called with a Plan that may be the best while a second process goes on with bounds.

    Raises:
        Unsupported, UnknownOp, DeadLock, OutOfMemory: with the way out.   Cancelled: before there was a plan.
    """
    kept = SearchMemory() if memory is None else memory
    time_limit = TimeLimit(options.seconds, perf_counter if cancel is None else cancel)
    job = Job(model=model, batch_size=batch_size, cluster=cluster, watch=watch, dry_run=dry_run, memory=kept, prove=prove)
    size = max(options.stages or 1, 2)
    if second is None or options.micro_batches is not None or cluster.parts or batch_size % size:
        return _searched(job, graph_of, options, time_limit, on_shape, runner_up)
    asked = tuple(again for again in (options.again, *options.again_if_unfit) if again in ("", BLOCKS))
    traced = TracedBeside(
        graph_of=graph_of,
        second=second,
        known_of=lambda graph: kept.of_graph(graph, asked, cluster),
        learn=lambda known: kept.learn(known, cluster),
        size=size,
        is_cancelled=lambda: time_limit.is_cancelled,
    )
    with traced.started() as graphs:
        return _searched(job, graphs, options, time_limit, on_shape, runner_up, traced)


def _searched(
    job: Job,
    graph_of: Callable[[int], LogicalGraph],
    options: PlanOptions,
    time_limit: TimeLimit,
    on_shape: ShapeWatch | None,
    runner_up: bool,
    traced: TracedBeside | None = None,
) -> FoundPlans:
    batch_size, cluster = job.batch_size, job.cluster
    if options.micro_batches is not None:
        graph_of(options.micro_batches)  # says which counts divide the batch
    check_options(options, cluster)
    if options.strict:
        refuse_ops_without_rule(graph_of(options.micro_batches or 1))
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
        recompute=options.again,
    )
    try:
        if len(open_shapes) == 1:
            (shape,) = open_shapes
            plans = FoundPlans(
                plan=_one_shape(job, graph_of(shape.micro_batches), of_shape(options, shape), time_limit.clock), least_other_s=inf
            )
        else:
            with collector_paused():
                plans = _best_plans(job, graph_of, open_shapes, options, time_limit, on_shape, runner_up, traced)
    except NotFoundInTime:
        if not time_limit.is_cancelled:
            raise
        raise Cancelled(f"the search was cancelled after {time_limit.elapsed_s():.3g} s, before it had a plan; let it run longer") from None
    except OutOfMemory as error:
        raise OutOfMemory(f"{error}; {would_fit(graph_of, batch_size, cluster, options, time_limit)}") from None
    made = plans.plan.micro_batches
    if (work := replicated_work(graph_of(made), made)) is not None:
        warnings.warn(str(work), Replicated, stacklevel=4)
    if options.zero and (unmet := check_zero(plans.plan, options.zero)) is not None:
        warnings.warn(str(unmet), ZeroUnmet, stacklevel=4)
    share = 1.0 if len(open_shapes) == 1 else _SHARE_OF_A_SHAPE
    cut = check_search(plans.plan.search, options.seconds, time_limit.elapsed_s(), share=share)
    if cut is not None and options.method is Method.EXACT:
        warnings.warn(str(cut), SearchCutShort, stacklevel=4)
    return plans


def _best_plans(
    job: Job,
    graph_of: Callable[[int], LogicalGraph],
    candidates: Sequence[Shape],
    options: PlanOptions,
    time_limit: TimeLimit,
    on_shape: ShapeWatch | None,
    runner_up: bool,
    traced: TracedBeside | None,
) -> FoundPlans:
    bounds = _bounds(job, graph_of, options, time_limit)
    plans: dict[Shape, Plan] = {}
    aheads: list[Ahead] = []

    def ahead_of(shape_bounds: ShapeBounds, whole: WholeBounds, every: Sequence[Shape]) -> Ahead:
        trace_there = None if traced is None else lambda size: traced.trace_there(size, bounds.scaled_graph(size))
        aheads.append(Ahead(shape_bounds, whole, every, trace_there=trace_there))
        return aheads[-1]

    def graphs_of(shape: Shape) -> tuple[LogicalGraph, Callable[[], LogicalGraph] | None]:
        """The graph to search, and, if it is a scaled one, what gives the graph to lower, which a second process traces meanwhile."""
        size, by_price = shape.micro_batches, shape.recompute not in ("", BLOCKS)
        scaled = None if traced is None or by_price or traced.is_here(size) else bounds.scaled_graph(size)
        if traced is None or scaled is None or not aheads[-1].ask_for_trace(size):
            return graph_of(size), None

        def received() -> LogicalGraph:
            graph, graph_id = traced.received(size, aheads[-1].trace(size), scaled)
            if graph_id is not None:
                job.memory.learn_id(graph, graph_id)
            job.memory.learn_pieces(graph, job.memory.again(graph, shape.recompute, job.cluster).ops, bounds.pieces_of(shape))
            return graph

        return scaled, received

    def end_stages_s(shape: Shape, memory_binds: bool) -> float:
        return max((found.bound_s for found in aheads[-1].closer(shape, BoundKind.WITHIN_MEMORY, memory_binds)), default=0.0)

    def before(shape: Shape) -> bool:
        """Ask for the trace; whether the second process is to bound the end stages: not of a shape whose slowest stages are known (LaterBounds)."""
        return not is_known(job, graphs_of(shape)[0], of_shape_alone(options, shape))

    def known_ends_s(shape: Shape) -> float | None:
        known = aheads[-1].known(shape, BoundKind.WITHIN_MEMORY)
        return None if known is None else max((found.bound_s for found in known), default=0.0)

    def other_bound(shape: Shape, graph: LogicalGraph, memory_binds: bool) -> OtherBound:
        other, ahead = OtherBound(bound_s=lambda: 0.0, gap=_SHAPE_GAP, known_s=lambda: 0.0, meanwhile=aheads[-1].bound_next), aheads[-1]
        if not runner_up:
            other = replace(other, found=lambda step_s: ahead.tell_enough(step_s * (1 - _SHAPE_GAP)))
        if is_known(job, graph, of_shape_alone(options, shape)):
            return other
        return replace(other, bound_s=partial(end_stages_s, shape, memory_binds), known_s=partial(known_ends_s, shape))

    def work_out(shape: Shape, memory_binds: bool) -> tuple[float, float]:
        fixed = of_shape_alone(options, shape)
        share_s = options.seconds * _SHARE_OF_A_SHAPE
        # Once the time is up, shapes are worked out until one is, each for its share, so that there is a plan.
        is_up = time_limit.is_up()
        limit = TimeLimit(share_s, time_limit.clock) if is_up else time_limit.part(share_s)
        graph, lowered = (graph_of(shape.micro_batches), None) if is_up else graphs_of(shape)
        if is_up and not memory_binds:  # whether it binds was not found in time
            memory_binds = _surely_binds(job, graph, fixed, limit)
        plan = plan_one_shape(
            job,
            graph,
            fixed,
            memory_binds=memory_binds,
            s_per_byte=partial(bounds.s_per_byte, shape),
            time_limit=limit,
            traced=lowered,
            other=None if is_up or not aheads else other_bound(shape, graph, memory_binds),
        )
        plans[shape] = plan
        return plan.search.objective_s, plan.search.lower_bound_s

    def bound_whole(shape: Shape, memory_binds: bool, kind: BoundKind) -> Iterator[float]:
        fixed = of_shape_alone(options, shape)
        part, s_per_byte = time_limit.part(options.seconds * _SHARE_OF_A_SHAPE), partial(bounds.s_per_byte, shape)
        graph = bounds.graph_for_prices(shape.micro_batches)
        ends = kind is BoundKind.END_STAGES
        return bound_one_shape(job, graph, fixed, memory_binds=memory_binds, s_per_byte=s_per_byte, only_ends=ends, time_limit=part)

    if job.cluster.parts:
        given_up: dict[Shape, float] = {}
        shape, bound_s = best_of_kinds(
            candidates,
            lambda shape: least_step_s(graph_of(shape.micro_batches), job.cluster, shape),
            work_out,
            recompute=options.again_if_unfit,
            gap=_SHAPE_GAP,
            time_limit=time_limit,
            given_up=given_up,
        )
        return _found(plans, shape, bound_s, options, given_up)
    first = graph_of(options.micro_batches or 1)
    asked = job.memory.number(first), job.batch_size, replace(options, seconds=inf)  # a bound that the time ended holds, too
    earlier = job.memory.bounds_of(asked) if len(first.ops) > _LONG else ()
    known = proven_on(job.cluster, earlier)
    bounds.known_s_per_byte = {shape: proven.s_per_byte for shape, proven in known.items()}
    search = ShapeSearch(
        bounds,
        work_out,
        recompute=options.again_if_unfit,
        gap=_SHAPE_GAP,
        bound_whole=bound_whole if options.method is Method.EXACT else None,
        on_progress=on_shape,
        before=before,
        ahead=ahead_of,
        known=known,
        first=earlier[-1].best if earlier and earlier[-1].best in known else None,
    )
    other = None
    if runner_up:
        shape, bound_s, other = search.two_best(candidates)
    else:
        shape, bound_s = search.best(candidates)
    enough_s = plans[shape].search.objective_s * (1 - _SHAPE_GAP)
    job.memory.keep_bounds(ProvenShapes(asked=asked, cluster=job.cluster, best=shape, enough_s=enough_s, bounds=search.known))
    return _found(plans, shape, bound_s, options, search.given_up, other)


def _found(
    plans: Mapping[Shape, Plan],
    shape: Shape,
    bound_s: float,
    options: PlanOptions,
    given_up: Mapping[Shape, float],
    other: RunnerUp | None = None,
) -> FoundPlans:
    plan = plans[shape]
    proven = replace(plan.search, method=f"{plan.search.method}, shapes", lower_bound_s=bound_s)
    left_out = [str(unfit) for unfit, least_s in given_up.items() if least_s < bound_s]
    plan = with_open_parts(replace(plan, search=proven), options, left_out)
    others = sorted((made for key, made in plans.items() if key != shape), key=lambda made: made.search.objective_s)
    next_best = others[0] if others else None
    if other is None:
        return FoundPlans(plan=plan, next_best=next_best)
    return FoundPlans(
        plan=plan, next_best=next_best, second=None if other.shape is None else plans[other.shape], least_other_s=other.least_s
    )


def make_plan(
    graph: LogicalGraph,
    *,
    model: str,
    batch_size: int,
    cluster: Cluster,
    options: PlanOptions,
    watch: Watch | None = None,
    dry_run: DryRun | None = None,
    memory: SearchMemory | None = None,
    standing: Callable[[SearchModel], Standing | None] | None = None,
) -> Plan:
    """Search the layouts of one shape and lower.

    Args:
        graph: one step at micro-batch size, traced for ``options.micro_batches``.
        batch_size: samples per step.   memory: as in search_plans.
        standing: a choice problem -> an earlier choice of its strategies, which is taken where it costs no more than what the search finds;
            None: there is none.

    Raises:
        Unsupported, UnknownOp, DeadLock, OutOfMemory: with the way out.
    """
    if options.strict:
        refuse_ops_without_rule(graph)
    kept = SearchMemory() if memory is None else memory
    job = Job(model=model, batch_size=batch_size, cluster=cluster, watch=watch, dry_run=dry_run, memory=kept, standing=standing)
    return _one_shape(job, graph, options)


def _one_shape(job: Job, graph: LogicalGraph, options: PlanOptions, clock: Clock = perf_counter) -> Plan:
    check_options(options, job.cluster)
    stages, micro_batches = options.stages or 1, options.micro_batches or 1
    if options.recompute is True:
        check_recompute(graph)
    mesh = options.mesh if options.mesh is not None else (job.cluster.num_devices // stages,)
    fixed = of_shape(options, Shape(stages, micro_batches, mesh))
    again = options.again_if_unfit if options.method is Method.EXACT else ()
    with collector_paused():
        limit = TimeLimit(options.seconds, clock)
        asked, unfit = [fixed, *(replace(fixed, recompute=recompute_of(recompute)) for recompute in again)], None
        for one in asked:
            try:
                return plan_one_shape(job, graph, one, memory_binds=_surely_binds(job, graph, one, limit), time_limit=limit)
            except OutOfMemory as error:
                unfit = error
            except Unsupported:  # so little cannot be kept
                if one.recompute not in SHARES or options.recompute != SELECTIVE:
                    raise
    assert unfit is not None
    raise unfit


def _bounds(job: Job, graph_of: Callable[[int], LogicalGraph], options: PlanOptions, time_limit: TimeLimit) -> ShapeBounds:
    even = not options.cuts and options.balance is None and options.interleave == 1
    even = even and options.hold is None and not options.order  # these may hold fewer micro-batches on the first stage than 1F1B does
    stages_of = partial(_stages_of, options)
    return ShapeBounds(graph_of, job.batch_size, job.cluster, parse_pins(options.pins), even, time_limit, job.memory, stages_of)


def _surely_binds(job: Job, graph: LogicalGraph, options: PlanOptions, time_limit: TimeLimit) -> bool:
    """Whether the quickest layouts of a long model exceed a device's memory, as its blocks show; the search without a memory limit is skipped then.

    False: they do not, or it is not asked: short models, other methods than exact, several kinds of device.
    """
    if options.method is not Method.EXACT or job.cluster.parts or len(graph.ops) <= _LONG:
        return False
    assert options.stages is not None and options.micro_batches is not None and options.mesh is not None
    shape = Shape(options.stages, options.micro_batches, options.mesh, options.again)
    try:
        return _bounds(job, lambda _: graph, options, time_limit).of(shape).cheapest.held_bytes > job.cluster.device.memory_bytes
    except (NotFoundInTime, Unsupported):
        return False


def _stages_of(options: PlanOptions, graph: LogicalGraph, shape: Shape) -> Mapping[str, int]:
    """The stage of every op in a shape's own cut, where devices are of one kind."""
    number = shape.stages * options.interleave
    return assign_stages(graph, number, options.cuts, balance=options.balance, micro_batches=shape.micro_batches)


_LONG = 5_000
"""Ops of a graph from which a search without a limit takes longer than its blocks alone do.

GPT-3, 15,238 ops: with the Plan that does not fit 6.6 s, and 1.2 s."""
_SHAPE_GAP = 0.01
_SHARE_OF_A_SHAPE = 0.25
"""Of the seconds of a search over shapes, for the layouts of one of them."""
