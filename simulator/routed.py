"""Experts whose load is drawn: each act's part that belongs to experts, and each exchange's bytes, as many times as tokens come (SEMANTICS 12).

(1) compute    act x (1 + sum over layers of share x (load - 1)),  share = seconds of the ops of experts / seconds of the act          -> _Part.times
(2) exchange   act x (1 + share x (load - 1)),  share = what twice the bytes take longer / seconds of the act;  load: the busiest rank's
(3) load       of the rank's own experts over the places that the Plan has for them; drawn per step, layer, micro-batch, and for each part of
               the tokens that routes by itself.  Forward and backward pass of a micro-batch have the same.                          -> RoutedLoads

Shares are those of the cluster's description (planner.cost), whatever prices the act.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod

import numpy as np
from numpy.typing import NDArray

from planner.cost import AnalyticCost, op_s
from planner.cost.analytic import kernels_s
from planner.cost.routing import ExpertLoad
from planner.ir.errors import InvalidPlan, Unsupported
from planner.ir.graph import ExpertWork
from planner.ir.plan import Boxing, Plan, Task
from planner.ir.protocols import CostModel
from simulator.noise import NoisySteps, simulate_noisy
from simulator.rules.prices import Factor

__all__ = ["RoutedLoads", "RoutedSteps", "simulate_routed"]

Reals = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Part:
    """share: of the act, as (1) and (2) say."""

    work: ExpertWork
    share: float


@dataclass(slots=True)
class RoutedLoads:
    """The act factors of a Plan's experts under a load (simulator.noise.ActFactors).

    Raises:
        Unsupported: the Plan was made without a routing.
    """

    plan: Plan
    load: ExpertLoad
    _parts: dict[str, list[_Part]] = field(init=False)
    _drawn: dict[tuple[object, ...], Reals] = field(default_factory=dict)
    _dropped: dict[tuple[object, ...], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        plan = self.plan
        if not plan.experts:
            raise Unsupported(
                f"plan {plan.plan_id} was made without a routing, so it does not say which work belongs to experts; plan a model with experts with "
                f"--routing (--routing uniform for even loads)"
            )
        self._parts = defaultdict(list)
        cost = AnalyticCost(plan.cluster)
        for work in plan.experts:
            self._parts[work.task].append(_Part(work, _share(plan, cost, plan.task[work.task], work)))

    def check(self, plan: Plan) -> None:
        """Raises InvalidPlan: it is another Plan."""
        if plan.plan_id != self.plan.plan_id:
            raise InvalidPlan(f"loads of plan {self.plan.plan_id} for plan {plan.plan_id}; draw them for the plan that is played")

    def factor(self, plan: Plan, run: int = 0) -> Factor:
        """(task id, rank, act) -> how many times its price an act of run number ``run`` takes."""
        self.check(plan)

        def times(task: str, rank: int, act: int) -> float:
            if task not in self._parts:
                return 1.0
            acts = plan.task[task].acts
            return float(self._step(plan.task[task], rank, act // acts, run)[act % acts])

        return times

    def column(self, task: Task, rank: int, num_acts: int, run: int = 0) -> Reals:
        """The factors of the first ``num_acts`` acts of a task on a rank, shape [num_acts]."""
        if task.id not in self._parts:
            return np.ones(num_acts)
        steps = -(-num_acts // task.acts)
        return np.concatenate([*(self._step(task, rank, step, run) for step in range(steps)), np.empty(0)])[:num_acts]

    @property
    def dropped_share(self) -> float:
        """Mean share of the choices drawn so far that found no room."""
        return float(np.mean(list(self._dropped.values()))) if self._dropped else 0.0

    def _step(self, task: Task, rank: int, step: int, run: int) -> Reals:
        """Of the acts of one step, shape [acts]."""
        times = np.ones(task.acts)
        for part in self._parts[task.id]:
            times += part.share * (self._loads(task, part.work, rank, step, run) - 1)
        return times

    def _loads(self, task: Task, work: ExpertWork, rank: int, step: int, run: int) -> Reals:
        placement = self.plan.placement[task.placement]
        at, mesh = placement.coordinate(rank), placement.mesh
        parts = prod(mesh[axis] for axis in work.axes)
        where = tuple(at[axis] for axis in work.row_axes)
        of_ranks = self._of_ranks(work, where, parts, task.acts, step, run)
        if isinstance(task.body, Boxing):
            return np.asarray(of_ranks.max(axis=1))
        own = 0
        for axis in work.axes:
            own = own * mesh[axis] + at[axis]
        return np.asarray(of_ranks[:, own])

    def _of_ranks(self, work: ExpertWork, where: tuple[int, ...], parts: int, acts: int, step: int, run: int) -> Reals:
        """Loads of all parts of the experts, shape [acts, parts]."""
        key = (work.layer, work.experts, work.rows, where, parts, acts, step, run)
        if key not in self._drawn:
            popular = f"{run}/{step}/{work.layer}"
            tokens = self.load.tokens(work.experts, work.rows)
            drawn = self.load.draws(work.experts, tokens, acts, key=f"{popular}/{where}", popular=popular)
            self._drawn[key] = drawn.of_ranks(parts) * (drawn.even / work.rows)
            self._dropped[key] = float(drawn.dropped_share.mean())
        return self._drawn[key]


def _share(plan: Plan, cost: AnalyticCost, task: Task, work: ExpertWork) -> float:
    rank = plan.ranks_of(task)[0]
    act_s = cost.act_s(plan, task, rank)
    if act_s <= 0:
        return 0.0
    if isinstance(task.body, Boxing):
        return max(0.0, cost.boxing_act_s(plan, task, rank, 2.0) - act_s) / act_s
    own, _ = plan.cluster.part_of_all(plan.ranks_of(task))
    if own.device.kernels and work.kernels:
        return min(1.0, kernels_s(own, work.kernels) / act_s)
    return min(1.0, op_s(own, work.flop, work.traffic_bytes, work.dtype) / act_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedSteps:
    """Steps with drawn loads, of kind ``sim``.   dropped_share: of the tokens' choices, those without room."""

    load: ExpertLoad
    steps: NoisySteps
    dropped_share: float

    @property
    def quantile_s(self) -> float:
        """Seconds per step that the load's quantile of the runs does not exceed."""
        return float(np.quantile(self.steps.means_s, self.load.quantile))

    @property
    def median_s(self) -> float:
        return float(np.median(self.steps.means_s))


def simulate_routed(
    plan: Plan, cost: CostModel, load: ExpertLoad, *, runs: int = 20, steps: int = 4, on_run: Callable[[int], None] | None = None
) -> RoutedSteps:
    """Perform a Plan ``runs`` times, each with loads of its own; errors as RoutedLoads and simulate_noisy."""
    loads = RoutedLoads(plan, load)
    played = simulate_noisy(plan, cost, loads, runs=runs, steps=steps, on_run=on_run)
    return RoutedSteps(load=load, steps=played, dropped_share=loads.dropped_share)
