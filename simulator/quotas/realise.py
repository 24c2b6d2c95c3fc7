"""What the optimisers of Plans share: the stream orders to try, the rewritten Plan with its period, and a lower bound over all orders.

    plan -> problems_of (stream orders observed at several quotas) -> certified quotas -> realised_plan (verified; its period by simulator.steady)

The proof of the rewritten Plan, by simulator.steady on the Plan itself, does not rest on the optimiser's start times.
An optimum is one of *given stream orders*; any_order_bytes says how little any order could do with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from planner.ir.actors.verify import verify
from planner.ir.errors import DeadLock, Unsupported
from planner.ir.plan import Plan, RegstKind
from planner.ir.protocols import CostModel
from planner.parallelism.asked_quotas import with_quotas_asked
from simulator.quotas.least_bytes import SizedQuotas, least_bytes
from simulator.quotas.plans import PlanProblem, ordered, plan_problem, register_bytes
from simulator.quotas.problem import QuotaProblem
from simulator.quotas.rules import QuotaRule, rule_quotas
from simulator.steady import marked_graph, steady_state
from simulator.steady.graph import OrderPolicy

__all__ = ["SizedPlan", "any_order_bytes", "longest_period_s", "problems_of", "realised_plan"]

SAME = 1e-6
"""Relative: two sums of the same times in different orders agree within this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedPlan:
    """A Plan with new quotas and what is proved about it.  Bytes: of all registers that are not state, on all devices together.

    period_s: seconds per step, of ``plan`` (theory).   goal_s: the period that was asked for, or that unlimited quotas give.
    bound_bytes: no quotas need less for period_s with these stream orders.   bound_any_order_bytes: nor with any.
    bound_s: for a budget, no quotas within it are faster with these stream orders; bound_any_order_s: nor with any; else both 0.
    left_out: what the proof does not cover (simulator.steady.graph.MarkedGraph); empty: nothing.
    orders: streams whose order is written into the Plan, because by their own choice they would be slower.
    """

    plan: Plan
    before_bytes: int
    after_bytes: int
    bound_bytes: float
    bound_any_order_bytes: float
    before_s: float
    period_s: float
    goal_s: float
    orders: tuple[str, ...]
    method: str
    left_out: str
    bound_s: float = 0.0
    bound_any_order_s: float = 0.0

    @property
    def is_certified(self) -> bool:
        """Whether no other quotas need fewer bytes at this period and these orders."""
        return self.after_bytes <= self.bound_bytes and self.period_s <= self.goal_s * (1 + SAME)


def problems_of(plan: Plan, cost: CostModel) -> Iterator[PlanProblem]:
    """The Plan's stream orders at its own quotas, at generous ones and at those of the rules, each order once."""
    names = [r.id for r in plan.regsts if r.kind is not RegstKind.STATE and r.producer is not None]
    trials: list[Mapping[str, int]] = [{}, *(rule_quotas(plan, rule, cost) for rule in QuotaRule)]
    trials += [{n: 2 * plan.regst[n].quota + 1 for n in names}, dict.fromkeys(names, plan.micro_batches + 1), dict.fromkeys(names, 1)]
    seen: set[bytes] = set()
    refused: list[Exception] = []
    for quotas in trials:
        try:
            graph = marked_graph(plan.with_quotas(quotas), cost)
        except (Unsupported, DeadLock) as error:
            refused.append(error)
            continue
        candidate = plan_problem(graph)
        order = candidate.problem.head.tobytes() + candidate.problem.tokens.tobytes()
        if order not in seen:
            seen.add(order)
            yield candidate
    if not seen:
        raise refused[0]


def realised_plan(
    plan: Plan, cost: CostModel, ordered_problem: PlanProblem, sized: SizedQuotas, goal_s: float, any_order: float
) -> SizedPlan | None:
    """The Plan with the quotas, its streams without an order if that reaches the goal, else with the problem's orders; None: neither reaches it."""
    quotas = ordered_problem.quotas(sized.quotas)
    alone = plan.with_quotas(quotas)
    for candidate in (alone, ordered(ordered_problem.graph.with_quotas(quotas))):
        try:
            steady = steady_state(candidate, cost)
        except (Unsupported, DeadLock):
            continue
        if steady.period_s <= goal_s * (1 + SAME):
            verify(candidate)
            return SizedPlan(
                plan=with_quotas_asked(candidate, plan),
                before_bytes=register_bytes(plan),
                after_bytes=register_bytes(candidate),
                bound_bytes=sized.bound_bytes,
                bound_any_order_bytes=any_order,
                before_s=steady_state(plan, cost).period_s,
                period_s=steady.period_s,
                goal_s=goal_s,
                orders=tuple(s.id for s, old in zip(candidate.streams, plan.streams, strict=True) if s.order != old.order),
                method=sized.method,
                left_out=steady.graph.left_out,
            )
    return None


def any_order_bytes(plan: Plan, cost: CostModel, goal_s: float, *, seconds: float = 2.0) -> float:
    """Lower bound of the bytes at this period, over all orders of the streams; 0: no such bound is known."""
    free = plan_problem(marked_graph(plan, cost, order_policy=OrderPolicy.NONE))
    smallest = least_bytes(free.problem, goal_s, seconds=seconds)
    return 0.0 if smallest is None else smallest.bound_bytes


def longest_period_s(problem: QuotaProblem) -> float:
    """A period that every live choice of quotas reaches: all acts could follow one another in it."""
    return float(problem.weight_s.sum()) + sum(r.release_s * len(r.producers) for b in problem.buffers for r in b.rings)
