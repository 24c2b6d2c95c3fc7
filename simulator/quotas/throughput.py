"""The least register memory at full throughput, or at a period that is asked for.

each stream order -> certified least bytes -> realised -> the best -> descend: a block less makes the streams choose another order
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from planner.ir.errors import DeadLock, Unsupported
from planner.ir.plan import Plan
from planner.ir.protocols import CostModel
from simulator.quotas.least_bytes import least_bytes
from simulator.quotas.period import shortest_period_s
from simulator.quotas.plans import PlanProblem, plan_problem
from simulator.quotas.realise import SizedPlan, any_order_bytes, problems_of, realised_plan
from simulator.quotas.rounding import TOLERANCE
from simulator.steady import marked_graph

__all__ = ["full_throughput", "least_bytes_plan"]


def full_throughput(plan: Plan, cost: CostModel, *, period_s: float | None = None, seconds: float = 10.0) -> SizedPlan:
    """The quotas of least bytes that keep the period of unlimited quotas.

    Args:
        plan: a verified Plan.   cost: seconds per act and message.
        period_s: keep this period instead, in seconds per step.   seconds: end by about then with the best so far and its bound.

    Raises:
        Unsupported: no quotas reach period_s, or the Plan's streams never settle into an order (simulator.steady.observed_order).
    """
    return least_bytes_plan(plan, cost, tuple(problems_of(plan, cost)), period_s, seconds)


def least_bytes_plan(plan: Plan, cost: CostModel, problems: Sequence[PlanProblem], period_s: float | None, seconds: float) -> SizedPlan:
    """full_throughput for stream orders that are already known; period_s None: that of unlimited quotas."""
    ends = perf_counter() + seconds
    with_periods = [(p, shortest_period_s(p.problem.num_nodes, p.problem.fixed_arcs())) for p in problems]
    least_s = min(unlimited_s for _, unlimited_s in with_periods)
    goal_s = least_s if period_s is None else period_s
    if goal_s < least_s * (1 - TOLERANCE):
        raise Unsupported(f"a step of {goal_s:.6g} s is asked for, unlimited quotas give {least_s:.6g} s; ask for that or more")
    any_order = any_order_bytes(plan, cost, goal_s, seconds=min(2.0, seconds))
    best: SizedPlan | None = None
    for candidate, unlimited_s in with_periods:
        if unlimited_s <= goal_s * (1 + TOLERANCE) and (best is None or perf_counter() < ends):
            best = _better(plan, cost, candidate, goal_s, any_order, ends, best)
    if best is None:
        raise Unsupported(f"no quotas keep a step of {goal_s:.6g} s once the streams choose by themselves; write orders into the streams")
    return _descend(plan, cost, goal_s, any_order, ends, best)


def _better(
    plan: Plan, cost: CostModel, ordered_problem: PlanProblem, goal_s: float, any_order: float, ends: float, best: SizedPlan | None
) -> SizedPlan | None:
    """The best Plan so far, or one that this stream order allows."""
    sized = least_bytes(ordered_problem.problem, goal_s, seconds=max(0.5, (ends - perf_counter()) / 2))
    if sized is None or (best is not None and sized.total_bytes >= best.after_bytes):
        return best
    realised = realised_plan(plan, cost, ordered_problem, sized, goal_s, any_order)
    return best if realised is None else realised


def _descend(plan: Plan, cost: CostModel, goal_s: float, any_order: float, ends: float, best: SizedPlan) -> SizedPlan:
    """Other quotas make the streams choose other orders: take a block from a dear Regst and, where the period stands, solve that order too."""
    refused: set[tuple[str, int]] = set()
    while perf_counter() < ends and best.after_bytes > any_order:
        before = best
        dear = sorted(
            (r for r in best.plan.regsts if r.quota > 1 and (r.id, r.quota) not in refused),
            key=lambda r: -best.plan.block_bytes(r) * len(best.plan.placement[r.placement].ranks),
        )
        for regst in dear:
            if perf_counter() > ends:
                break
            trial = plan.with_quotas({r.id: r.quota for r in best.plan.regsts} | {regst.id: regst.quota - 1})
            try:
                graph = marked_graph(trial, cost)
            except (Unsupported, DeadLock):
                refused.add((regst.id, regst.quota))
                continue
            if shortest_period_s(graph.num_nodes, plan_problem(graph).problem.fixed_arcs()) <= goal_s * (1 + TOLERANCE):
                improved = _better(plan, cost, plan_problem(graph), goal_s, any_order, ends, best)
                assert improved is not None
                best = improved
                if best is not before:
                    break
            refused.add((regst.id, regst.quota))
        if best is before:
            break
    return best
