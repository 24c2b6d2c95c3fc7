"""Plans played with drawn loads of experts (SEMANTICS 12): which acts are scaled, by what, and that nothing else is."""

from __future__ import annotations

import numpy as np
import pytest
from mixtures import EXPERTS, EXPERTS_CUT, load_of, plan_under

from planner.cost import AnalyticCost
from planner.cost.analytic import op_s
from planner.ir.errors import InvalidPlan, Unsupported
from planner.ir.graph import ExpertWork
from planner.ir.plan import Boxing, Plan
from planner.ir.traces.trace import check_trace
from simulator import simulate
from simulator.routed import RoutedLoads, simulate_routed

HOT = "histogram:9,1,1,1,1,1,1,1"


def apart(micro_batches: int = 1) -> Plan:
    return plan_under("uniform", EXPERTS_CUT, (4,), micro_batches)


def work_of(plan: Plan, name: str) -> ExpertWork:
    (work,) = [work for work in plan.experts if name in work.task]
    return work


def test_an_act_takes_longer_by_its_share_of_experts_times_what_its_rank_has_more_than_the_even_load() -> None:
    """Expert 0 has 9 of 16 tokens: its rank 10/16 over 1/4, the others 2/16 over 1/4.  Everybody else's acts take their price."""
    plan = apart()
    factor, cost = RoutedLoads(plan, load_of(HOT, top_k=1)).factor(plan), AnalyticCost(plan.cluster)
    own = {work.task: work for work in plan.experts}
    for task in plan.tasks:
        if task.id not in own:
            assert factor(task.id, 0, 0) == 1
    computing = next(task for task in plan.tasks if task.id in own and not isinstance(task.body, Boxing))
    work = own[computing.id]
    share = op_s(plan.cluster, work.flop, work.traffic_bytes, work.dtype) / cost.act_s(plan, computing, 0)
    loads = [1 + (factor(computing.id, rank, 0) - 1) / share for rank in range(4)]
    assert 0 < share < 1 and loads == pytest.approx([2.5, 0.5, 0.5, 0.5], rel=0.1)
    assert sum(loads) == pytest.approx(4), "no token is lost"


def test_an_exchange_has_the_bytes_of_the_busiest_rank_on_all_of_its_ranks() -> None:
    plan = apart()
    factor, cost = RoutedLoads(plan, load_of(HOT, top_k=1)).factor(plan), AnalyticCost(plan.cluster)
    exchange = next(task for task in plan.tasks if isinstance(task.body, Boxing) and "all_to_all" in task.id)
    took = [cost.act_s(plan, exchange, 0) * factor(exchange.id, rank, 0) for rank in range(4)]
    assert took == [pytest.approx(cost.boxing_act_s(plan, exchange, 0, 2.5), rel=0.05)] * 4


@pytest.mark.thorough
def test_forward_and_backward_pass_of_a_micro_batch_have_one_load_and_micro_batches_have_their_own() -> None:
    plan, seen = apart(micro_batches=2), {}
    loads = RoutedLoads(plan, load_of("zipf:1.2"))
    for work in plan.experts:
        task = plan.task[work.task]
        if not isinstance(task.body, Boxing) and task.acts == 2:
            seen[task.kind] = [loads._loads(task, work, 0, step, 0).tolist() for step in range(3)]
    forward, backward = seen.values()
    assert forward == backward
    assert len({load for step in forward for load in step}) == 6


def test_loads_that_are_even_by_force_change_no_step() -> None:
    """A token that takes every expert leaves nothing to choose."""
    routed = simulate_routed(apart(), AnalyticCost(apart().cluster), load_of("zipf:2", top_k=EXPERTS), runs=2, steps=3)
    assert routed.steps.step_s == pytest.approx(np.stack([routed.steps.quiet_s] * 2))


@pytest.mark.thorough
def test_a_step_is_longer_the_more_skewed_a_capacity_bounds_it_and_plans_with_whole_experts_do_not_feel_it() -> None:
    def median_s(plan: Plan, routing: str, capacity_factor: float | None = None) -> float:
        return simulate_routed(
            plan, AnalyticCost(plan.cluster), load_of(routing, capacity_factor=capacity_factor), runs=10, steps=2
        ).median_s

    plan, robust = apart(), plan_under("zipf:1.2")
    assert median_s(plan, "uniform") < median_s(plan, "zipf:0.6") < median_s(plan, "zipf:1.2")
    assert median_s(plan, "zipf:1.2", 1.25) < median_s(plan, "zipf:1.2")
    assert median_s(robust, "uniform") == pytest.approx(median_s(robust, "zipf:1.2"))
    assert median_s(robust, "zipf:1.2") < median_s(plan, "zipf:1.2") and median_s(plan, "uniform") < median_s(robust, "uniform")


def test_draws_follow_from_the_seed_and_a_trace_of_them_obeys_the_laws() -> None:
    plan, cost = apart(), AnalyticCost(apart().cluster)
    first, again, other = (simulate_routed(plan, cost, load_of("zipf:1.2", seed=seed), runs=3, steps=2).steps.step_s for seed in (1, 1, 2))
    assert (first == again).all() and (first != other).any() and len(set(first[:, 1].tolist())) == 3
    trace = simulate(plan, cost, steps=2, factor=RoutedLoads(plan, load_of("zipf:1.2", seed=1)).factor(plan))
    check_trace(plan, trace)
    assert trace.step_times_s(plan) == pytest.approx(first[0])


def test_plans_without_a_routing_and_loads_of_other_plans_are_refused() -> None:
    with pytest.raises(Unsupported, match="made without a routing"):
        RoutedLoads(plan_under(None), load_of("uniform"))
    with pytest.raises(InvalidPlan, match="draw them for the plan that is played"):
        RoutedLoads(apart(), load_of("uniform")).factor(plan_under("zipf:1.2"))
