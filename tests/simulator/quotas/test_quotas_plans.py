"""Quotas of whole Plans: rewritten, verified, judged by Howard and by the simulator."""

from __future__ import annotations

from functools import cache
from math import inf

import pytest
from handmade import pipeline
from newton_period import exact_period

import simulator
from planner.ir.actors.verify import device_bytes, verify
from planner.ir.errors import DeadLock, OutOfMemory, Unsupported
from planner.ir.plan import Plan, RegstKind, Task
from simulator.quotas import full_throughput, pareto, under_budget
from simulator.quotas.plans import ordered, plan_problem, register_bytes
from simulator.quotas.rules import QuotaRule, rule_quotas
from simulator.steady import marked_graph, steady_state
from simulator.steady.graph import MarkedGraph
from simulator.steady.state import steady_graph


class _Prices:
    """Seconds by what a task is; backward costs twice forward, a link a third."""

    id = "test"

    def act_s(self, plan: Plan, task: Task, rank: int) -> float:
        return {"forward": 1.0, "backward": 2.0, "transfer": 0.3, "update": 0.1}.get(task.kind.value, 0.01)

    def message_s(self, src_rank: int, dst_rank: int) -> float:
        return 0.0


COST = _Prices()


def _period_s(graph: MarkedGraph) -> float:
    """Infinite if these orders and quotas wait for each other."""
    try:
        return steady_graph(graph).period_s
    except DeadLock:
        return inf


@cache
def _plan(quota: int = 3) -> Plan:
    return pipeline(micro_batches=6, quota=quota)


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("quota", [1, 2, 4])
def test_problem_of_a_plan_has_the_period_of_the_plan(width: int, quota: int) -> None:
    plan = pipeline(micro_batches=4, quota=quota, width=width)
    graph = marked_graph(plan, COST)
    ordered_problem = plan_problem(graph)
    period_s = exact_period(graph.num_nodes, ordered_problem.problem.arcs(ordered_problem.of_plan(plan))).period_s
    assert period_s == pytest.approx(steady_graph(graph).period_s, rel=1e-9)


def test_problem_of_a_plan_counts_the_bytes_that_verify_counts() -> None:
    plan = pipeline(micro_batches=4, quota=3, width=2)
    ordered_problem = plan_problem(marked_graph(plan, COST))
    held = ordered_problem.problem.place_bytes(ordered_problem.of_plan(plan))
    assert {name: held[name] for name in held} == {f"rank {r}": device_bytes(plan)[r] for r in (0, 2)}
    assert ordered_problem.problem.total_bytes(ordered_problem.of_plan(plan)) == register_bytes(plan)


@pytest.mark.parametrize("quota", [1, 2, 5])
def test_full_throughput_keeps_the_period_of_unlimited_quotas_with_no_more_bytes_than_the_bound(quota: int) -> None:
    plan = _plan(quota)
    sized_plan = full_throughput(plan, COST, seconds=5.0)
    verify(sized_plan.plan)
    generous = plan.with_quotas({r.id: 12 for r in plan.regsts if r.kind is not RegstKind.STATE})
    assert sized_plan.period_s <= steady_state(generous, COST).period_s * (1 + 1e-6)
    assert sized_plan.is_certified and sized_plan.after_bytes == register_bytes(sized_plan.plan) >= sized_plan.bound_any_order_bytes
    assert steady_state(sized_plan.plan, COST).period_s == pytest.approx(sized_plan.period_s, rel=1e-9)


def test_simulated_step_takes_the_period_that_is_certified() -> None:
    sized_plan = full_throughput(_plan(), COST, seconds=5.0)
    trace = simulator.simulate(sized_plan.plan, COST, steps=6)
    assert trace.step_times_s(sized_plan.plan)[-1] == pytest.approx(sized_plan.period_s, rel=1e-6)


def test_no_single_quota_of_the_answer_can_be_lowered() -> None:
    sized_plan = full_throughput(_plan(), COST, seconds=5.0)
    for regst in sized_plan.plan.regsts:
        if regst.quota > 1 and sized_plan.plan.block_bytes(regst) > 0:
            less = sized_plan.plan.with_quotas({regst.id: regst.quota - 1})
            graph = marked_graph(sized_plan.plan, COST).with_quotas({regst.id: regst.quota - 1})
            assert register_bytes(less) < sized_plan.after_bytes
            assert _period_s(graph) > sized_plan.period_s * (1 + 1e-6)


def test_budget_is_kept_on_every_device_and_more_budget_is_never_slower() -> None:
    plan = _plan()
    most = max(device_bytes(full_throughput(plan, COST, seconds=3.0).plan).values())
    least = max(device_bytes(plan.with_quotas({r.id: 1 for r in plan.regsts})).values())
    periods = []
    for budget in (least, (least + most) // 2, most):
        sized_plan = under_budget(plan, COST, budget, seconds=5.0)
        verify(sized_plan.plan)
        assert max(device_bytes(sized_plan.plan).values()) <= budget
        assert sized_plan.bound_any_order_s <= sized_plan.bound_s * (1 + 1e-6) <= sized_plan.period_s * (1 + 2e-6)
        periods.append(sized_plan.period_s)
    assert periods[0] * (1 + 1e-4) >= periods[1] and periods[1] * (1 + 1e-4) >= periods[2]


def test_budget_that_nothing_fits_is_refused_with_what_is_needed() -> None:
    with pytest.raises(OutOfMemory, match="with the fewest blocks rank 0 holds"):
        under_budget(_plan(), COST, 100)


def test_period_faster_than_unlimited_quotas_is_refused() -> None:
    with pytest.raises(Unsupported, match="unlimited quotas give"):
        full_throughput(_plan(), COST, period_s=0.001)


def test_curve_trades_bytes_for_time_at_every_point() -> None:
    points = pareto(_plan(), COST, points=5, seconds=10.0)
    assert len(points) >= 3
    for fast, slow in zip(points, points[1:], strict=False):
        assert fast.period_s < slow.period_s and fast.after_bytes > slow.after_bytes


@pytest.mark.parametrize("rule", list(QuotaRule))
def test_no_rule_needs_fewer_bytes_for_its_period(rule: QuotaRule) -> None:
    plan = _plan()
    ruled = plan.with_quotas(rule_quotas(plan, rule, COST))
    period_s = steady_state(ruled, COST).period_s
    unlimited_s = full_throughput(plan, COST, seconds=2.0).goal_s
    sized_plan = full_throughput(plan, COST, period_s=max(period_s, unlimited_s), seconds=3.0)
    assert sized_plan.after_bytes <= register_bytes(ruled)
    assert sized_plan.period_s <= period_s * (1 + 1e-6)


def test_order_written_into_the_streams_has_the_period_of_the_order_observed() -> None:
    plan = _plan()
    graph = marked_graph(plan, COST)
    fixed = ordered(graph)
    verify(fixed)
    assert {s.id for s in fixed.streams if s.order} >= {"compute.0", "compute.1"}
    assert steady_state(fixed, COST).period_s == pytest.approx(steady_graph(graph).period_s, rel=1e-9)
