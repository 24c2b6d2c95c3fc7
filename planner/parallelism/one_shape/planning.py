"""The Plan of one shape.  Where memory binds, layouts are searched within lower limits until the Plan fits:

stages --> search within a limit --> lower --> bytes needed --fit--> Plan
                    ^                               |
                    '------- the next limit <-------'        (planner.parallelism.one_shape.narrow)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from math import inf

from planner.ir.actors.verify import verify
from planner.ir.errors import OutOfMemory, Unsupported
from planner.ir.graph import LogicalGraph
from planner.ir.plan import Plan
from planner.lower.build import Recipe
from planner.parallelism.memory import Decided
from planner.parallelism.one_shape.closer import CloserBound, LaterBounds, OtherBound
from planner.parallelism.one_shape.job import Job, in_flight_of, recipe_of
from planner.parallelism.one_shape.lowered import lowered
from planner.parallelism.one_shape.narrow import LimitSearch
from planner.parallelism.one_shape.needed import NeededBytes
from planner.parallelism.one_shape.staged import learn_staged, staged_once
from planner.parallelism.options import PlanOptions
from planner.search import Assignment, FoundLayouts, Method, build_model, find_layouts
from planner.search.assign import is_long
from planner.search.bounds.bottleneck import whole_model_bounds
from planner.search.bounds.end_stages import end_stage_bounds
from planner.search.bounds.guided import CLOSE
from planner.search.bounds.pieces import stage_part
from planner.search.formulation import repriced
from planner.search.literals import Differs, with_factors_of
from planner.search.model import SearchModel, Standing, Taken
from planner.search.pins import parse_pins
from planner.solve.limited.memory import least_peak
from planner.solve.problem import NotFoundInTime
from planner.solve.time_limit import TimeLimit

__all__ = ["UNPROVEN", "bound_one_shape", "plan_one_shape"]

_ATTEMPTS = 6
_SAME = 1e-9
"""Relative difference up to which two steps are one."""
UNPROVEN = "no plan that was tried fits, which is no proof that none does"
"""What a refusal says where a few plans of a shape were tried; where bounds refuse a shape, they prove that none fits."""
_LEAST_GAP = 5e-3
"""Share by which the least peak of a long model may be bounded too low: its exact one takes longer than a try (Llama-3 405B, 16 stages: 35 s)."""
_FEW = 4
"""Stages of which the first and the last are so large a part that they are not bounded by themselves: less."""
_MARGIN = 0.03
"""Share of a device's memory that the first attempt leaves free if memory binds; the search does not count all that a Plan holds."""


def plan_one_shape(
    job: Job,
    graph: LogicalGraph,
    options: PlanOptions,
    *,
    memory_binds: bool = False,
    s_per_byte: Callable[[float], Sequence[float]] | None = None,
    time_limit: TimeLimit | None = None,
    traced: Callable[[], LogicalGraph] | None = None,
    other: OtherBound | None = None,
) -> Plan:
    """Cut into stages, choose layouts, lower and verify.

    Args:
        graph: only its sizes matter if ``traced`` is given, which gives the graph that is lowered, when it is asked for.
        options: with stages, mesh and micro-batches.
        memory_binds: it is known that the layouts of a search without limit do not fit.
        s_per_byte: memory of a device in bytes -> per stage, the approximate price of one byte (ShapeBounds.s_per_byte).
        time_limit: of all tries together; None: the options' seconds from now on.
        other: of a long model whose bound takes as long as its layouts; None: there is none.

    Raises:
        Unsupported, UnknownOp, DeadLock, OutOfMemory: with the way out.   NotFoundInTime: no Plan was found in time.
    """
    limit = TimeLimit(options.seconds) if time_limit is None else time_limit
    try:
        planner = _ShapePlanner(job, graph, options, memory_binds, s_per_byte, limit, traced, other)
        try:
            plan = planner.plan()
        except Differs:
            assert traced is not None
            planner = _ShapePlanner(job, traced(), options, memory_binds, s_per_byte, limit, other=other)
            plan = planner.plan()
    except OutOfMemory as error:  # only a few limits are tried, since boxing buffers and blocks between acts are known of a Plan alone
        raise OutOfMemory(f"{error}; {UNPROVEN}") from None
    return plan


def bound_one_shape(
    job: Job,
    graph: LogicalGraph,
    options: PlanOptions,
    *,
    memory_binds: bool,
    s_per_byte: Callable[[float], Sequence[float]],
    only_ends: bool,
    time_limit: TimeLimit,
) -> Iterator[float]:
    """Rising lower bounds on the step of all plans of one shape in seconds; arguments as in plan_one_shape.

    Args:
        graph: only its sizes matter.
        only_ends: from the first and the last stage, which takes a fraction of the time that the whole model does.

    Raises:
        Unsupported, UnknownOp: the shape cannot be planned.   NotFoundInTime: nothing more is known in time.
    """
    planner = _ShapePlanner(job, graph, options, memory_binds, s_per_byte, time_limit)
    yield from planner.ends_s() if only_ends else planner.least_s()


class _ShapePlanner:
    def __init__(
        self,
        job: Job,
        graph: LogicalGraph,
        options: PlanOptions,
        memory_binds: bool,
        s_per_byte: Callable[[float], Sequence[float]] | None,
        time_limit: TimeLimit,
        traced: Callable[[], LogicalGraph] | None = None,
        other: OtherBound | None = None,
    ) -> None:
        self._graph, self._traced = graph, traced
        self._job, self._options, self._s_per_byte, self._time_limit = job, options, s_per_byte, time_limit
        self._memory_bytes = job.cluster.device.memory_bytes
        self._needed = NeededBytes(job)
        self._decided_last: Decided | None = None
        self._standing_fits = True
        """The Plan of the earlier choice was not found to be too large."""
        self._later = LaterBounds(other, time_limit, job.watch)
        self._recipe = recipe_of(job, graph, options)
        self._staged = staged_once(graph, options, job.cluster, job.memory)
        first_bytes = self._memory_bytes * (1 - _MARGIN) if memory_binds or s_per_byte is not None else self._memory_bytes
        self._limits = LimitSearch(self._memory_bytes, first_bytes, first_bytes if memory_binds else inf)
        self._tools = job.memory.tools(job.cluster, self._recipe.mesh)
        self._model_of = partial(
            build_model,
            mesh=self._recipe.mesh,
            cluster=job.cluster,
            micro_batches=self._recipe.micro_batches,
            zero=options.zero,
            context=options.context,
            load=options.load,
            tools=self._tools,
        )

    @cached_property
    def _model(self) -> SearchModel:
        """The choice problem; it has demands if the limit is finite, or a finite one was asked for (``_search``)."""
        return self._model_within(self._limits.limit_bytes)

    def _model_within(self, limit_bytes: float) -> SearchModel:
        before = [d.taken.model for d in self._job.memory.decided_for(self._staged) if d.recipe == self._recipe]
        is_limited = [model for model in before if bool(model.problem.demands) == (limit_bytes < inf)]
        again = (repriced(model, self._tools, limit_bytes) for model in is_limited)
        if (known := next((model for model in again if model is not None), None)) is not None:
            return known
        flight = in_flight_of(self._recipe, self._staged.num_stages)
        return self._model_of(self._staged, pins=parse_pins(self._options.pins), in_flight=flight, limit_bytes=limit_bytes)

    def plan(self) -> Plan:
        """The first Plan that fits, verified, and no second process left behind."""
        try:
            plan, decided = self._plan(), self._decided_last
        finally:
            self._later.stop()
        if decided is not None:
            self._job.memory.decide(replace(decided, live_bytes=self._needed.played(plan)))
        return plan

    def _plan(self) -> Plan:
        """The first Plan that fits, verified.

        Raises:
            OutOfMemory: no layout fits the first limit, or the last Plan does not.   NotFoundInTime: none that fits was found in time.
            Differs: the graph that was traced has other sizes than the one that was searched.
        """
        if (kept := self._kept()) is not None:
            return kept
        plan, bound_s = None, 0.0
        for _ in range(_ATTEMPTS):
            try:
                found = self._search(self._limits.limit_bytes)
            except OutOfMemory:
                if plan is None:
                    raise
                if not self._limits.raise_limit():
                    break
                continue
            except NotFoundInTime as error:
                if plan is None:
                    raise
                raise NotFoundInTime(
                    f"the time, {self._time_limit.seconds:.3g} s, was up before layouts were found of which all bytes fit: the plan found first needs "
                    f"{self._needed_bytes(plan) / 1e9:.3g} GB of a device's {self._memory_bytes / 1e9:.3g} GB; give more seconds",
                    error.lower_bound,
                ) from None
            bound_s = max(bound_s, min(found.bound_s, found.objective_s))
            if (standing := self._standing_instead(found)) is not None:
                plan, assignment = self._planned(standing, bound_s)
                if self._needed_bytes(plan) <= self._memory_bytes:
                    break
                self._standing_fits = False
            plan, assignment = self._planned(found, bound_s)
            if self._is_final(plan, assignment):
                break
        assert plan is not None
        self._verify(plan)
        return plan if self._later.closer is None else self._proven(plan, self._later.closer)

    def _kept(self) -> Plan | None:
        """The Plan of an earlier choice that is as close to the best as a search would come; None: there is none, or it is not known in one round."""
        other, standing = self._later.other, self._standing()
        if other is None or standing is None or not standing.multipliers or not self._is_bounded_later:
            return None
        if not replace(self._model.problem, limit=self._memory_bytes).feasible(standing.choice):
            return None
        found = FoundLayouts.standing(self._model, standing, self._memory_bytes)
        other.found(found.objective_s)
        closest = found.bounded_by_bottleneck(self._time_limit, watch=self._job.watch, gap=CLOSE, rounds=1)
        if closest.bound_s < found.objective_s * (1 - CLOSE):
            return None
        plan = self._lowered(found, self._decided(found), closest.bound_s)
        self._standing_fits = self._needed_bytes(plan) <= self._memory_bytes
        if not self._standing_fits:
            return None
        self._verify(plan)
        if self._job.prove is not None:
            self._job.prove(plan)  # while the second process works
        return plan

    def _standing_instead(self, found: FoundLayouts) -> FoundLayouts | None:
        """The earlier choice, where it costs no more than the one found and may fit; a search within less than the memory may not have looked at it."""
        standing = self._standing() if self._standing_fits else None
        if standing is None or not replace(found.model.problem, limit=self._memory_bytes).feasible(standing.choice):
            return None
        step_s = found.model.step_s(standing.choice)
        return None if step_s > found.objective_s * (1 + _SAME) else replace(found, choice=standing.choice, objective_s=step_s)

    def _planned(self, found: FoundLayouts, bound_s: float) -> tuple[Plan, Assignment]:
        """The Plan of a choice, lowered but not verified."""
        if self._is_bounded_later:
            found = self._later.of(found)
        assignment = self._decided(found)
        self._later.look()
        plan = self._lowered(found, assignment, max(bound_s, assignment.lower_bound_s))
        self._later.look()
        return plan, assignment

    def _verify(self, plan: Plan) -> None:
        verify(plan, None if self._job.dry_run is None else self._needed.live)

    @property
    def _is_bounded_later(self) -> bool:
        return self._options.method is Method.EXACT and self._staged.num_stages > 1 and is_long(self._model.problem)

    def _proven(self, plan: Plan, closer: CloserBound) -> Plan:
        """The Plan with a bound from elsewhere, or, where that leaves too much open, with that of the slowest stages, or a quicker Plan."""
        found, bound_s, other = closer.found, plan.search.lower_bound_s, self._later.other
        if other is not None:
            try:
                if self._job.prove is not None:
                    self._job.prove(plan)  # meanwhile
                bound_s = max(bound_s, other.bound_s())
            except KeyboardInterrupt:
                if self._job.watch is None:
                    raise  # without a watch, the caller handles the interrupt
                return plan
        if other is None or bound_s < found.objective_s * (1 - other.gap):
            closest = closer.result() if other is None else closer.result(other.meanwhile)
            bound_s = max(bound_s, closest.bound_s)
            if closest.objective_s < found.objective_s:
                decided = self._decided_last
                with suppress(OutOfMemory):
                    quicker = self._lowered(closest, self._decided(closest), bound_s)
                    self._verify(quicker)
                    return quicker
                self._decided_last = decided
        return replace(plan, search=replace(plan.search, lower_bound_s=min(bound_s, found.objective_s)))

    def least_s(self) -> Iterator[float]:
        """Rising lower bounds on the step of all plans of the shape, in seconds."""
        limit_bytes = self._limits.limit_bytes
        multipliers = self._multipliers(limit_bytes) or (0.0,) * self._staged.num_stages * bool(self._model.problem.demands)
        return whole_model_bounds(self._model, s_per_byte=multipliers, memory_bytes=self._memory_bytes, time_limit=self._time_limit)

    def ends_s(self) -> Iterator[float]:
        """Rising lower bounds from stages by themselves; none where these are a large part of the model, or differ in more than what lies on them.

        What lies on a stage says what it takes where the cluster has one kind of device, no names are pinned, all stages of a device follow each
        other, and none holds more micro-batches than the one before.
        """
        stages, options = self._staged.num_stages, self._options
        flight = in_flight_of(self._recipe, stages)
        is_other = options.interleave > 1 or options.load is not None or options.pins or flight != sorted(flight, reverse=True)
        if stages < _FEW or self._recipe.micro_batches < 2 or is_other:
            return iter(())

        def model_of(stage: int) -> SearchModel:
            part = stage_part(self._staged, stage)
            return self._model_of(part, pins=(), in_flight=flight[stage : stage + 1], limit_bytes=self._memory_bytes)

        return end_stage_bounds(self._staged, model_of, self._memory_bytes, self._time_limit)

    def _search(self, limit_bytes: float) -> FoundLayouts:
        """Layouts that hold no more than the limit; the first finite limit adds memory demands to the problem."""
        if limit_bytes < inf and not self._model.problem.demands:
            self._model = self._model_within(limit_bytes)
        standing = self._standing()
        if standing is not None and self._is_bounded_later:
            self._later.begin(FoundLayouts.standing(self._model, standing, self._memory_bytes))
        return find_layouts(
            self._model,
            method=self._options.method,
            time_limit=self._time_limit,
            watch=self._job.watch,
            limit_bytes=limit_bytes,
            memory_bytes=self._memory_bytes,
            s_per_byte=self._multipliers(limit_bytes),
            by_bottleneck=not is_long(self._model.problem),
            standing=standing if is_long(self._model.problem) else None,
        )

    def _standing(self) -> Standing | None:
        """An earlier choice for this shape: the one given with the job, else, for a long model, the latest in the memory; None: there is none."""
        model = self._model
        if self._job.standing is not None:
            return self._job.standing(model)
        if not is_long(model.problem):
            return None
        taken = [d.taken for d in self._job.memory.decided_for(self._staged) if d.recipe == self._recipe]
        return next((Standing(one.choice, one.multipliers) for one in taken if model.has_choices_of(one.model)), None)

    def _decided(self, found: FoundLayouts) -> Assignment:
        """The layouts and routes of a choice, as lowering takes them.   Raises Unsupported: the schedule cannot order it."""
        before = next(self._job.memory.decided_for(self._staged), None)
        assignment = found.assignment(None if before is None else before.taken)
        if assignment.regathered and self._options.schedule.has_order:
            raise Unsupported(
                f"memory binds so that parameters are gathered again for the backward part, which schedule {self._options.schedule.value} does "
                f"not order; ask for 1f1b or gpipe, or ZeRO level 2 at most"
            )
        return assignment

    def _multipliers(self, limit_bytes: float) -> Sequence[float]:
        """Per stage an estimate of what a byte costs there, from the pieces; empty: memory does not bind, or the search needs none."""
        if self._s_per_byte is None or limit_bytes == inf or is_long(self._model.problem):
            return ()
        return self._s_per_byte(limit_bytes)

    def _least_bytes(self) -> float:
        return least_peak(self._model.problem, self._time_limit, gap=_LEAST_GAP if is_long(self._model.problem) else 0.0)

    def _lowered(self, found: FoundLayouts, assignment: Assignment, bound_s: float) -> Plan:
        # Layouts are chosen as if the pipeline were 1F1B; what another schedule saves is known to the simulator only.
        method = f"{assignment.method}, priced as 1f1b" if self._options.schedule.has_order else assignment.method
        if self._options.load is not None:
            method = f"{method}, experts at quantile {self._options.load.quantile:g} of {self._options.load}"
        proven = replace(assignment, method=method, lower_bound_s=min(bound_s, assignment.objective_s))
        model, laid, recipe = self._to_lower(found.model, proven)
        plan = lowered(self._job, model.staged, laid, recipe)
        taken = Taken(model=model, choice=found.choice, assignment=laid, multipliers=found.multipliers)
        self._decided_last = Decided(plan=plan, recipe=recipe, taken=taken)
        return plan

    def _to_lower(self, model: SearchModel, assignment: Assignment) -> tuple[SearchModel, Assignment, Recipe]:
        """What is lowered, of the graph that was traced, where another one was searched."""
        if self._traced is None:
            return model, assignment, self._recipe
        graph, recipe = self._traced_recipe
        job, options = self._job, self._options
        model, laid = with_factors_of(graph, self._graph, model, assignment, job.memory.tools(job.cluster, recipe.mesh).strategies)
        learn_staged(graph, options, job.cluster, job.memory, model.staged)
        return model, laid, recipe

    @cached_property
    def _traced_recipe(self) -> tuple[LogicalGraph, Recipe]:
        assert self._traced is not None
        graph = self._traced()
        return graph, recipe_of(self._job, graph, self._options)

    def _is_final(self, plan: Plan, assignment: Assignment) -> bool:
        """Whether the Plan fits, or no lower limit is left to try."""
        needed_bytes = self._needed_bytes(plan)
        if needed_bytes <= self._memory_bytes or self._options.method is not Method.EXACT:
            return True
        return not self._limits.lower_limit(needed_bytes, assignment.held_bytes, self._least_bytes)

    def _needed_bytes(self, plan: Plan) -> int:
        return self._needed.of(plan)
