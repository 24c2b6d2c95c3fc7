"""A dry run of a Plan for the planner: two steps of the token game show whether it is live and how many bytes it holds at its peak."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from planner.ir.actors.peak import live_bytes
from planner.ir.plan import Plan, Task
from planner.ir.protocols import CostModel
from simulator.compiled import compile_plan, peaks

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


def dry_run(plan: Plan, cost: CostModel | None = None) -> Mapping[int, int]:
    """Live bytes per rank at the peak of two steps: planner.ir.actors.peak.live_bytes, by the engine that is quicker.

    Args:
        cost: prices of the acts (each task's on its first rank); None: every act takes a second.

    Raises:
        DeadLock: some act can never start.
    """
    prices = _FirstRankPrices(cost)
    if 2 * sum(task.acts for task in plan.tasks) <= _SMALL:
        return live_bytes(plan, lambda task: prices.act_s(plan, task, 0))
    return dict(enumerate(peaks(compile_plan(plan, prices), steps=2)))
