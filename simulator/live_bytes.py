"""A dry run of a Plan for the planner: two steps of the token game show whether it is live and how many bytes it holds at its peak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from planner.ir.actors.peak import live_bytes
from planner.ir.plan import Plan, Task
from planner.ir.protocols import CostModel
from simulator.compiled import CompiledPlan, compile_plan, peaks
from simulator.rules.prices import checked_s

__all__ = ["dry_run"]

_SMALL = 20_000
"""Acts of two folded steps up to which the game in Python ends before the compiled kernel would be loaded."""


@dataclass(slots=True)
class _FirstRankPrices:
    """All ranks of a task take the time of its first; without prices every act takes a second."""

    cost: CostModel | None
    price_s: dict[str, float] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return "dry run" if self.cost is None else self.cost.id

    def act_s(self, plan: Plan, task: Task, rank: int) -> float:
        if self.cost is None:
            return 1.0
        if task.id not in self.price_s:
            self.price_s[task.id] = self.cost.act_s(plan, task, plan.ranks_of(task)[0])
        return self.price_s[task.id]

    def equal_on_ranks(self, plan: Plan, task: Task) -> bool:
        return True

    def message_s(self, src_rank: int, dst_rank: int) -> float:
        return 0.0


class _DryRun:
    """Live bytes per rank at the peak of two steps: planner.ir.actors.peak.live_bytes, by the engine that is quicker."""

    def __call__(self, plan: Plan, cost: CostModel | None = None) -> Mapping[int, int]:
        """Play two steps.

        Args:
            cost: prices of the acts (each task's on its first rank); None: every act takes a second.

        Raises:
            DeadLock: some act can never start.   InvalidCluster: a price that is negative or not finite.
        """
        return self.at(plan, (cost,))[0]

    def at(self, plan: Plan, costs: Sequence[CostModel | None]) -> tuple[Mapping[int, int], ...]:
        """The same at several prices.   Raises DeadLock, InvalidCluster: as there."""
        if 2 * sum(task.acts for task in plan.tasks) <= _SMALL:
            return tuple(live_bytes(plan, partial(_FirstRankPrices(cost).act_s, plan, rank=0)) for cost in costs)
        first, *others = map(_FirstRankPrices, costs)
        compiled = compile_plan(plan, first)  # prices are equal on all ranks, so ranks are told apart alike at all of them
        return tuple(
            dict(enumerate(peaks(played, steps=2))) for played in (compiled, *(_priced(compiled, plan, other) for other in others))
        )


def _priced(compiled: CompiledPlan, plan: Plan, prices: _FirstRankPrices) -> CompiledPlan:
    seconds = [checked_s(prices.act_s(plan, task, 0), f"an act of {task.id}") for task, _ in compiled.actors]
    return replace(compiled, cost_id=prices.id, tables=compiled.tables._replace(duration_s=np.array(seconds, dtype=np.float64)))


dry_run = _DryRun()
"""The dry run of the planner (planner.ir.protocols.DryRun)."""
