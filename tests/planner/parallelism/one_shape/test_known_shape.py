"""A second search of a shape with the same memory: prices, decisions and tasks that are the same are taken from the first.

Devices are the same throughout, links are others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import inf
from typing import Any

import numpy as np
import pytest
import torch

from planner.frontend import Program
from planner.ir.cluster import Cluster
from planner.ir.graph import LogicalGraph
from planner.ir.plan import Plan
from planner.ir.sbp import NdSbp
from planner.lower.build import lower
from planner.lower.drafts import Before
from planner.parallelism.memory import SearchMemory
from planner.parallelism.one_shape import Job, OtherBound, is_known, lowered, plan_one_shape, planning
from planner.parallelism.one_shape.closer import CloserBound
from planner.parallelism.one_shape.job import recipe_of
from planner.parallelism.one_shape.needed import NeededBytes
from planner.parallelism.one_shape.staged import staged_once
from planner.parallelism.options import PlanOptions
from planner.schedule import Schedule
from planner.search import FoundLayouts, assign, build_model, find_layouts
from planner.search.bounds.guided import CLOSE
from planner.search.formulation import repriced
from planner.search.model import SearchModel, Standing
from regista.api import program_of
from regista.clusters import local_cluster, resolve_cluster

MODEL = "zoo:gpt?layers=4&width=64&heads=4&vocab=128&batch=16&seq=32&optimizer=sgd"
OPTIONS = PlanOptions(stages=2, micro_batches=8, mesh=(2,), recompute=False)
RATES = (1.0, 0.3, 0.01)


@cache
def graph() -> LogicalGraph:
    return program_of(MODEL).graph(8)


def linked(times: float, *, device: str = "p3.16xlarge") -> Cluster:
    """Four devices whose link has so many times its bandwidth."""
    cluster = replace(resolve_cluster(f"{device}:1"), devices_per_node=4)
    return replace(cluster, node=replace(cluster.node, bandwidth_bytes_per_s=times * cluster.node.bandwidth_bytes_per_s))


def job(cluster: Cluster, memory: SearchMemory | None = None, standing: Callable[[SearchModel], Standing | None] | None = None) -> Job:
    kept = SearchMemory() if memory is None else memory
    return Job(model=MODEL, batch_size=16, cluster=cluster, watch=None, dry_run=None, memory=kept, standing=standing)


def planned(
    cluster: Cluster, memory: SearchMemory | None = None, options: PlanOptions = OPTIONS, memory_binds: bool = True, **more: Any
) -> Plan:
    return plan_one_shape(job(cluster, memory), graph(), options, memory_binds=memory_binds, **more)


@pytest.mark.parametrize("limit_bytes", [inf, 4e6], ids=["without limit", "within a limit"])
@pytest.mark.parametrize("mesh", [(2,), (2, 2)])
def test_a_repriced_problem_is_the_one_that_is_built_at_these_prices(limit_bytes: float, mesh: tuple[int, ...]) -> None:
    memory, options = SearchMemory(), replace(OPTIONS, mesh=mesh)
    staged = staged_once(graph(), options, linked(1.0), memory)

    def built(cluster: Cluster, limit: float) -> SearchModel:
        return build_model(staged, mesh, cluster, (), 8, limit_bytes=limit, in_flight=(2, 1), tools=memory.tools(cluster, mesh))

    first = built(linked(1.0), limit_bytes)
    for times in RATES:
        again, wanted = repriced(first, memory.tools(linked(times), mesh), limit_bytes / 2), built(linked(times), limit_bytes / 2)
        assert again is not None and again.has_choices_of(wanted) and again.costs.cluster == linked(times)
        mine, theirs = again.problem, wanted.problem
        assert (mine.names, mine.limit, len(mine.edges), len(mine.demands)) == (
            theirs.names,
            theirs.limit,
            len(theirs.edges),
            len(theirs.demands),
        )
        assert all(map(np.array_equal, mine.costs, theirs.costs))
        assert all((e.u, e.v) == (o.u, o.v) and np.array_equal(e.matrix, o.matrix) for e, o in zip(mine.edges, theirs.edges, strict=True))
        assert all(
            (d.node, d.start, d.stop) == (o.node, o.start, o.stop) and np.array_equal(d.amount, o.amount)
            for d, o in zip(mine.demands, theirs.demands, strict=True)
        )
    assert repriced(first, memory.tools(linked(1.0, device="dgx-a100"), mesh), limit_bytes) is None


def test_plans_on_other_links_are_those_of_searches_that_know_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, lower, again = SearchMemory(), lowered.lower, lowered.lower_again
    made: list[str] = []
    monkeypatch.setattr(lowered, "lower", lambda *given: made.append("all" if len(given) == 4 else "others") or lower(*given))
    monkeypatch.setattr(lowered, "lower_again", lambda *given: (plan := again(*given)) and (made.append("orders") or plan))
    for times in (*RATES, 1.0):
        assert planned(linked(times), memory) == planned(linked(times))
    assert {"all", "others", "orders"} == set(made)


def test_layouts_on_one_mesh_are_not_taken_for_those_of_the_same_name_on_another() -> None:
    """Meshes of as many axes have the same strategies by layout, and other parts."""
    memory, cluster = SearchMemory(), local_cluster(64)
    step = program_of("zoo:mlp?batch=64&width=64&hidden=64&depth=1").graph(1)
    for mesh in ((16, 4), (8, 8), (16, 4)):
        options = PlanOptions(stages=1, micro_batches=1, mesh=mesh)
        warm, cold = (plan_one_shape(job(cluster, kept), step, options) for kept in (memory, None))
        assert warm == cold


class Scaled(torch.nn.Module):
    """Number by number, so no op says a size."""

    def __init__(self) -> None:
        super().__init__()
        self.factors = torch.nn.Parameter(torch.zeros(64, 64))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(rows * self.factors)


def test_fragments_whose_ops_read_alike_and_whose_parts_differ_are_not_taken_from_another_plan() -> None:
    """A sigmoid says nothing of sizes: on whole inputs it is the same op as on a quarter of them."""
    cluster, options = linked(1.0), PlanOptions(stages=1, micro_batches=1, mesh=(4,))
    rows = torch.zeros(64, 64, device="meta")
    step = Program(Scaled().to("meta"), (rows, rows), torch.nn.functional.mse_loss).graph(1)
    here = job(cluster)
    staged, recipe = staged_once(step, options, cluster, here.memory), recipe_of(here, step, options)
    model, whole = build_model(staged, (4,), cluster, (), 1), NdSbp.broadcast(1)
    choice = find_layouts(model).choice
    made = [model.decode(choice, "", 0.0, 0.0)]
    for node, menu in model.ops.values():
        choice[node] = next(n for n, s in enumerate(menu) if {*s.inputs, *s.outputs} == {whole})
    for node, layouts in (*model.states.values(), *model.deliveries.values()):
        choice[node] = layouts.index(whole)
    made.append(model.decode(choice, "", 0.0, 0.0))
    plans = [lower(staged, assignment, cluster, recipe) for assignment in made]
    assert plans[0].tasks != plans[1].tasks
    for mine, other in ((0, 1), (1, 0)):
        assert lower(staged, made[mine], cluster, recipe, Before(plans[other], made[other])) == plans[mine]


@pytest.mark.parametrize("schedule", [Schedule.GPIPE, Schedule.ZB_H1, Schedule.ZB_AUTO], ids=lambda schedule: schedule.value)
def test_decisions_are_lowered_alike_under_every_schedule(schedule: Schedule) -> None:
    memory, options = SearchMemory(), replace(OPTIONS, schedule=schedule)
    for times in RATES[:2]:
        assert planned(linked(times), memory, options, memory_binds=False) == planned(linked(times), None, options, memory_binds=False)


def test_what_a_plan_was_made_of_is_found_by_its_own_fields_and_cluster_and_of_the_latest_alone() -> None:
    memory, cluster = SearchMemory(), linked(1.0)
    plan = planned(cluster, memory)
    known = memory.decided(plan, cluster)
    assert known is not None and known.taken.model.step_s(known.taken.choice) == plan.search.objective_s
    assert memory.decided(replace(plan, options={**plan.options, "robust": "0.1"}), cluster) is known
    assert memory.decided(plan, linked(0.3)) is None
    assert memory.decided(replace(plan, options={**plan.options, "pins": "h.0.*=B"}), cluster) is None
    assert memory.decided(replace(plan, tasks=plan.tasks[1:]), cluster) is None
    for times in (0.9, 0.8, 0.7, 0.6):
        planned(linked(times), memory)
    assert memory.decided(plan, cluster) is None


@pytest.fixture
def every_model_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assign, "_LONG", 0)


@pytest.mark.usefixtures("every_model_is_long")
def test_a_long_search_begins_with_the_last_choice_of_the_shape_and_its_bound_holds() -> None:
    memory = SearchMemory()
    planned(linked(1.0), memory)
    for times in RATES[1:]:
        assert is_known(job(linked(times), memory), graph(), OPTIONS)
        warm, cold = planned(linked(times), memory), planned(linked(times))
        for one, other in ((warm, cold), (cold, warm)):
            assert one.search.lower_bound_s <= other.search.objective_s * (1 + 1e-9)
    assert not is_known(job(linked(1.0), memory), graph(), replace(OPTIONS, zero=1))


@pytest.mark.usefixtures("every_model_is_long")
def test_an_earlier_choice_stays_where_it_costs_no_more_and_only_there() -> None:
    memory = SearchMemory()
    plan = planned(linked(1.0), memory)
    known = memory.decided(plan, linked(1.0))
    assert known is not None
    found: list[float] = []

    def standing(model: SearchModel) -> Standing | None:
        found.append(model.step_s(known.taken.choice))
        return Standing(known.taken.choice)

    for times in (1.0, 0.01):
        again = plan_one_shape(job(linked(times), None, standing), graph(), OPTIONS, memory_binds=True)
        assert again.search.objective_s <= found[-1] * (1 + 1e-9)
        assert (again.tasks == plan.tasks) is (times == 1.0)


@pytest.mark.usefixtures("every_model_is_long")
@pytest.mark.parametrize("known_s", [None, 0.0, inf], ids=["not known", "too low", "enough"])
def test_a_closer_bound_is_begun_as_soon_as_the_other_one_is_known_to_leave_too_much(
    known_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    start, result = CloserBound.start, CloserBound.result
    monkeypatch.setattr(CloserBound, "start", lambda closer: begun.append("start") or start(closer))
    monkeypatch.setattr(CloserBound, "result", lambda *given: begun.append("result") or result(*given))
    whole = planned(linked(1.0))
    begun.clear()
    other = OtherBound(bound_s=lambda: known_s or 0.0, gap=0.0, known_s=lambda: known_s)
    plan = planned(linked(1.0), other=other)
    assert plan.search.objective_s == whole.search.objective_s
    assert plan.search.lower_bound_s == (whole.search.objective_s if known_s == inf else whole.search.lower_bound_s)
    assert begun == {None: ["result"], 0.0: [*["start"] * 3, "result"], inf: []}[known_s]


def kept_or_searched(times: float, memory: SearchMemory, monkeypatch: pytest.MonkeyPatch) -> tuple[Plan, bool]:
    """(the Plan of a search over shapes for a shape that the memory knows, whether its layouts were searched)."""
    searched: list[str] = []
    find = planning.find_layouts
    with monkeypatch.context() as patch:
        patch.setattr(planning, "find_layouts", lambda *given, **named: searched.append("layouts") or find(*given, **named))
        plan = planned(linked(times), memory, other=OtherBound(bound_s=lambda: 0.0, gap=0.01))
    return plan, bool(searched)


@pytest.mark.usefixtures("every_model_is_long")
def test_an_earlier_choice_that_is_proven_to_be_close_to_the_best_is_taken_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = SearchMemory()
    first = planned(linked(1.0), memory)
    again, searched = kept_or_searched(1.0, memory, monkeypatch)
    assert not searched and again.tasks == first.tasks
    assert again.search.objective_s * (1 - CLOSE) <= again.search.lower_bound_s <= again.search.objective_s
    was_searched = set()
    for times in (0.95, 0.7, *RATES):
        kept = SearchMemory()
        planned(linked(1.0), kept)
        (warm, searched), cold = kept_or_searched(times, kept, monkeypatch), planned(linked(times))
        was_searched.add(searched)
        assert warm.search.lower_bound_s <= cold.search.objective_s * (1 + 1e-9)
        assert searched or warm.search.objective_s * (1 - CLOSE) <= cold.search.objective_s
    assert was_searched == {False, True}


@pytest.mark.usefixtures("every_model_is_long")
def test_an_earlier_choice_that_is_not_proven_to_be_close_or_does_not_fit_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the earlier choice is kept whatever its bound says, or whatever its Plan holds."""
    memory = SearchMemory()
    first = planned(linked(1.0), memory)
    with monkeypatch.context() as patch:
        patch.setattr(FoundLayouts, "bounded_by_bottleneck", lambda found, *given, **named: found)
        assert kept_or_searched(1.0, memory, monkeypatch)[1]
    asked: list[Plan] = []

    def needed(counted: NeededBytes, plan: Plan) -> int:
        asked.append(plan)
        return 0 if len(asked) > 1 else linked(1.0).device.memory_bytes + 1

    with monkeypatch.context() as patch:
        patch.setattr(NeededBytes, "of", needed)
        plan, searched = kept_or_searched(1.0, memory, monkeypatch)
    assert searched and len(asked) > 1 and plan.search.objective_s == first.search.objective_s
