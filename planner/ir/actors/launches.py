"""The order in which each rank launches its communications, and a proof that communicators which run at the same time cannot dead-lock.

A communication of NCCL is a kernel that holds a part of the device until all its ranks have launched it.  Where a device has room for some only,
two ranks that launch two of them in different orders wait for ever, although no act of the Plan waits for itself:

    rank 0   [ all_reduce on (0, 1) ] waits for rank 1          rank 1   [ all_gather on (1, 0) ] waits for rank 0

So every rank has one order of launches over all its communicators.

(1)  launch_order: a play of the token game begins communications in some order; each rank takes its own out of that           -> launch_orders()
(2)  proof: the game of the worst device comes to its end, in which a communication runs on its ranks only when it stands first in the order of
     each, and no other runs on any of them meanwhile                                                                          -> check_launches()

Why (2) proves it.  An order adds arcs to the token game and takes none away, so the game stays persistent (planner.ir.actors.liveness): if one
maximal play completes a step, all do.  A device that runs several kernels at a time has fewer arcs, and after a step everything, the places in the
orders too, stands as before it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from planner.ir.actors.actor import Actor
from planner.ir.actors.communicators import joined_ranks
from planner.ir.actors.game import TokenGame
from planner.ir.actors.liveness import play
from planner.ir.errors import DeadLock, InvalidPlan
from planner.ir.plan import Plan, Task

__all__ = ["Launch", "LaunchOrders", "check_launches", "launch_orders"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One communication of a step: act number ``act`` of the step, joining ``ranks`` (planner.ir.actors.communicators.joined_ranks)."""

    task: str
    act: int
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.task} act {self.act} of ranks {list(self.ranks)}"


LaunchOrders = Mapping[int, Sequence[Launch]]
"""Rank -> what it launches in one step, in this order, step after step."""


def launch_orders(plan: Plan, duration_s: Callable[[Task], float] = lambda task: 1.0) -> dict[int, tuple[Launch, ...]]:
    """One order of launches per rank, consistent over all communicators; equation (1).

    Args:
        duration_s: how long an act takes, above 0; a communication that can begin early then stands early.

    Raises:
        DeadLock: the Plan is not live.
    """
    groups: dict[str, dict[tuple[int, ...], None]] = {}
    for (task, _), ranks in joined_ranks(plan).items():
        groups.setdefault(task, {})[ranks] = None
    orders: dict[int, list[Launch]] = {rank: [] for rank in range(plan.num_ranks)}
    for firing in play(plan, duration_s=duration_s):
        for ranks in groups.get(firing.task, ()):
            for rank in ranks:
                orders[rank].append(Launch(task=firing.task, act=firing.act, ranks=ranks))
    return {rank: tuple(order) for rank, order in orders.items()}


def check_launches(plan: Plan, orders: LaunchOrders) -> None:
    """Prove that ranks which launch in these orders never wait for each other for ever; equation (2).

    Raises:
        InvalidPlan: a rank launches something that it has no part in, or not once per act.
        DeadLock: with the launches that wait for each other.
    """
    _check_counts(plan, orders)
    _WorstDevice(plan, orders).play()


def _check_counts(plan: Plan, orders: LaunchOrders) -> None:
    wanted: dict[int, dict[Launch, None]] = {rank: {} for rank in range(plan.num_ranks)}
    for (task, _), ranks in joined_ranks(plan).items():
        for act in range(plan.task[task].acts):
            for rank in ranks:
                wanted[rank][Launch(task=task, act=act, ranks=ranks)] = None
    for rank, launches in wanted.items():
        given = Counter(orders.get(rank, ()))
        wrong = next((launch for launch in (*launches, *given) if given[launch] != (launch in launches)), None)
        if wrong is not None:
            raise InvalidPlan(
                f"rank {rank} launches {wrong} {given[wrong]} times per step, and the plan {int(wrong in launches)} times (SEMANTICS 3.12); "
                "take the orders of launch_orders(plan)"
            )


class _WorstDevice:
    """The game of equation (2), one step of it."""

    def __init__(self, plan: Plan, orders: LaunchOrders) -> None:
        self._plan, self._orders = plan, orders
        self._joined = joined_ranks(plan)
        self._game = TokenGame(plan, 1)
        self._place = dict.fromkeys(orders, 0)
        self._look = deque(self._game.actors.values())

    def play(self) -> None:
        """Raises DeadLock: some act can never begin."""
        while self._look:
            self._try(self._look.popleft())
        if not self._game.is_over:
            raise DeadLock(self._explain())

    def _first(self, rank: int) -> Launch | None:
        place = self._place[rank]
        return self._orders[rank][place] if place < len(self._orders[rank]) else None

    def _may_begin(self, actor: Actor) -> bool:
        gate = self._game.gates[actor.task.stream, actor.rank]
        return actor.can_fire() and (not gate.order or gate.order[gate.position % len(gate.order)] == actor.task.id)

    def _try(self, actor: Actor) -> None:
        if not self._may_begin(actor):
            return
        ranks = self._joined.get(actor.id)
        if ranks is None:
            self._perform([actor])
            return
        launch = Launch(task=actor.task.id, act=actor.acts_begun, ranks=ranks)
        actors = self._actors_of(launch)
        if all(self._first(rank) == launch for rank in ranks) and all(self._may_begin(each) for each in actors):
            for rank in ranks:
                self._place[rank] += 1
            self._perform(actors)
            self._look.extend(self._game.actors[first.task, first.ranks[0]] for rank in ranks if (first := self._first(rank)) is not None)

    def _actors_of(self, launch: Launch) -> list[Actor]:
        """A collective is an act of all its ranks, a transfer one of the sender."""
        acting = launch.ranks if self._plan.task[launch.task].meeting_axis is not None else launch.ranks[:1]
        return [self._game.actors[launch.task, rank] for rank in acting]

    def _perform(self, actors: Sequence[Actor]) -> None:
        for actor in actors:
            self._game.begin(actor)
        for actor in actors:
            for message in self._game.end(actor):
                self._game.deliver(message)
                self._look.append(self._game.actors[message.receiver])
            gate = self._game.gates[actor.task.stream, actor.rank]
            self._look.append(self._game.actors[gate.order[gate.position % len(gate.order)], actor.rank] if gate.order else actor)

    def _explain(self) -> str:
        """The circle of ranks that wait for each other; where there is none, why the Plan's own game stands still."""
        path: dict[int, str] = {}
        rank: int | None = next((rank for rank in self._orders if self._first(rank) is not None), None)
        while rank is not None and rank not in path:
            launch = self._first(rank)
            if launch is None:
                break
            elsewhere = next((other for other in launch.ranks if self._first(other) != launch), None)
            if elsewhere is None:
                path[rank] = f"rank {rank} stands at {launch}, which cannot begin: {self._game.explain()}"
                break
            path[rank] = f"rank {rank} stands at {launch} and waits for rank {elsewhere}"
            rank = elsewhere
        circle = list(path.values())[list(path).index(rank) if rank in path and len(path) > 1 else 0 :]
        return (
            f"communicators wait for each other for ever (SEMANTICS 3.12): {'; '.join(circle) or self._game.explain()}; "
            "the way out: one order of launches for all ranks, such as that of launch_orders(plan)"
        )
