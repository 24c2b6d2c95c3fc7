"""What a simulator accepts from a cost model: finite prices that are not negative, asked for once; and when one rank stands for all."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, nan

import handmade
import pytest

from planner.ir.errors import InvalidCluster
from planner.ir.plan import Plan, Task, TaskKind
from simulator.rules.prices import CheckedPrices, act_duration_s, checked_s


@dataclass
class Asked:
    """Prices by (task, rank) and by pair of ranks, 1 s and 0.5 s where nothing is said; counts the questions."""

    acts_s: dict[tuple[str, int], float] = field(default_factory=dict)
    messages_s: dict[tuple[int, int], float] = field(default_factory=dict)
    questions: list[object] = field(default_factory=list)

    @property
    def id(self) -> str:
        return "asked"

    def act_s(self, plan: Plan, task: Task, rank: int) -> float:
        self.questions.append((task.id, rank))
        return self.acts_s.get((task.id, rank), 1.0)

    def message_s(self, src_rank: int, dst_rank: int) -> float:
        self.questions.append((src_rank, dst_rank))
        return self.messages_s.get((src_rank, dst_rank), 0.5)


PLAN = handmade.pipeline(3, width=2)  # ranks 0 and 1 send to ranks 2 and 3, and back: 2 to 0, 3 to 1


def test_a_message_takes_no_time_on_a_rank_and_its_price_between_ranks() -> None:
    cost = Asked()
    prices = CheckedPrices(PLAN, cost)
    assert [prices.message_s(1, 1), prices.message_s(0, 1), prices.message_s(0, 1)] == [0.0, 0.5, 0.5]
    assert cost.questions == [(0, 1)]


def test_a_meeting_takes_as_long_as_its_slowest_rank_and_every_price_is_asked_for_once() -> None:
    cost = Asked({("forward.0", 1): 3.0})
    prices = CheckedPrices(PLAN, cost)
    task = PLAN.task["forward.0"]
    assert [prices.meeting_s(task, (0, 1)), prices.meeting_s(task, (0,)), prices.meeting_s(task, (1,))] == [3.0, 1.0, 3.0]
    assert cost.questions == [("forward.0", 0), ("forward.0", 1)]


@dataclass
class AskedEqual(Asked):
    """A cost model that declares the acts of one task equal on all ranks."""

    equal: str = ""

    def equal_on_ranks(self, plan: Plan, task: Task) -> bool:
        return task.id == self.equal


def test_a_task_whose_acts_are_equal_on_all_ranks_is_asked_for_once() -> None:
    cost = AskedEqual(equal="forward.0")
    prices = CheckedPrices(PLAN, cost)
    assert [prices.act_s(PLAN.task[task], rank) for task in ("forward.0", "load") for rank in (1, 0)] == [1.0] * 4
    assert cost.questions == [("forward.0", 1), ("load", 1), ("load", 0)]


@pytest.mark.parametrize("price_s", [-1e-9, nan, inf])
def test_a_price_that_no_time_can_have_is_refused_with_its_owner(price_s: float) -> None:
    prices = CheckedPrices(PLAN, Asked({("load", 0): price_s}, {(0, 2): price_s}))
    with pytest.raises(InvalidCluster, match="an act of load on rank 0"):
        prices.act_s(PLAN.task["load"], 0)
    with pytest.raises(InvalidCluster, match="a message from rank 0 to rank 2"):
        prices.message_s(0, 2)
    with pytest.raises(InvalidCluster, match="act 4 of load on rank 0"):
        act_duration_s(1.0, lambda task, rank, number: price_s, "load", 0, 4)
    assert checked_s(0, "nothing") == 0.0


@pytest.mark.parametrize(
    ("acts_s", "messages_s", "equal"),
    [
        ({}, {}, True),
        ({("forward.0", 1): 2.0}, {}, False),
        ({}, {(0, 3): 0.6}, False),
        ({}, {(3, 0): 0.6}, False),
        ({}, {(1, 0): 0.6}, True),  # nobody sends there
    ],
)
def test_one_rank_stands_for_all_only_if_acts_and_messages_of_its_placement_take_equally_long(
    acts_s: dict[tuple[str, int], float], messages_s: dict[tuple[int, int], float], equal: bool
) -> None:
    assert CheckedPrices(PLAN, Asked(acts_s, messages_s)).ranks_are_equal() is equal


def test_one_rank_does_not_stand_for_all_where_one_of_them_sends_and_another_does_not() -> None:
    send = next(task for task in PLAN.tasks if task.kind is TaskKind.TRANSFER)
    assert CheckedPrices(PLAN, Asked(), _routes={send.id: {0: (2,), 1: (3,)}}).ranks_are_equal()
    assert not CheckedPrices(PLAN, Asked(), _routes={send.id: {0: (2,), 1: ()}}).ranks_are_equal()
