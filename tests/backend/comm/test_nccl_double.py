"""A double of NCCL: the same values as the meaning of collectives, the launches of every rank on record, and circles of waits named at once."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import pytest
import torch
from gloo_exchange import EVEN, SHAPES, SHIFTS, STEPS, boxing_plan
from matrix import read_plan
from torch import Tensor

from backend.comm.collectives import GroupExchange, exchange
from backend.comm.nccl_double import NcclDouble
from backend.comm.wires import Wire
from backend.layout.sharding import slice_part
from planner.ir.actors.launches import Launch, launch_orders
from planner.ir.collective import Collective
from planner.ir.errors import DeadLock, Mismatch
from planner.ir.plan import Plan
from planner.ir.sbp import NdSbp, P, Partial, ReduceOp, S, Sbp
from planner.ir.tensor import DType


def on_ranks(work: Callable[[int], None], ranks: int) -> list[BaseException]:
    """``work`` on a thread per rank; what they raised."""
    raised: list[BaseException] = []

    def caught(rank: int) -> None:
        try:
            work(rank)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=caught, args=(rank,), daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive(), "a rank hangs"
    return raised


@pytest.mark.parametrize(("src", "dst"), [step for step in (*STEPS, *SHIFTS) if step != (S(0), P)], ids=str)
@pytest.mark.parametrize("ranks", [2, 3])
def test_collectives_on_the_double_equal_their_meaning(ranks: int, src: Sbp, dst: Sbp) -> None:
    shapes = EVEN if (src, dst) in SHIFTS or ranks == 3 else SHAPES
    plan, task = boxing_plan(ranks, src, dst, (DType.FLOAT32,) * 3, shapes)
    rng = torch.Generator().manual_seed(5)
    held: list[list[Tensor]] = []
    for shape in shapes:
        values = [torch.randint(-8, 9, shape, generator=rng).float() for _ in range(ranks)]
        held.append(values if isinstance(src, Partial) else [slice_part(values[0], NdSbp((src,)), (ranks,), (r,)) for r in range(ranks)])
    double = NcclDouble(ranks, [tuple(range(ranks))])
    got: dict[int, list[Tensor]] = {}

    def rank_of(rank: int) -> None:
        got[rank] = GroupExchange(plan, task, rank, double.create(rank, 0)).run([parts[rank] for parts in held])

    assert on_ranks(rank_of, ranks) == []
    for rank in range(ranks):
        assert all(torch.equal(mine, exchange(src, dst, parts)[rank]) for mine, parts in zip(got[rank], held, strict=True))
    called = {recorded.collective for launches in double.launches.values() for recorded in launches}
    if isinstance(src, Partial) and ranks == 3 and dst == S(0):
        assert called == {Collective.REDUCE_SCATTER}  # one call, where parts are equal


def launching(plan: Plan, orders: dict[int, tuple[Launch, ...]], seed: int) -> tuple[NcclDouble, list[BaseException]]:
    """Every rank launches what it is told in its order, after random pauses, as all-reduces of 4 bytes."""
    groups = sorted({launch.ranks for order in orders.values() for launch in order})
    double, rng = NcclDouble(plan.num_ranks, groups), random.Random(seed)
    pauses = {rank: random.Random(rng.random()) for rank in orders}

    def rank_of(rank: int) -> None:
        # One global order of making: that of the groups.
        wires: dict[tuple[int, ...], Wire] = {group: double.create(rank, n) for n, group in enumerate(groups) if rank in group}
        for launch in orders[rank]:
            if pauses[rank].random() < 0.1:
                time.sleep(pauses[rank].uniform(0, 0.001))
            wires[launch.ranks].all_reduce(torch.ones(1), ReduceOp.SUM)

    return double, on_ranks(rank_of, plan.num_ranks)


def test_launches_in_the_orders_of_a_plan_come_to_their_end_and_are_on_record() -> None:
    plan = read_plan("gpt", "pipeline2_data2_tensor2", "fp32")
    orders = launch_orders(plan)
    for seed in range(2):
        double, raised = launching(plan, orders, seed)
        assert raised == []
        assert {rank: [each.group for each in launches] for rank, launches in double.launches.items()} == {
            rank: [launch.ranks for launch in order] for rank, order in orders.items()
        }
        assert {each.size_bytes for launches in double.launches.values() for each in launches} == {4}
        assert all(created == sorted(created) for created in double.created.values())


def test_launches_in_another_order_on_one_rank_dead_lock_on_the_double_too() -> None:
    """The verifier refuses what a device would hang in: two communicators that share two ranks, launched the other way around."""
    plan = read_plan("gpt", "pipeline2_data2_tensor2", "fp32")
    orders = launch_orders(plan)
    order = list(orders[0])
    place = next(
        n for n in range(len(order) - 1) if order[n].ranks != order[n + 1].ranks and len({*order[n].ranks} & {*order[n + 1].ranks}) > 1
    )
    order[place], order[place + 1] = order[place + 1], order[place]
    _, raised = launching(plan, {**orders, 0: tuple(order)}, seed=0)
    assert raised and all(isinstance(error, DeadLock) for error in raised)
    assert "rank 0 runs call" in str(raised[0]) and "launch them in one order on all ranks" in str(raised[0])


def test_two_streams_of_a_rank_that_launch_as_they_like_dead_lock() -> None:
    """As gloo's threads may: each stream of a rank launches when its act begins, so ranks meet two communicators in different orders."""
    double = NcclDouble(2, [(0, 1), (0, 1)])
    wires = {}

    def make(rank: int) -> None:
        for number in (0, 1):
            wires[rank, number] = double.create(rank, number)

    assert on_ranks(make, 2) == []
    raised = on_ranks(lambda place: wires[place, place].all_reduce(torch.ones(2), ReduceOp.SUM), 2)
    assert [type(error) for error in raised] == [DeadLock, DeadLock]
    assert "rank 0 runs call 0 of communicator 0 of ranks [0, 1]; rank 1 runs call 0 of communicator 1" in str(raised[0])


def test_a_circle_over_three_communicators_is_named() -> None:
    """No two ranks differ in the order of what they share; only all three together wait."""
    double = NcclDouble(3, [(0, 1), (1, 2), (0, 2)])
    wires = {}

    def make(rank: int) -> None:
        for number, group in enumerate(double.groups):
            if rank in group:
                wires[rank, number] = double.create(rank, number)

    assert on_ranks(make, 3) == []
    raised = on_ranks(lambda rank: wires[rank, (0, 1, 2)[rank]].all_reduce(torch.ones(1), ReduceOp.SUM), 3)
    assert len(raised) == 3 and all(isinstance(error, DeadLock) for error in raised)
    assert all(f"rank {rank} runs call 0" in str(raised[0]) for rank in range(3))


def test_communicators_that_ranks_make_in_different_orders_dead_lock() -> None:
    double = NcclDouble(2, [(0, 1), (0, 1)])
    raised = on_ranks(lambda rank: [double.create(rank, number) for number in ((0, 1) if rank == 0 else (1, 0))] and None, 2)
    assert raised and all(isinstance(error, DeadLock) and "the making of communicator" in str(error) for error in raised)


def test_ranks_that_call_different_things_in_one_place_are_told_so() -> None:
    double = NcclDouble(2, [(0, 1)])
    raised = on_ranks(lambda rank: double.create(rank, 0).all_reduce(torch.ones(1 + rank), ReduceOp.SUM), 2)
    assert raised and all(isinstance(error, Mismatch) for error in raised)
    assert "rank 0 all_reduce of 4 B; rank 1 all_reduce of 8 B" in str(raised[0])
    with pytest.raises(Mismatch, match="it is none of them"):
        NcclDouble(3, [(0, 1)]).create(2, 0)
