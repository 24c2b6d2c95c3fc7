"""Prices of acts and messages: what a simulator accepts from a cost model, and who may change a price on the way."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from planner.ir.actors.actor import ActorId
from planner.ir.actors.routes import routes
from planner.ir.errors import InvalidCluster
from planner.ir.plan import Plan, Task, TaskKind
from planner.ir.protocols import Contended, CostModel, EqualOnRanks

__all__ = ["CheckedPrices", "Factor", "checked_s", "contention_left_out", "act_duration_s", "equality_of", "slowdown_of"]

Factor = Callable[[str, int, int], float]
"""(task id, rank, number of the act) -> how many times its price the act takes."""


def checked_s(duration_s: float, what: str) -> float:
    """A price of the cost model, in seconds.

    Raises:
        InvalidCluster: negative or not finite.
    """
    if not (math.isfinite(duration_s) and duration_s >= 0):
        raise InvalidCluster(f"the cost model says that {what} takes {duration_s} s; times must be finite and >= 0, calibrate again")
    return float(duration_s)


def act_duration_s(price_s: float, factor: Factor | None, task: str, rank: int, number: int) -> float:
    """What an act takes: its price, times what the factor says of it.  Raises InvalidCluster: as checked_s."""
    return price_s if factor is None else checked_s(price_s * factor(task, rank, number), f"act {number} of {task} on rank {rank}")


def equality_of(cost: CostModel) -> Callable[[Plan, Task], bool]:
    """Whether the cost model says that an act takes equally long on all ranks of the task."""
    return cost.equal_on_ranks if isinstance(cost, EqualOnRanks) else lambda plan, task: False


def slowdown_of(cost: CostModel) -> float:
    """How many times as long computing takes while its rank communicates; 1 where the cost model does not say."""
    return cost.compute_slowdown if isinstance(cost, Contended) else 1.0


def contention_left_out(cost: CostModel) -> str:
    """What a theory of constant durations leaves out of these prices, as a sentence; empty: nothing."""
    slowdown = slowdown_of(cost)
    if slowdown == 1:
        return ""
    return f"a contention-free bound: with these prices computing takes {slowdown:.3g} times as long beside communication, which is left out here"


@dataclass(slots=True)
class CheckedPrices:
    """A cost model's durations of acts and messages in seconds; a negative or infinite one is refused.

    Asks the cost model at most once per task and rank, once per task whose acts it says are equal, and once per pair of ranks.
    """

    plan: Plan
    cost: CostModel
    is_equal: Callable[[Plan, Task], bool] = field(init=False)
    _acts: dict[ActorId, float] = field(default_factory=dict)
    _messages: dict[tuple[int, int], float] = field(default_factory=dict)
    _routes: dict[str, Mapping[int, tuple[int, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.is_equal = equality_of(self.cost)

    def act_s(self, task: Task, rank: int) -> float:
        """Seconds of one act on one rank, without waiting.

        Raises:
            InvalidCluster: the price is negative or not finite.
        """
        key = task.id, rank
        if key not in self._acts:
            price_s = checked_s(self.cost.act_s(self.plan, task, rank), f"an act of {task.id} on rank {rank}")
            ranks = self.plan.ranks_of(task) if self.is_equal(self.plan, task) else (rank,)
            self._acts.update(((task.id, equal), price_s) for equal in ranks)
        return self._acts[key]

    def meeting_s(self, task: Task, group: tuple[int, ...]) -> float:
        """Seconds of an act in which ``group`` meets: its slowest rank's."""
        if len(group) == 1 or self.is_equal(self.plan, task):
            return self.act_s(task, group[0])
        return max(self.act_s(task, rank) for rank in group)

    def message_s(self, src_rank: int, dst_rank: int) -> float:
        """Seconds until a message arrives; none on a rank.

        Raises:
            InvalidCluster: the price is negative or not finite.
        """
        if src_rank == dst_rank:
            return 0.0
        key = src_rank, dst_rank
        if key not in self._messages:
            self._messages[key] = checked_s(self.cost.message_s(*key), f"a message from rank {src_rank} to rank {dst_rank}")
        return self._messages[key]

    def routes(self, task: Task) -> Mapping[int, tuple[int, ...]]:
        """As planner.ir.actors.routes.routes, worked out once per TRANSFER."""
        if task.id not in self._routes:
            self._routes[task.id] = routes(self.plan, task)
        return self._routes[task.id]

    def ranks_are_equal(self) -> bool:
        """Whether one rank per placement gives the same period as all of them.

        So it is when every task costs the same on all its ranks, every sender of a TRANSFER has a receiver, and all messages of a TRANSFER
        take equally long: then every cycle of the folded graph is a cycle of the whole one with the same ratio, and the other way round.
        """
        for task in self.plan.tasks:
            ranks = self.plan.ranks_of(task)
            if len(ranks) > 1 and len({self.act_s(task, rank) for rank in ranks}) > 1:
                return False
            if task.kind is not TaskKind.TRANSFER:
                continue
            table = self.routes(task)
            if not all(table.values()):
                return False
            pairs = [(src, dst) for src, targets in table.items() for dst in targets]
            if len({(self.message_s(src, dst), self.message_s(dst, src)) for src, dst in pairs}) > 1:
                return False
        return True
