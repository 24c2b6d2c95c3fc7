"""The best throughput within a memory budget per device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import perf_counter

from planner.ir.errors import OutOfMemory, Unsupported
from planner.ir.plan import Plan
from planner.ir.protocols import CostModel
from planner.ir.units import show_bytes
from simulator.quotas.least_bytes import SizedQuotas, least_bytes
from simulator.quotas.period import shortest_period_s
from simulator.quotas.plans import PlanProblem, plan_problem
from simulator.quotas.problem import QuotaProblem
from simulator.quotas.realise import SizedPlan, any_order_bytes, longest_period_s, problems_of, realised_plan
from simulator.quotas.rounding import TOLERANCE
from simulator.steady import marked_graph
from simulator.steady.graph import OrderPolicy

__all__ = ["under_budget"]

NARROW = 1e-4
"""The bisection ends when the best period is within this of what is proved impossible."""


def under_budget(plan: Plan, cost: CostModel, budget_bytes: int, *, seconds: float = 10.0) -> SizedPlan:
    """The quotas of the shortest period with at most ``budget_bytes`` on each device: blocks, state and largest workspaces together.

    Raises:
        OutOfMemory: no live quotas fit; says which device needs how much.   Unsupported: see full_throughput.
    """
    best: tuple[_Fastest, PlanProblem] | None = None
    needed: dict[str, int] = {}
    problems = tuple(problems_of(plan, cost))
    share = seconds / (len(problems) + 1)
    for ordered_problem in problems:
        budgets = dict.fromkeys(ordered_problem.problem.places, budget_bytes)
        fastest = _fastest(ordered_problem.problem, budgets, share)
        if fastest is None:
            least = least_bytes(ordered_problem.problem, longest_period_s(ordered_problem.problem), seconds=share)
            held = ordered_problem.problem.place_bytes(least.quotas) if least is not None else {}
            needed = min((n for n in (needed, held) if n), key=lambda n: max(n.values()), default={})
        elif best is None or fastest.high_s < best[0].high_s:
            best = fastest, ordered_problem
    if best is None:
        worst = max(needed, key=lambda place: needed[place]) if needed else "a device"
        raise OutOfMemory(
            f"no quotas were found that keep the plan live within {show_bytes(budget_bytes)} per device: with the fewest blocks {worst} "
            f"holds {show_bytes(needed.get(worst, 0))}; allow that much, or plan with more devices, stages or micro-batches"
        )
    fastest, ordered_problem = best
    free = plan_problem(marked_graph(plan, cost, order_policy=OrderPolicy.NONE)).problem
    anyhow = _fastest(free, dict.fromkeys(free.places, budget_bytes), share)
    any_order = any_order_bytes(plan, cost, fastest.high_s)
    realised = realised_plan(plan, cost, ordered_problem, fastest.sized, fastest.high_s * (1 + TOLERANCE), any_order)
    if realised is None:
        raise Unsupported(
            f"quotas for a step of {fastest.high_s:.6g} s fit, but the streams, choosing by themselves, take longer; order them"
        )
    any_order_s = anyhow.low_s if anyhow is not None else 0.0
    return replace(realised, bound_s=max(fastest.low_s, any_order_s), bound_any_order_s=any_order_s)


@dataclass(frozen=True, slots=True)
class _Fastest:
    """No quotas within the budgets have a period below low_s; ``sized`` has the period high_s."""

    low_s: float
    high_s: float
    sized: SizedQuotas


def _fastest(problem: QuotaProblem, budgets: Mapping[str, int], seconds: float) -> _Fastest | None:
    """The shortest period within the budgets, to NARROW, by bisection; every half is proved impossible or solved.  None: nothing fits."""
    ends = perf_counter() + seconds
    low_s = shortest_period_s(problem.num_nodes, problem.fixed_arcs())
    sized = least_bytes(problem, low_s, budgets, seconds=seconds)
    if sized is not None:
        return _Fastest(low_s, low_s, sized)
    sized = least_bytes(problem, longest_period_s(problem), budgets, seconds=seconds)
    if sized is None:
        return None
    high_s = shortest_period_s(problem.num_nodes, problem.arcs(sized.quotas))
    while high_s > low_s * (1 + NARROW) and perf_counter() < ends:
        middle_s = (low_s + high_s) / 2
        faster = least_bytes(problem, middle_s, budgets, seconds=seconds)
        if faster is None:
            low_s = middle_s
        else:
            sized, high_s = faster, shortest_period_s(problem.num_nodes, problem.arcs(faster.quotas))
    final = least_bytes(problem, high_s, budgets, seconds=seconds)
    return _Fastest(low_s, high_s, final if final is not None else sized)
