"""A session of searches: what it keeps changes no plan, and is worked out once."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

import regista
from planner.ir.actors.verify import device_bytes
from planner.ir.cluster import Cluster
from planner.ir.errors import Mismatch
from planner.ir.plan import Plan
from planner.ir.text import content_id
from planner.parallelism import memory as kept
from planner.parallelism.memory import SearchMemory
from regista.analysis import whatif as module
from regista.analysis.whatif import whatif
from regista.clusters import resolve_cluster

MODEL = "zoo:mlp?depth=2&width=32&hidden=64&batch=8"
GPT = "zoo:gpt?layers=2&width=32&heads=4&vocab=64&batch=8&seq=16"
SEARCHED: dict[str, Any] = {"stages": None, "micro_batches": 2}


def four(node: str) -> Cluster:
    """Two nodes of two devices."""
    return replace(resolve_cluster(f"{node}:2"), devices_per_node=2)


@pytest.mark.parametrize("model", [MODEL, pytest.param(GPT, marks=pytest.mark.thorough)])
def test_plans_of_a_session_are_those_of_cold_searches_on_another_nic_device_mesh_and_micro_batching(model: str) -> None:
    cluster = four("dgx-a100")
    assert cluster.nic is not None
    session = regista.PlannerSession(model)
    for target in (cluster, replace(cluster, nic=replace(cluster.nic, bandwidth_bytes_per_s=1e9)), four("p3.16xlarge")):
        assert session.plan(target, **SEARCHED) == regista.plan(model, target, **SEARCHED), target.name
    fixed: dict[str, Any] = {"mesh": (2, 2), "micro_batches": 4}
    assert session.plan(cluster, **fixed) == regista.plan(model, cluster, **fixed)


def test_a_session_cuts_the_model_into_pieces_once_however_many_clusters_are_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[object] = []
    cut = kept.model_pieces
    monkeypatch.setattr(kept, "model_pieces", lambda graph, *, recompute: graphs.append(graph) or cut(graph, recompute=recompute))
    session = regista.PlannerSession(MODEL)
    cluster = four("p3.16xlarge")
    session.plan(cluster, **SEARCHED)
    worked_out = len(graphs)
    session.plan(replace(cluster, node=replace(cluster.node, latency_s=1e-4)), **SEARCHED)
    assert 0 < worked_out == len(graphs)


def test_equal_graphs_have_one_number_and_graphs_whose_literals_are_equal_and_not_the_same_have_two() -> None:
    """Planted: an op with True where another graph's has 1, which Python takes to be equal."""
    memory = SearchMemory()
    graph, same = (regista.api.program_of(MODEL).graph() for _ in range(2))
    planted = replace(graph, ops=(replace(graph.ops[0], kwargs=(("told", 1),)), *graph.ops[1:]))
    other = replace(graph, ops=(replace(graph.ops[0], kwargs=(("told", True),)), *graph.ops[1:]))
    assert planted == other
    assert graph is not same
    assert memory.number(graph) == memory.number(same)
    assert len({memory.number(g) for g in (graph, planted, other)}) == 3
    assert [memory.graph_id(g) for g in (graph, planted, other)] == [content_id(g) for g in (graph, planted, other)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_whatif_is_the_same_whoever_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, sets = regista.plan(GPT, four("p3.16xlarge"), mesh=(2, 2)), ["cluster.links.nic.bandwidth_GBps=0.5"]
    alone = whatif(plan, sets)
    monkeypatch.setattr(module, "_WORTH_OPS", 0)
    forks: list[int] = []
    monkeypatch.setattr(module, "has_second_core", lambda: forks.append(1) or True)
    beside = whatif(plan, sets)
    assert forks
    assert (beside.plan, beside.old_s, beside.old_fits, beside.difference) == (alone.plan, alone.old_s, alone.old_fits, alone.difference)
    assert alone.plan != plan


def test_a_whatif_of_a_session_is_that_of_the_plan_alone_and_of_another_program_it_is_refused() -> None:
    session = regista.PlannerSession(MODEL)
    plan = session.plan(four("p3.16xlarge"), mesh=(2, 2))
    sets = ["cluster.links.nic.bandwidth_GBps=20"]
    warm, cold = session.whatif(plan, sets), whatif(plan, sets)
    assert (warm.plan, warm.old_s, warm.difference) == (cold.plan, cold.old_s, cold.difference)
    with pytest.raises(Mismatch, match="is of another, this session of zoo:mlp"):
        session.whatif(replace(plan, model="another"), sets)


def within(cluster: Cluster, share: float) -> tuple[Cluster, Plan]:
    """Devices with that share of what the quickest plan holds, and the plan that fits them."""
    roomy = regista.plan(GPT, cluster, mesh=(2, 2), micro_batches=4, zero=None)
    tight = replace(cluster, device=replace(cluster.device, memory_bytes=int(share * max(device_bytes(roomy).values()))))
    return tight, regista.plan(GPT, tight, mesh=(2, 2), micro_batches=4)


def test_where_memory_binds_the_old_decisions_cost_no_less_than_what_any_plan_of_the_shape_does() -> None:
    """Planted: priced on a problem without the limit, in which more is allowed, they cost less than the bound."""
    cluster, plan = within(four("dgx-a100"), 0.7)
    session = regista.PlannerSession(GPT)
    here = session.plan(cluster, mesh=(2, 2), micro_batches=4)
    assert here == plan
    for rate in (5, 20):  # on quicker networks it takes a minute to search
        sets = [f"cluster.links.nic.bandwidth_GBps={rate}"]
        warm, cold = session.whatif(here, sets), whatif(plan, sets)
        assert (warm.plan, warm.old_fits) == (cold.plan, cold.old_fits) and warm.old_fits
        assert warm.old_s is not None and warm.old_s == pytest.approx(cold.old_s, rel=1e-9)
        assert warm.plan.search.lower_bound_s <= warm.old_s * (1 + 1e-9)
        assert warm.plan.search.objective_s <= warm.old_s * (1 + 1e-9)


def test_decisions_that_cost_as_little_as_any_stay_and_nothing_is_said_to_differ() -> None:
    """Of equal layouts a search may take others on each cluster."""
    plan = regista.plan(GPT, four("dgx-a100"), mesh=(2, 2), micro_batches=4)
    for rate in (199, 201):
        outcome = whatif(plan, [f"cluster.links.nic.bandwidth_GBps={rate}"])
        assert outcome.old_s is not None
        if outcome.plan.search.objective_s >= outcome.old_s * (1 - 1e-9):
            assert (outcome.difference.layouts, outcome.difference.ops, outcome.difference.quotas) == ((), (), ())
            assert outcome.plan.tasks == plan.tasks
            return
    raise AssertionError("no such link")
