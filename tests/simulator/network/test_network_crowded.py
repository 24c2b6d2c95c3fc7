"""Engines share links where acts of different tasks meet on one between nodes; elsewhere it is the game of constant prices."""

from __future__ import annotations

from functools import cache

import pytest
from traffic import cluster

from planner.cost import AnalyticCost
from planner.ir.plan import Plan
from planner.ir.traces.trace import Trace
from planner.parallelism.make import PlanOptions, make_plan
from regista.verbs.planning.quotas import certificate
from simulator import Engine, simulate, simulate_shared
from simulator.analysis.forecast import forecast
from simulator.network import Sharing
from simulator.network.crowded import crowded_links
from simulator.quotas import full_throughput
from simulator.steady.graph import LINKS_LEFT_OUT, marked_graph
from zoo import ZOO


@cache
def planned(nodes: int, nic: float) -> Plan:
    """A pipeline of two stages, each data parallel on two devices: gradients' all-reduces and transfers between the stages."""
    graph = ZOO["mlp"](batch=64, width=256, hidden=256, depth=4).graph(4)
    where = cluster(4, nodes=nodes, rate=1e11, nic=nic if nodes > 1 else None)
    return make_plan(graph, model="mlp", batch_size=64, cluster=where, options=PlanOptions(stages=2, micro_batches=4, mesh=(2,)))


def times(trace: Trace) -> list[tuple[str, int, int, float, float]]:
    return sorted((a.task, a.rank, a.number, a.start_s, a.end_s) for a in trace.acts)


def test_every_engine_shares_a_crowded_link_and_says_so():
    plan = planned(4, 1e9)
    cost = AnalyticCost(plan.cluster)
    assert crowded_links(plan, cost), "transfers and all-reduces cross the same nic"
    default = simulate(plan, cost)
    engines = [simulate(plan, cost, engine=engine) for engine in (Engine.SIMPY, Engine.COMPILED)]
    assert all(trace.acts == default.acts and trace.about["links"] == "shared, max-min fair" for trace in (default, *engines))
    bound = simulate_shared(plan, cost, sharing=Sharing.NONE)
    assert "lower bounds" in bound.about["links"]
    assert max(a.end_s for a in default.acts) > max(a.end_s for a in bound.acts)
    assert forecast(plan, cost).step_s == pytest.approx(default.settled_step_s(plan), rel=1e-12)
    assert forecast(plan, cost).engine == "compiled"
    assert marked_graph(plan, cost).left_out == LINKS_LEFT_OUT


@pytest.mark.thorough
def test_a_certificate_of_quotas_says_that_a_crowded_link_is_left_out_and_simulate_takes_longer():
    """It said "certified" of a step that the default engine, which shares the link, never reaches."""
    plan = planned(4, 1e9)
    cost = AnalyticCost(plan.cluster)
    sized = full_throughput(plan, cost, seconds=0.5)
    assert simulate(sized.plan, cost, steps=4).settled_step_s(sized.plan) > sized.period_s * (1 + 1e-6)
    assert sized.left_out == LINKS_LEFT_OUT
    words = certificate(sized)
    assert not words.startswith("certified:") and words.endswith(LINKS_LEFT_OUT)


@pytest.mark.thorough
def test_within_a_node_and_with_measured_prices_nothing_is_shared():
    inside = planned(1, 1e9)
    cost = AnalyticCost(inside.cluster)
    assert crowded_links(inside, cost) == ()
    assert times(simulate(inside, cost)) == times(simulate(inside, cost, engine=Engine.SIMPY))
    assert "links" not in simulate(inside, cost).about


@pytest.mark.thorough
def test_where_no_link_is_crowded_sharing_would_change_nothing():
    """A nic so wide that every price is latency: acts meet on it and do not feel it."""
    plan = planned(4, 1e14)
    cost = AnalyticCost(plan.cluster)
    assert crowded_links(plan, cost) == ()
    assert times(simulate(plan, cost)) == times(simulate(plan, cost, engine=Engine.SIMPY))
    default, shared = times(simulate(plan, cost)), times(simulate_shared(plan, cost))
    assert [row[:3] for row in default] == [row[:3] for row in shared]
    assert [row[4] for row in default] == pytest.approx([row[4] for row in shared])
