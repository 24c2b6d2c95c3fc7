"""Collectives over gloo equal their single-process meaning."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import gloo_exchange
import pytest
import torch
from python_path import PYTHON_PATH

from backend.comm.collectives import GroupExchange, check_boxing, scratch_bytes
from planner.ir.errors import InvalidPlan, Unsupported
from planner.ir.plan import Boxing
from planner.ir.sbp import B, NdSbp, P, S, Sbp
from planner.ir.tensor import DType


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.representatives("2")
@pytest.mark.processes
@pytest.mark.parametrize("ranks", [2, 3])
def test_every_collective_equals_its_single_process_version(ranks: int) -> None:
    port = str(_free_port())
    shared = os.environ | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "WORLD_SIZE": str(ranks),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": PYTHON_PATH,
    }
    command = [sys.executable, str(Path(gloo_exchange.__file__))]
    workers = [subprocess.Popen(command, env=shared | {"RANK": str(rank)}, stderr=subprocess.PIPE, text=True) for rank in range(ranks)]
    try:
        said = [worker.communicate(timeout=60)[1] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0] * ranks, "\n".join(said)


def test_nobody_meets_in_a_local_step() -> None:
    """A run's trace had acts that ended before they started: a LOCAL boxing task was given the start of the last rank of its axis, although
    its ranks do not wait for each other.  Only tasks that exchange something have peers."""
    plan, task = gloo_exchange.boxing_plan(2, S(0), P, (DType.FLOAT32,), ((3, 4),))
    assert plan.peers(task, 1) == (1,)
    (padded,) = GroupExchange(plan, task, 1, None).run([torch.ones(1, 4)])
    assert padded.tolist() == [[0.0] * 4, [0.0] * 4, [1.0] * 4]
    plan, task = gloo_exchange.boxing_plan(2, P, B, (DType.FLOAT32,), ((3, 4),))
    assert plan.peers(task, 1) == (0, 1)


@pytest.mark.parametrize(
    ("src", "dst", "shapes", "sent", "received"),
    [
        (P, B, ((5, 7), (8, 3)), 0, 0),  # reduced where the result lies
        (S(0), B, ((6, 2),), 0, 0),  # gathered where the result lies
        (S(0), B, ((5, 2),), 0, 3 * 4),  # parts of 4, 4 and 2 elements, the last one padded
        (S(0), B, ((5, 2), (3,)), 5, 15),
        (P, S(0), ((5, 2),), 0, 3 * 4),  # its parts lie one behind the other
        (P, S(1), ((5, 4),), 20, 3 * 10),
        (S(1), S(0), ((5, 4),), 0, 2 * 4),  # its own 2 of 5 rows, whole
    ],
)
def test_scratch_of_an_act_on_the_first_of_three_ranks(
    src: Sbp, dst: Sbp, shapes: tuple[tuple[int, ...], ...], sent: int, received: int
) -> None:
    plan, task = gloo_exchange.boxing_plan(3, src, dst, (DType.FLOAT32,) * len(shapes), shapes)
    assert GroupExchange(plan, task, 0, None).needs == {"sent": 4 * sent, "received": 4 * received}
    assert scratch_bytes(gloo_exchange.alone(plan, task), 0) == 4 * (sent + received)


def test_only_the_rank_whose_part_is_shorter_pads_a_single_gathered_tensor() -> None:
    """The padding lies in scratch and is counted there; it was new memory in every act."""
    plan, task = gloo_exchange.boxing_plan(3, S(0), B, (DType.FLOAT32,), ((5, 2),))
    assert [GroupExchange(plan, task, rank, None).needs["sent"] for rank in range(3)] == [0, 0, 4 * 4]


def test_a_step_that_does_not_move_what_it_says_is_refused() -> None:
    _, task = gloo_exchange.boxing_plan(2, P, B, (DType.FLOAT32,), ((4, 4),))
    body = task.body
    assert isinstance(body, Boxing)
    with pytest.raises(InvalidPlan, match="is not"):
        check_boxing(task, replace(body, dst=NdSbp((S(0),))))
    with pytest.raises(InvalidPlan, match="changes more than"):
        check_boxing(task, replace(body, src=NdSbp((P, P)), dst=NdSbp((B, B))))


def test_a_rank_refuses_a_step_that_does_not_move_what_it_says_before_its_first_act() -> None:
    plan, task = gloo_exchange.boxing_plan(2, P, B, (DType.FLOAT32,), ((4, 4),))
    assert isinstance(task.body, Boxing)
    wrong = replace(task, body=replace(task.body, dst=NdSbp((S(0),))))
    with pytest.raises(InvalidPlan, match="is not"):
        GroupExchange(plan, wrong, 0, None)


def test_parts_that_lie_as_the_results_do_are_summed_at_once_and_others_one_by_one() -> None:
    plan, task = gloo_exchange.boxing_plan(2, P, S(0), (DType.FLOAT32,) * 2, ((8, 4), (8, 4)))
    together = [torch.zeros(32).split(16) for _ in range(4)]
    slots, *rows = [[part.view(4, 4) for part in parts] for parts in together]
    apart = [torch.zeros(4, 4), torch.zeros(8, 4)[4:]]
    (sums,) = GroupExchange(plan, task, 0, None)._sums_of(slots, rows)
    assert [tensor.numel() for tensor in sums] == [32] * 4
    for mixed in ([apart, *rows[1:]], [apart, apart, apart]):
        pairs = GroupExchange(plan, task, 0, None)._sums_of(slots, mixed)
        assert [tensor.numel() for sums in pairs for tensor in sums] == [16] * 8
        assert [slot is own for own, (slot, *_) in zip(slots, pairs, strict=True)] == [True, True]


def test_the_outer_of_two_axes_that_cut_one_dim_cannot_move_first() -> None:
    _, task = gloo_exchange.boxing_plan(2, S(0), B, (DType.FLOAT32,), ((4, 4),))
    body = task.body
    assert isinstance(body, Boxing)
    with pytest.raises(Unsupported, match="later axis"):
        check_boxing(task, replace(body, src=NdSbp((S(0), S(0))), dst=NdSbp((B, S(0)))))
    check_boxing(task, replace(body, src=NdSbp((S(0), S(0))), dst=NdSbp((S(0), B)), axis=1))
