"""What a search has proven of its shapes on one network bounds their plans on another, and a search that begins with it proves no more than holds."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from math import inf

import pytest

from planner.ir.actors.verify import device_bytes
from planner.ir.cluster import Cluster
from planner.ir.errors import OutOfMemory, Unsupported
from planner.ir.graph import LogicalGraph
from planner.ir.plan import Plan
from planner.parallelism import make
from planner.parallelism.bounding import ahead
from planner.parallelism.bounding.closer import closer_bounds
from planner.parallelism.bounds import ShapeBounds
from planner.parallelism.make import search_plans
from planner.parallelism.memory import SearchMemory
from planner.parallelism.one_shape import Job, plan_one_shape
from planner.parallelism.options import PlanOptions, of_shape_alone
from planner.parallelism.proven import BoundKind, Proof, ProvenBound, ProvenShapes, proven_on
from planner.parallelism.shape import Shape
from planner.parallelism.shape_search import ShapeSearch
from planner.solve.problem import NotFoundInTime
from planner.solve.time_limit import TimeLimit
from regista.api import program_of
from regista.clusters import resolve_cluster

GPT = "zoo:gpt?layers=3&width=64&heads=4&vocab=96&seq=16&batch=8"
MLP = "zoo:mlp?depth=2&width=64&hidden=128&batch=8"
OPEN = PlanOptions(stages=None, micro_batches=None)
GAP = 0.01


@cache
def graph(micro_batches: int, model: str = GPT) -> LogicalGraph:
    return program_of(model).graph(micro_batches)


def linked(times: float, memory_bytes: float = inf) -> Cluster:
    """Two nodes of two quick devices, whose network has so many times its rate."""
    cluster = replace(resolve_cluster("p3.16xlarge:2"), devices_per_node=2)
    assert cluster.nic is not None
    device = replace(cluster.device, act_overhead_s=0.0, memory_bytes=int(min(memory_bytes, cluster.device.memory_bytes)))
    nic = replace(cluster.nic, latency_s=1e-7, bandwidth_bytes_per_s=times * cluster.nic.bandwidth_bytes_per_s)
    return replace(cluster, device=device, node=replace(cluster.node, latency_s=1e-7), nic=nic)


def searched(cluster: Cluster, memory: SearchMemory | None = None, model: str = GPT) -> Plan:
    return search_plans(partial(graph, model=model), model=model, batch_size=8, cluster=cluster, options=OPEN, memory=memory).plan


@pytest.fixture(autouse=True)
def every_model_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make, "_LONG", 0)


@cache
def held_bytes() -> float:
    """What the perceptron's best plan holds of a device."""
    return max(device_bytes(searched(linked(1.0), None, MLP)).values())


def step_s(shape: Shape, cluster: Cluster, model: str) -> float:
    """Of the best plan of the shape, or the best within a second; infinite: none fits, or none was found."""
    job = Job(model=model, batch_size=8, cluster=cluster, watch=None, dry_run=None)
    try:
        options = of_shape_alone(OPEN, shape)
        return plan_one_shape(job, graph(shape.micro_batches, model), options, time_limit=TimeLimit(1.0)).search.objective_s
    except (OutOfMemory, Unsupported, NotFoundInTime):
        return inf


@pytest.mark.parametrize(("model", "share"), [(GPT, inf), (MLP, inf), pytest.param(MLP, 0.5, marks=pytest.mark.thorough)])
def test_what_is_proven_on_one_network_bounds_every_plan_of_the_shape_on_another(model: str, share: float) -> None:
    """Planted: the bounds of one network taken as they are on a faster one; of both, a share and all that is computed, or the slowest stage's."""
    memory, memory_bytes, compared = SearchMemory(), share * held_bytes(), 0
    searched(linked(1.0, memory_bytes), memory, model)
    (search,) = memory._searches
    for times in (0.1, 3.0, 50.0):
        cluster = linked(times, memory_bytes)
        for shape, proven in proven_on(cluster, [search]).items():
            if proven.too_large_bytes:
                assert step_s(shape, cluster, model) == inf
            elif proven.fitting.bound_s > 0.0 and shape.micro_batches <= 4:
                assert proven.fitting.bound_s <= step_s(shape, cluster, model) * (1 + 1e-9), (times, shape)
                if proven.fitting != proven.all_plans:
                    roomy = replace(cluster, device=linked(1.0).device)
                    assert proven.all_plans.bound_s <= step_s(shape, roomy, model) * (1 + 1e-9), (times, shape)
                compared += 1
    assert compared > 20


@pytest.mark.parametrize(("model", "share"), [(GPT, inf), pytest.param(MLP, 0.5, marks=pytest.mark.thorough)])
def test_a_search_that_begins_with_what_is_proven_proves_what_holds_and_bounds_fewer_shapes(
    model: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounded: list[Shape] = []
    closer = ahead.closer_bounds
    monkeypatch.setattr(
        ahead, "closer_bounds", lambda bounds, whole, shape, *given: bounded.append(shape) or closer(bounds, whole, shape, *given)
    )
    monkeypatch.setattr(ahead, "has_second_core", lambda: False)
    for times in (0.2, 0.9, 5.0):
        memory, cluster = SearchMemory(), linked(times, share * held_bytes())
        searched(linked(1.0, share * held_bytes()), memory, model)
        bounded.clear()
        warm = searched(cluster, memory, model)
        warm_bounds = len(bounded)
        bounded.clear()
        cold = searched(cluster, None, model)
        assert warm_bounds < len(bounded)
        for one, other in ((warm, cold), (cold, warm)):
            assert one.search.lower_bound_s <= other.search.objective_s * (1 + 1e-9)
            assert one.search.objective_s * (1 - GAP) <= other.search.objective_s


def test_a_search_is_remembered_by_what_was_asked_and_the_latest_alone() -> None:
    memory, shape = SearchMemory(), Shape(1, 1, (4,))
    for number in range(10):
        memory.keep_bounds(ProvenShapes(asked=number % 2, cluster=linked(1.0), best=shape, enough_s=float(number), bounds={}))
    assert [search.enough_s for search in memory.bounds_of(1)] == [3.0, 5.0, 7.0, 9.0]
    searched(linked(1.0), memory)
    asked = memory._searches[-1].asked
    search_plans(
        graph, model=GPT, batch_size=8, cluster=linked(0.5), options=replace(OPEN, pins=("h.0.attn.c_proj.weight=B",)), memory=memory
    )
    assert memory._searches[-1].asked != asked and len(memory.bounds_of(asked)) == 1


class Told:
    """A search over three shapes of told steps, of which it knows something."""

    one, two, again = Shape(1, 1, (4,)), Shape(2, 4, (2,)), Shape(1, 1, (4,), recompute="blocks")

    def __init__(self, known: dict[Shape, ProvenBound], **more: Shape) -> None:
        self.worked: list[Shape] = []
        steps = {self.one: 9.0, self.two: 8.0, self.again: 3.0}

        def work_out(shape: Shape, memory_binds: bool) -> tuple[float, float]:
            self.worked.append(shape)
            return steps[shape], 0.0

        self.search = ShapeSearch(ShapeBounds(graph, 8, linked(1.0), ()), work_out, recompute=("blocks",), known=known, **more)
        self.best, self.bound_s = self.search.best([self.one, self.two])


def test_a_bound_of_plans_that_fit_says_nothing_of_those_that_recompute_which_are_searched() -> None:
    """Planted: the shape without recomputation is dismissed, and with it the one that recomputes, or that gets the same bound."""
    fitting = ProvenBound(fitting=Proof(100.0), all_plans=Proof(1e-9), next_after=BoundKind.UNLIMITED, memory_binds=True)
    told = Told({Told.one: fitting})
    assert told.best == Told.again and told.bound_s <= 3.0
    assert told.search.known[Told.again].fitting.bound_s < 3.0
    assert Told({Told.one: replace(fitting, all_plans=Proof(100.0))}).worked == [Told.two]
    assert Told({Told.one: ProvenBound(too_large_bytes=1e15)}).best == Told.again


def test_the_best_shape_of_the_last_search_is_worked_out_first() -> None:
    assert [Told({}, first=shape).worked[0] for shape in (Told.one, Told.two)] == [Told.one, Told.two]
    assert Told({}, first=Shape(4, 4, (1,))).best == Told.two


def test_on_a_network_that_is_no_slower_kinds_that_gave_too_little_are_passed_over_and_on_a_slower_one_the_closest_is_asked_again() -> None:
    gave = {BoundKind.FORWARD_PART: 4.0, BoundKind.LARGEST_PIECE: 6.0, BoundKind.UNLIMITED: 12.0}
    bound = ProvenBound(fitting=Proof(12.0, 5.0), all_plans=Proof(12.0, 5.0), by_kind=gave)
    faster, slower, unlike = (bound.elsewhere(*shares, enough_s=10.0) for shares in ((0.5, 1.0), (1.0, 0.5), (0.5, 0.5)))
    assert (faster.next_after, slower.next_after, unlike.next_after) == (
        BoundKind.LARGEST_PIECE,
        BoundKind.LARGEST_PIECE,
        BoundKind.ROOFLINE,
    )
    assert faster.fitting == faster.all_plans == Proof(8.5, 5.0) and slower.fitting == Proof(12.0, 5.0)
    too_little = replace(bound, by_kind={**gave, BoundKind.UNLIMITED: 9.0, BoundKind.WITHIN_MEMORY: 9.5, BoundKind.END_STAGES: 11.0})
    assert too_little.elsewhere(0.5, 1.0, 10.0).next_after is BoundKind.UNLIMITED  # memory may bind with other layouts
    assert replace(too_little, memory_binds=True).elsewhere(0.5, 1.0, 10.0).next_after is BoundKind.WITHIN_MEMORY
    assert replace(too_little, memory_binds=True).elsewhere(1.0, 0.5, 10.0).next_after is BoundKind.WITHIN_MEMORY


@pytest.mark.parametrize("shape", [Shape(1, 2, (2, 2)), Shape(2, 4, (2,)), Shape(2, 4, (2,), recompute="blocks")])
def test_what_is_computed_takes_no_more_than_the_bound_of_which_it_is_a_part(shape: Shape) -> None:
    """Planted: the work of the fullest of unequal stages beside a bound on the mean one."""
    shares = ShapeBounds(graph, 8, linked(50.0), ())
    for kind in (BoundKind.ROOFLINE, BoundKind.FORWARD_PART, BoundKind.LARGEST_PIECE):
        (found,) = closer_bounds(shares, lambda *_: iter(()), shape, kind, False)
        assert 0.0 < found.computed_s <= found.bound_s * (1 + 1e-9)
    stages = [shares.computed_s(shape, (stage,)) for stage in range(shape.stages)]
    assert shares.computed_s(shape, range(shape.stages)) == min(stages) <= shares.computed_s(shape) * (1 + 1e-9)
    assert shape.stages == 1 or min(stages) < max(stages)


def test_at_any_multiplier_of_memory_the_bound_is_at_most_the_one_that_is_searched() -> None:
    for shape in (Shape(2, 4, (2,)), Shape(1, 2, (2, 2))):
        share = ShapeBounds(graph, 8, linked(1.0), ()).of(shape)
        memory_bytes = (share.smallest.held_bytes + share.cheapest.held_bytes) / 2
        best_s, multiplier = share.bound_within(memory_bytes)
        assert multiplier > 0.0
        assert share.bound_at(multiplier, memory_bytes) <= best_s * (1 + 1e-9)
        for times in (0.0, 0.1, 0.9, 1.1, 10.0):
            assert share.bound_at(times * multiplier, memory_bytes) <= best_s * (1 + 1e-6)
