"""Memory: rows of the search, what a Plan holds, and what fits."""

from __future__ import annotations

import gc
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from choices import problems
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix import roomy_cluster

import simulator
from planner.cost import AnalyticCost
from planner.frontend import Program
from planner.ir.actors.peak import live_bytes
from planner.ir.actors.verify import device_bytes
from planner.ir.errors import OutOfMemory, Unsupported
from planner.ir.plan import Plan
from planner.parallelism import make
from planner.parallelism.make import PlanOptions, make_plan, search_plans
from planner.parallelism.options import SHARES
from planner.parallelism.proof import covered_text
from planner.parallelism.shape import Shape, with_next
from planner.search.methods.exhaustive import search_exhaustively
from planner.search.model import SearchModel
from planner.search.strategies import StrategySet
from planner.solve import Problem
from planner.solve.limited.memory import least_peak, solve_within
from planner.solve.problem import Contradiction, Demand
from planner.solve.time_limit import TimeLimit
from tests.tiers import examples
from zoo import ZOO

GPT = {"layers": 2, "width": 64, "heads": 4, "vocab": 128, "batch": 8, "seq": 32, "optimizer": "sgd"}


@st.composite
def problems_with_demands(draw: st.DrawFn) -> Problem:
    problem = draw(problems(most_nodes=5))
    demands = []
    for node, costs in enumerate(problem.costs):
        amount = draw(st.lists(st.integers(0, 9), min_size=len(costs), max_size=len(costs)))
        start = draw(st.integers(0, 2))
        demands.append(Demand(node, start, start + draw(st.integers(1, 2)), np.array(amount, dtype=np.float64)))
    return replace(problem, demands=tuple(demands), limit=float(draw(st.integers(1, 20))))


@given(problems_with_demands())
@settings(max_examples=examples(120))
def test_the_best_choice_that_fits_is_found(problem: Problem) -> None:
    try:
        best = search_exhaustively(problem).objective
    except Unsupported:
        with pytest.raises((Unsupported, OutOfMemory)):
            solve_within(problem)
        return
    solution = solve_within(problem)
    assert problem.feasible(solution.choice)
    assert solution.lower_bound <= best + 1e-9
    assert solution.objective == pytest.approx(best, abs=1e-9)


@given(problems_with_demands())
@settings(max_examples=examples(120))
def test_no_allowed_choice_holds_less_than_the_least_peak(problem: Problem) -> None:
    choices = (np.array(c) for c in product(*(range(len(costs)) for costs in problem.costs)))
    peaks = [problem.peak(c) for c in choices if np.isfinite(problem.objective(c))]
    if not peaks:
        with pytest.raises((Unsupported, Contradiction)):
            least_peak(problem)
        return
    least = least_peak(problem)
    assert least <= min(peaks) + 1e-6
    if len({t for d in problem.demands for t in range(d.start, d.stop)}) == 1:
        assert least == pytest.approx(min(peaks))


def test_what_holds_nothing_has_no_least_peak() -> None:
    assert least_peak(Problem(("a",), (np.array([1.0, 2.0]),), (), (), 5.0)) == 0.0


@pytest.mark.parametrize(
    "options", [PlanOptions(), PlanOptions(stages=2, micro_batches=4), PlanOptions(recompute=True), PlanOptions(recompute="50%")]
)
def test_what_the_plan_holds_is_what_the_simulator_finds_to_the_byte(options: PlanOptions) -> None:
    plan = make_plan(
        ZOO["gpt"](**GPT).graph(options.micro_batches or 1), model="gpt", batch_size=8, cluster=roomy_cluster(2), options=options
    )
    cost = AnalyticCost(plan.cluster)
    planned = live_bytes(plan, cost.folded_s(plan), steps=4)
    simulated = simulator.simulate(plan, cost, steps=4).peak_bytes
    assert {str(rank): size for rank, size in planned.items()} == dict(simulated)
    assert all(planned[rank] <= reserved for rank, reserved in device_bytes(plan).items())


def with_memory(size_bytes: float, devices: int = 2, recompute: str | None = None) -> Plan:
    cluster = roomy_cluster(devices)
    small = replace(cluster, device=replace(cluster.device, memory_bytes=int(size_bytes)))
    source = adamw()
    return make_plan(
        source.graph(1), model="gpt", batch_size=8, cluster=small, options=PlanOptions(pins=("input.*=S(0)",), recompute=recompute)
    )


def adamw() -> Program:
    """Long and narrow: most of what it holds waits for the backward pass."""
    return ZOO["gpt"](**(GPT | {"layers": 5, "width": 32, "seq": 64, "optimizer": "adamw"}))


def test_where_memory_binds_less_is_held_for_more_time() -> None:
    roomy = with_memory(1e12)
    need = max(live_bytes(roomy).values())
    tight = with_memory(0.5 * need)
    assert max(live_bytes(tight).values()) <= 0.5 * need
    assert tight.search.objective_s >= roomy.search.objective_s
    assert tight.search.lower_bound_s <= tight.search.objective_s
    assert (roomy.options["recompute"], tight.options["recompute"]) == ("", "blocks")


@pytest.mark.thorough
def test_selective_keeps_the_largest_share_that_fits_and_is_quicker_than_blocks() -> None:
    roomy, blocks = with_memory(1e12, recompute="selective"), with_memory(1e12, recompute="blocks")
    most, least = max(live_bytes(roomy).values()), max(live_bytes(blocks).values())
    tight = with_memory((most + least) / 2, recompute="selective")
    assert max(live_bytes(tight).values()) <= (most + least) / 2
    assert (roomy.options["recompute"], tight.options["recompute"]) == ("", "60%")
    assert roomy.search.objective_s < tight.search.objective_s < blocks.search.objective_s


@pytest.mark.thorough
def test_shapes_are_searched_with_the_shares_of_selective_and_the_certificate_names_them() -> None:
    cluster, source = roomy_cluster(2), adamw()
    roomy = with_memory(1e12)
    small = replace(cluster, device=replace(cluster.device, memory_bytes=int(0.6 * max(live_bytes(roomy).values()))))
    options = PlanOptions(stages=None, micro_batches=1, recompute="selective")
    plan = search_plans(source.graph, model="gpt", batch_size=8, cluster=small, options=options).plan
    assert plan.options["recompute"] in SHARES
    first = "where memory binds, of the first in turn that fits of those chosen beforehand to keep 80%, 60%, 40%, 20% of the bytes"
    for words in (first, "as they were chosen before layouts"):
        assert words in covered_text(plan)
    assert max(live_bytes(plan).values()) <= small.device.memory_bytes
    assert plan.search.lower_bound_s <= plan.search.objective_s


def test_what_does_not_fit_is_tried_with_less_and_less_kept_and_what_is_given_with_nothing_else() -> None:
    tried = [Shape(1, 1, (2,))]
    while (later := with_next(tried[-1], PlanOptions(recompute="selective").again_if_unfit)) is not None:
        tried.append(later)
    assert [shape.recompute for shape in tried] == ["", "80%", "60%", "40%", "20%", "blocks"]
    assert PlanOptions().again_if_unfit == ("blocks",)
    for asked in (False, True, "60%", "attention"):
        assert PlanOptions(recompute=asked).again_if_unfit == ()


def test_what_is_tried_in_turn_shares_the_seconds_of_one_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the six had all the seconds that were given, so that a search of 10 s could take a minute."""
    limits: list[TimeLimit] = []

    def never_fits(*_: object, memory_binds: bool, time_limit: TimeLimit) -> Plan:
        limits.append(time_limit)
        raise OutOfMemory("not even nearly")

    monkeypatch.setattr(make, "plan_one_shape", never_fits)
    options = PlanOptions(recompute="selective", seconds=10.0)
    with pytest.raises(OutOfMemory, match="not even nearly"):
        make_plan(adamw().graph(1), model="gpt", batch_size=8, cluster=roomy_cluster(2), options=options)
    assert len(limits) == 6 and all(limit is limits[0] for limit in limits) and limits[0].seconds == 10.0


def test_a_model_that_cannot_fit_is_refused_with_what_would() -> None:
    cluster = roomy_cluster(2)
    small = replace(cluster, device=replace(cluster.device, memory_bytes=400_000))
    with pytest.raises(OutOfMemory, match=r"needs at least 0\.\d+ GB .* has 0\.0004 GB; .* would fit on 4 such nodes"):
        search_plans(
            adamw().graph,
            model="gpt",
            batch_size=8,
            cluster=small,
            options=PlanOptions(stages=None, micro_batches=None),
        )


@pytest.mark.thorough
def test_what_a_search_within_memory_has_worked_out_is_freed_without_the_collector() -> None:
    """Refusals, limits and keys of ops held the whole search in circles: after GPT-3 on 1,024 devices the collector took two seconds to find them."""
    cluster, source = roomy_cluster(2), adamw()
    small = replace(cluster, device=replace(cluster.device, memory_bytes=2_500_000))
    source.graph(1), source.graph(2)  # tracing leaves circles of torch's
    gc.collect()
    gc.disable()
    try:
        before = sum(type(value) in (StrategySet, SearchModel) for value in gc.get_objects())
        search_plans(source.graph, model="gpt", batch_size=8, cluster=small, options=PlanOptions(stages=None, micro_batches=None))
        assert sum(type(value) in (StrategySet, SearchModel) for value in gc.get_objects()) == before
    finally:
        gc.enable()


@pytest.mark.thorough
def test_the_best_shape_is_the_best_of_all_shapes() -> None:
    """Stages, mesh and micro-batches searched best-first give what trying each of them gives."""
    from planner.parallelism.shape import shapes

    source = ZOO["gpt"](**GPT)
    cluster = roomy_cluster(4)
    plan = search_plans(source.graph, model="gpt", batch_size=8, cluster=cluster, options=PlanOptions(stages=None, micro_batches=None)).plan
    every = []
    for shape in shapes(8, cluster, most_stages=2):
        options = PlanOptions(stages=shape.stages, mesh=shape.mesh, micro_batches=shape.micro_batches)
        every.append(
            make_plan(source.graph(shape.micro_batches), model="gpt", batch_size=8, cluster=cluster, options=options).search.objective_s
        )
    assert plan.search.objective_s == pytest.approx(min(every), rel=1e-9)
    assert plan.search.lower_bound_s <= plan.search.objective_s
