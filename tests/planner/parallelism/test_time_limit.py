"""The search over shapes under a clock of the test's: what is bounded in time holds for every plan, what is not is not begun."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from math import inf
from typing import Any

import pytest

import regista
from planner.ir.cluster import Cluster
from planner.ir.errors import Cancelled
from planner.ir.graph import LogicalGraph
from planner.ir.plan import Plan
from planner.parallelism.bounding import Ahead, BoundKind, Closer, Entry
from planner.parallelism.bounds import ShapeBounds
from planner.parallelism.one_shape import Job, plan_one_shape
from planner.parallelism.one_shape.planning import _ShapePlanner
from planner.parallelism.options import PlanOptions
from planner.parallelism.shape import Shape, shapes
from planner.parallelism.shape_search import ShapeSearch
from planner.search import FoundLayouts, build_model, find_layouts
from planner.search.bounds.ascent import StageRelaxation
from planner.search.bounds.guided import solve_guided
from planner.search.model import SearchModel
from planner.solve.limited.memory import least_peak
from planner.solve.problem import NotFoundInTime
from planner.solve.time_limit import NO_LIMIT, Cancel, TimeLimit
from planner.stages import assign_stages, prepare
from regista.api import program_of
from regista.clusters import resolve_cluster
from tests.planner.solve.small import ManualClock

MODEL = "zoo:mlp?depth=2&width=32&hidden=64&batch=8"
SHAPE = Shape(2, 4, (2,))


def four() -> Cluster:
    return replace(resolve_cluster("p3.16xlarge:1"), devices_per_node=4)


@cache
def graph(micro_batches: int) -> LogicalGraph:
    return program_of(MODEL).graph(micro_batches)


@cache
def candidates() -> tuple[Shape, ...]:
    return shapes(8, four(), most_stages=2)


def bounds(time_limit: TimeLimit = NO_LIMIT) -> ShapeBounds:
    return ShapeBounds(graph, 8, four(), (), time_limit=time_limit)


@cache
def steps() -> dict[Shape, float]:
    """As short as each shape's bound allows: nothing may say more than the bounds without a limit of time."""
    exact = bounds()
    return {shape: exact.of(shape).unlimited_s for shape in candidates()}


def test_once_the_time_is_up_no_piece_is_solved_and_what_needs_no_solution_still_bounds() -> None:
    share = bounds(TimeLimit(0.0, ManualClock())).of(SHAPE)
    assert share.fill_s == 0.0
    assert share.unlimited_s == share.uneven_cut_s == (SHAPE.micro_batches - 1) * max(rest_s for _, rest_s in share.cut)
    with pytest.raises(NotFoundInTime, match="give more seconds"):
        share.cheapest_at(1.0)
    with pytest.raises(NotFoundInTime):
        _ = share.smallest


@pytest.mark.parametrize("looks", [1, 4, 16, 64])
def test_a_bound_whose_time_ended_is_at_most_the_one_without_a_limit_of_time(looks: int) -> None:
    """The clock goes on by a second whenever somebody looks."""
    exact, ended = bounds().of(SHAPE), bounds(TimeLimit(looks, ManualClock(1.0))).of(SHAPE)
    assert 0.0 <= ended.unlimited_s <= exact.unlimited_s * (1 + 1e-9)
    memory = (exact.smallest.held_bytes + exact.cheapest.held_bytes) / 2
    ended = bounds(TimeLimit(looks, ManualClock(1.0))).of(SHAPE)
    try:
        bound_s = ended.bound_within(memory)[0]
    except NotFoundInTime:
        bound_s = 0.0
    assert bound_s <= exact.bound_within(memory)[0] * (1 + 1e-9)


def test_with_no_time_at_all_the_shape_of_the_least_bound_is_worked_out_and_no_other() -> None:
    worked: list[Shape] = []

    def work_out(shape: Shape, memory_binds: bool) -> tuple[float, float]:
        worked.append(shape)
        return 1e3, 0.0

    late = bounds(TimeLimit(0.0, ManualClock()))
    best, bound_s = ShapeSearch(late, work_out).best(candidates())
    assert worked == [best] == [min(candidates(), key=late.roofline_s)]
    assert bound_s == late.roofline_s(best) <= min(steps().values())


def test_when_the_time_is_up_a_shape_that_was_bounded_within_memory_is_worked_out_before_one_that_was_not() -> None:
    """The least bounds are those of shapes of which nothing but the roofline is known."""
    clock, bounded, worked = ManualClock(), list[Shape](), list[Shape]()

    class OneShapeInTime(Ahead):
        def start(self, queue: Sequence[Entry], *, anew: bool = False, bound_whole: bool = False) -> None:
            pass

        def closer(self, shape: Shape, kind: BoundKind, memory_binds: bool) -> Iterator[Closer]:
            if kind is BoundKind.UNLIMITED:
                bounded.append(shape)
                clock.now_s = 101.0
            yield Closer(bound_s=900.0 if kind is BoundKind.UNLIMITED else 0.0)

    def work_out(shape: Shape, memory_binds: bool) -> tuple[float, float]:
        worked.append(shape)
        return 1e3, 0.0

    best, bound_s = ShapeSearch(bounds(TimeLimit(100.0, clock)), work_out, ahead=OneShapeInTime).best(candidates())
    assert worked == [best] == bounded
    assert bound_s == min(bounds().roofline_s(shape) for shape in candidates() if shape != best) < 900.0


def test_with_a_plan_no_shape_is_worked_out_in_less_time_than_the_longest_one_took() -> None:
    clock, worked = ManualClock(), list[Shape]()

    def work_out(shape: Shape, memory_binds: bool) -> tuple[float, float]:
        worked.append(shape)
        clock.now_s += 20.0
        return 2 * max(steps().values()), 0.0  # so that every other shape may be better

    best, bound_s = ShapeSearch(bounds(TimeLimit(50.0, clock)), work_out).best(candidates())
    assert len(worked) == 2 and best == worked[0]
    assert bound_s <= min(steps().values())


@pytest.mark.parametrize("looks", [0, 1, 5, 20, 80])
def test_wherever_the_time_ends_no_shape_is_better_than_the_bound(looks: int) -> None:
    search = ShapeSearch(bounds(TimeLimit(looks, ManualClock(1.0))), lambda shape, _: (steps()[shape], 0.0))
    best, bound_s, other = search.two_best(candidates())
    assert bound_s <= min(steps().values())
    assert other.least_s <= min(step_s for shape, step_s in steps().items() if shape != best)


def test_all_tries_of_a_shape_share_one_limit_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of six tries had all of the seconds for itself."""
    clock, remaining_s = ManualClock(), list[float]()

    def find(model: SearchModel, *, time_limit: TimeLimit, **options: Any) -> FoundLayouts:
        remaining_s.append(time_limit.remaining_s())
        clock.now_s += 4.0
        if time_limit.is_up():
            raise NotFoundInTime("none yet", 0.0)
        return find_layouts(model, time_limit=NO_LIMIT, **options)

    monkeypatch.setattr(sys.modules["planner.parallelism.one_shape.planning"], "find_layouts", find)
    monkeypatch.setattr(_ShapePlanner, "_needed_bytes", lambda self, plan: self._memory_bytes + 1)
    options = PlanOptions(stages=1, micro_batches=4, mesh=(4,), recompute=False)
    job = Job(model="mlp", batch_size=8, cluster=four(), watch=None, dry_run=None)
    with pytest.raises(NotFoundInTime, match=r"the plan found first needs .* give more seconds"):
        plan_one_shape(job, graph(4), options, time_limit=TimeLimit(6.0, clock))
    assert remaining_s == [6.0, 2.0]


def test_no_part_of_a_search_begins_once_the_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guided search went on by rounds of a second, the least peak took all the time that it wanted."""
    staged = prepare(graph(4), assign_stages(graph(4), 2), 2)
    model = build_model(staged, (2,), four(), (), 4, limit_bytes=1e9, in_flight=(2, 1))
    monkeypatch.setattr(StageRelaxation, "at", None)
    monkeypatch.setattr(sys.modules["planner.solve.limited.memory"], "solve_exactly", None)
    up = TimeLimit(0.0, ManualClock())
    assert solve_guided(model, (1e-9, 1e-9), 1e9, time_limit=up) is None
    assert least_peak(model.problem, up) == 0.0


def test_a_least_peak_whose_time_ended_is_at_most_the_one_without_a_limit_of_time() -> None:
    staged = prepare(graph(4), assign_stages(graph(4), 2), 2)
    problem = build_model(staged, (2,), four(), (), 4, limit_bytes=1e9, in_flight=(2, 1)).problem
    assert all(
        0.0 <= least_peak(problem, TimeLimit(looks, ManualClock(1.0))) <= least_peak(problem) * (1 + 1e-9) for looks in (1, 2, 4, 16)
    )


def test_a_shape_of_which_no_plan_was_found_in_time_counts_with_its_bound() -> None:
    """It was left out, as one that cannot be planned is, so that the bound was one on the other shapes only."""
    first = min(candidates(), key=lambda shape: steps()[shape])

    def not_found(shape: Shape, memory_binds: bool) -> tuple[float, float]:
        if shape == first:
            raise NotFoundInTime("nothing yet", 0.0)
        return 1e3, 1e3

    best, bound_s, other = ShapeSearch(bounds(), not_found).two_best(candidates())
    assert best != first
    assert max(bound_s, other.least_s) <= steps()[first]


def test_a_search_that_is_cancelled_keeps_the_best_shape_so_far_and_before_one_says_so() -> None:
    def search(when: Callable[[float], bool]) -> Plan:
        stop = Cancel()
        watch = lambda shape, best_s, bound_s: stop.cancel() if when(best_s) else None  # noqa: E731
        return regista.plan(MODEL, four(), stages=None, micro_batches=None, cancel=stop, on_shape=watch)

    whole, kept = search(lambda best_s: False), search(lambda best_s: best_s < inf)
    assert kept.search.lower_bound_s <= whole.search.objective_s * (1 + 1e-9) <= kept.search.objective_s * (1 + 2e-9)
    with pytest.raises(Cancelled, match="before it had a plan"):
        search(lambda best_s: True)
