"""The curve of throughput against register memory."""

from __future__ import annotations

from math import inf
from time import perf_counter

import numpy as np

from planner.ir.errors import Unsupported
from planner.ir.plan import Plan
from planner.ir.protocols import CostModel
from simulator.quotas.least_bytes import least_bytes
from simulator.quotas.period import shortest_period_s
from simulator.quotas.realise import SizedPlan, longest_period_s, problems_of
from simulator.quotas.throughput import least_bytes_plan

__all__ = ["pareto"]


def pareto(plan: Plan, cost: CostModel, *, points: int = 8, seconds: float = 30.0) -> tuple[SizedPlan, ...]:
    """Plans between full throughput and the fewest blocks that are live, by falling bytes and growing period; none is worse in both.

    Args:
        points: periods asked for, evenly spaced in throughput from that of unlimited quotas to that of the fewest live ones.
        seconds: after which no further point is begun; the first one always is.
    """
    ends_s = perf_counter() + seconds
    problems = tuple(problems_of(plan, cost))
    share = seconds / (points + 1)
    sized_plans = [least_bytes_plan(plan, cost, problems, None, share)]
    slowest_s = 0.0
    for each in problems:
        if perf_counter() > ends_s:
            break
        least = least_bytes(each.problem, longest_period_s(each.problem), seconds=share)
        if least is not None:
            slowest_s = max(slowest_s, shortest_period_s(each.problem.num_nodes, each.problem.arcs(least.quotas)))
    for rate in np.linspace(1 / sized_plans[0].period_s, 1 / max(slowest_s, sized_plans[0].period_s), points)[1:]:
        if perf_counter() > ends_s:
            break
        try:
            sized_plans.append(least_bytes_plan(plan, cost, problems, max(1 / float(rate), sized_plans[0].goal_s), share))
        except Unsupported:
            continue
    pareto_points: list[SizedPlan] = []
    best_bytes = inf
    for point in sorted(sized_plans, key=lambda p: (p.period_s, p.after_bytes)):
        if point.after_bytes < best_bytes:
            pareto_points.append(point)
            best_bytes = point.after_bytes
    return tuple(pareto_points)
