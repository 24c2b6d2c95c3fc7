"""A long shape whose bound somebody else works out: it stands in the Plan, and a closer one is worked out only where it leaves too much open."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest

from planner.ir.graph import LogicalGraph
from planner.ir.plan import Plan
from planner.parallelism.one_shape import Job, OtherBound, closer, plan_one_shape, planning
from planner.parallelism.options import PlanOptions
from planner.search import FoundLayouts, assign, find_layouts
from planner.search.model import SearchModel
from planner.solve.beside import Beside
from planner.solve.problem import Watch
from regista.api import program_of
from regista.clusters import resolve_cluster

MODEL = "zoo:gpt?layers=4&width=64&heads=4&vocab=128&batch=16&seq=32&optimizer=sgd"


@pytest.fixture(autouse=True)
def every_model_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assign, "_LONG", 0)


@cache
def graph() -> LogicalGraph:
    return program_of(MODEL).graph(8)


def planned(
    bound_s: Callable[[], float] | None = None, prove: Callable[[Plan], None] | None = None, gap: float = 0.01, watch: Watch | None = None
) -> Plan:
    cluster = replace(resolve_cluster("p3.16xlarge:1"), devices_per_node=4)
    job = Job(model=MODEL, batch_size=16, cluster=cluster, watch=watch, dry_run=None, prove=prove)
    options = PlanOptions(stages=2, micro_batches=8, mesh=(2,), recompute=False)
    other = None if bound_s is None else OtherBound(bound_s=bound_s, gap=gap)
    return plan_one_shape(job, graph(), options, memory_binds=True, other=other)


def test_a_bound_that_leaves_no_more_open_than_is_allowed_stands_in_the_plan_and_no_other_is_worked_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone = planned()
    step_s = alone.search.objective_s
    asked: list[str] = []
    monkeypatch.setattr(FoundLayouts, "bounded_by_bottleneck", lambda *_: asked.append("bottleneck"))
    guided_s = planned(lambda: step_s).search.lower_bound_s
    plan = planned(lambda: 0.995 * step_s)
    assert guided_s == pytest.approx(step_s) and not asked
    assert plan.search.lower_bound_s >= 0.995 * step_s and plan.search.objective_s == step_s
    assert replace(plan, search=alone.search) == alone


def test_a_bound_that_leaves_more_open_is_followed_by_that_of_the_slowest_stages() -> None:
    assert planned(lambda: 0.0, gap=0.0) == planned() != planned(lambda: 0.0)


def test_what_the_bound_of_the_slowest_stages_finds_is_lowered_if_it_is_quicker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the search begins with a choice that is dearer than it need be."""
    found: list[FoundLayouts] = []

    def dearer(model: SearchModel, **options: Any) -> FoundLayouts:
        best = find_layouts(model, **options)
        found.append(_dearer(best))
        return found[-1]

    best, proven = planned(), list[Plan]()
    monkeypatch.setattr(planning, "find_layouts", dearer)
    plan = planned(lambda: 0.0, proven.append, gap=1e-6)
    assert best.search.objective_s <= plan.search.objective_s < found[-1].objective_s
    assert proven[0].search.objective_s == found[-1].objective_s  # and the other one is proven at the end


def _dearer(found: FoundLayouts) -> FoundLayouts:
    """The choice with another strategy of the first op that costs more and fits."""
    model = found.model
    for node, menu in model.ops.values():
        for strategy in range(len(menu)):
            choice = found.choice.copy()
            choice[node] = strategy
            if model.problem.feasible(choice) and 1.01 * found.objective_s < (step_s := model.step_s(choice)) < float("inf"):
                return replace(found, choice=choice, objective_s=step_s)
    raise AssertionError("every other choice is forbidden, or costs the same")


def test_the_plan_is_proven_before_the_bound_is_waited_for() -> None:
    order: list[str] = []
    plan = planned(lambda: order.append("bound") or 0.0, lambda plan: order.append(f"proof of {len(plan.tasks)} tasks"))
    assert order == [f"proof of {len(plan.tasks)} tasks", "bound"]


def test_an_interrupt_while_the_bound_is_waited_for_leaves_the_plan_where_progress_is_watched() -> None:
    def interrupted() -> float:
        raise KeyboardInterrupt

    alone = planned()
    plan = planned(interrupted, watch=lambda progress: None)
    assert replace(plan, search=alone.search) == alone
    assert 0 < plan.search.lower_bound_s <= alone.search.lower_bound_s
    with pytest.raises(KeyboardInterrupt):
        planned(interrupted)


@pytest.mark.parametrize("second", ["works", "is none", "dies"])
def test_the_plan_is_the_same_whoever_bounds_it(second: str, monkeypatch: pytest.MonkeyPatch) -> None:
    here, bounded = os.getpid(), FoundLayouts.bounded_by_bottleneck
    bounded_by: list[int] = []

    def by_bottleneck(found: FoundLayouts, *given: Any, **named: Any) -> FoundLayouts:
        if os.getpid() != here and second == "dies":
            os._exit(1)
        bounded_by.append(os.getpid())
        return bounded(found, *given, **named)

    monkeypatch.setattr(FoundLayouts, "bounded_by_bottleneck", by_bottleneck)
    monkeypatch.setattr(closer, "Beside", partial(Beside, allowed=lambda: False))
    alone = planned()
    assert bounded_by == [here]
    monkeypatch.setattr(closer, "Beside", partial(Beside, allowed=lambda: second != "is none"))
    assert planned() == alone
    assert bounded_by == ([here] if second == "works" else [here, here])
