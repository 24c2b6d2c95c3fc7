"""Communicators that run at the same time cannot dead-lock: one order of launches per rank, proven by a game (SEMANTICS 3.12)."""

from __future__ import annotations

import random
from collections.abc import Mapping

import handmade
import pytest
from matrix import COMMITTED, MODELS, read_plan

from planner.ir.actors.communicators import communicators, joined_ranks
from planner.ir.actors.launches import Launch, check_launches, launch_orders
from planner.ir.errors import DeadLock, InvalidPlan
from planner.ir.plan import Plan

Orders = Mapping[int, tuple[Launch, ...]]


def swapped(orders: Orders, rank: int, place: int) -> Orders:
    """The same, but that ``rank`` launches two neighbours the other way around."""
    order = list(orders[rank])
    order[place], order[place + 1] = order[place + 1], order[place]
    return {**orders, rank: tuple(order)}


def wide() -> Plan:
    """Two stages on a mesh of data and tensor parallel ranks: 8 ranks, several communicators on each."""
    return read_plan("gpt", "pipeline2_data2_tensor2", "fp32")


@pytest.mark.representatives("mlp")
@pytest.mark.parametrize("model", MODELS)
def test_every_committed_plan_has_orders_of_launches_that_cannot_dead_lock(model: str) -> None:
    for name, way, dtype in COMMITTED:
        if name != model:
            continue
        plan = read_plan(name, way, dtype)
        orders = launch_orders(plan)
        check_launches(plan, orders)
        for each in communicators(plan):
            # The ranks of a communicator see one sequence of its launches.
            if each.axis is not None:
                ours = [
                    launch
                    for launch in orders[each.ranks[0]]
                    if launch.ranks == each.ranks and plan.task[launch.task].stream == each.stream
                ]
                assert all([launch for launch in orders[rank] if launch in ours] == ours for rank in each.ranks)


@pytest.mark.representatives("0")
@pytest.mark.parametrize("rank", [0, 5])
def test_two_neighbours_the_other_way_around_on_one_rank_dead_lock_where_they_share_another_rank(rank: int) -> None:
    plan = wide()
    orders = launch_orders(plan)
    caught = passed = 0
    for place in range(len(orders[rank]) - 1):
        one, other = orders[rank][place : place + 2]
        planted = swapped(orders, rank, place)
        shared = (set(one.ranks) & set(other.ranks)) - {rank}
        if shared:
            with pytest.raises(DeadLock, match=r"communicators wait for each other for ever \(SEMANTICS 3\.12\).*rank \d stands at"):
                check_launches(plan, planted)
            caught += 1
        else:
            try:
                check_launches(plan, planted)
                passed += 1
            except DeadLock:
                caught += 1
    assert caught > 5 and passed + caught == len(orders[rank]) - 1


def test_orders_drawn_at_random_are_refused_with_the_way_out() -> None:
    """Micro-batch by micro-batch, but in any order within one."""
    plan, rng = wide(), random.Random(3)
    orders = launch_orders(plan)
    for _ in range(10):
        shuffled = {rank: tuple(sorted(order, key=lambda launch: (launch.act, rng.random()))) for rank, order in orders.items()}
        with pytest.raises(DeadLock, match="the way out: one order of launches for all ranks"):
            check_launches(plan, shuffled)


def test_an_order_that_contradicts_what_acts_wait_for_is_refused() -> None:
    """All ranks agree, but the reduced gradients are launched before the micro-batches that they are the mean of."""
    plan = handmade.pipeline(3, width=2)
    orders = launch_orders(plan)
    check_launches(plan, orders)
    turned = {rank: tuple(reversed(order)) for rank, order in orders.items()}
    with pytest.raises(DeadLock, match=r"which cannot begin|stands at"):
        check_launches(plan, turned)


def test_a_rank_launches_all_that_it_has_a_part_in_once_and_nothing_else() -> None:
    plan = handmade.data_parallel(2, 2)
    orders = launch_orders(plan)
    first = orders[0][0]
    with pytest.raises(InvalidPlan, match=rf"rank 0 launches {first.task} act 0 of ranks \[0, 1\] 0 times per step, and the plan 1 times"):
        check_launches(plan, {**orders, 0: orders[0][1:]})
    with pytest.raises(InvalidPlan, match="2 times per step"):
        check_launches(plan, {**orders, 1: (*orders[1], first)})
    with pytest.raises(InvalidPlan, match="and the plan 0 times"):
        check_launches(plan, {**orders, 1: (*orders[1], Launch(task="nothing", act=0, ranks=(0, 1)))})


def test_a_plan_of_one_rank_and_messages_to_oneself_need_no_communicator() -> None:
    plan = handmade.data_parallel(1, 2)
    assert communicators(plan) == () and joined_ranks(plan) == {}
    assert launch_orders(plan) == {0: ()}
    check_launches(plan, {0: ()})


def test_transfers_join_sender_and_receivers_of_their_stream() -> None:
    plan = handmade.pipeline(2, width=2)
    between = [each for each in communicators(plan) if each.axis is None]
    assert between and all(len(each.ranks) > 1 for each in between)
    for (task, rank), ranks in joined_ranks(plan).items():
        if plan.task[task].meeting_axis is None:
            assert ranks[0] == rank and set(ranks) <= {r for each in between for r in each.ranks}
