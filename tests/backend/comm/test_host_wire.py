"""Collectives through memory that the processes of a host map: gloo's bits, everybody or nobody, and no rank that waits for a dead one.

Ranks are threads of this process here; tests/backend/launch kills processes of real runs.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from backend.comm.host import counters
from backend.comm.host.counters import Counters, counters_bytes
from backend.comm.host.groups import HostGroups
from backend.comm.host.wire import SLOT_BYTES, HostWire
from planner.ir.actors.communicators import Communicator
from planner.ir.errors import WorkerFailed
from planner.ir.sbp import ReduceOp

pytestmark = pytest.mark.skipif(bool(counters.missing()), reason=counters.missing() or "nothing is missing")

LENGTHS = (1, 2, 3, 5, 7, 8, 17, 1001, 65537, SLOT_BYTES // 4, SLOT_BYTES // 4 + 1, 300_007)


def on_ranks(ranks: int, act: Callable[[int], None]) -> None:
    """``act(rank)`` on a thread per rank; raises what one of them raised."""
    errors: list[BaseException] = []

    def guarded(rank: int) -> None:
        try:
            act(rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(rank,), daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "ranks wait for each other"
    if errors:
        raise errors[0]


def groups_of(ranks: int, members: tuple[int, ...], largest_bytes: int = 1 << 30) -> list[HostGroups]:
    """What each of ``ranks`` has after one communicator."""
    store = dist.HashStore()
    made = [HostGroups(store, rank, 20.0) for rank in range(ranks)]
    on_ranks(ranks, lambda rank: made[rank].join(communicator(members), largest_bytes))
    return made


def communicator(members: tuple[int, ...]) -> Communicator:
    return Communicator(stream="c", axis=0, ranks=members)


def wires_of(ranks: int, largest_bytes: int = 1 << 30) -> list[HostWire]:
    members = tuple(range(ranks))
    return [groups.wires[communicator(members)] for groups in groups_of(ranks, members, largest_bytes)]


def drawn(rank: int, length: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(length, generator=torch.Generator().manual_seed(1000 * length + rank)).to(dtype)


def added_by_gloo(ranks: int, dtype: torch.dtype) -> dict[int, Tensor]:
    """Length -> the sum over the ranks' values, as gloo adds them up."""
    store, sums = dist.HashStore(), {}

    def act(rank: int) -> None:
        group = dist.ProcessGroupGloo(store, rank, ranks, timedelta(seconds=30))
        for length in LENGTHS:
            value = drawn(rank, length, dtype)
            group.allreduce([value]).wait()
            if rank == 0:
                sums[length] = value

    on_ranks(ranks, act)
    return sums


@pytest.mark.parametrize(
    ("ranks", "dtype"),
    [(2, torch.float32), (3, torch.float32), (4, torch.float32), pytest.param(3, torch.bfloat16, marks=pytest.mark.thorough)],
)
def test_sums_have_the_bits_of_gloos(ranks: int, dtype: torch.dtype) -> None:
    sums, wires = added_by_gloo(ranks, dtype), wires_of(ranks)

    def act(rank: int) -> None:
        for length in LENGTHS:
            value = drawn(rank, length, dtype)
            apart = torch.full_like(value, 3)
            wires[rank].all_reduce(apart, ReduceOp.SUM, value)
            assert torch.equal(value, drawn(rank, length, dtype)), "what is sent is only read"
            wires[rank].all_reduce(value, ReduceOp.SUM)
            assert torch.equal(value, sums[length]) and torch.equal(apart, sums[length]), f"{length} elements on rank {rank}"

    on_ranks(ranks, act)


@pytest.mark.parametrize("ranks", [2, 3])
def test_parts_of_any_length_come_from_everybody_in_rounds_of_a_slot(ranks: int) -> None:
    wires = wires_of(ranks, largest_bytes=1)

    def act(rank: int) -> None:
        wire = wires[rank]
        for length in (1, 5, 1024, 1025, 5000):
            gathered = torch.empty(ranks * length)
            wire.all_gather(gathered, drawn(rank, length, torch.float32))
            assert torch.equal(gathered, torch.cat([drawn(other, length, torch.float32) for other in range(ranks)]))
            # Rank r sends length * (r + 1) + s elements to rank s: nobody knows the longest from lengths of its own.
            outgoing = [torch.full((length * (rank + 1) + to,), float(10 * rank + to)) for to in range(ranks)]
            coming = [torch.full((length * (other + 1) + rank,), float(10 * other + rank)) for other in range(ranks)]
            received = torch.empty(sum(map(len, coming)))
            wire.all_to_all(received, torch.cat(outgoing), [len(part) for part in coming], [len(part) for part in outgoing])
            assert torch.equal(received, torch.cat(coming))
            least = drawn(rank, length, torch.float32)
            wire.all_reduce(least, ReduceOp.MIN)
            assert torch.equal(least, torch.stack([drawn(other, length, torch.float32) for other in range(ranks)]).amin(0))

    on_ranks(ranks, act)


def test_ranks_outside_of_a_communicator_hear_of_it_and_memory_has_no_name() -> None:
    made = groups_of(3, (2, 0), largest_bytes=100)
    assert all(groups.carries(communicator((2, 0))) and groups.carries_all for groups in made)
    assert [len(groups.wires) for groups in made] == [1, 0, 1]
    assert made[1].mapped_bytes == 0 < made[0].mapped_bytes == made[2].mapped_bytes
    assert made[0].about == f"shared memory ({made[0].mapped_bytes} B)"
    assert not [path for path in Path("/dev/shm").glob("*") if "regista" in path.name], "no file is left"


@pytest.mark.parametrize("fault", ["no memfd", "no room", "a rank may not map it", "another processor"])
def test_one_rank_without_shared_memory_is_enough_for_gloo_and_everybody_says_why(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(fd: int, offset: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    opening = os.open

    def refuse(path: str, *rest: int) -> int:
        if str(path).startswith("/proc/") and threading.current_thread().name != "first":
            raise PermissionError(13, "Permission denied")
        return opening(path, *rest)

    said = {
        "no memfd": "this system has no memfd_create",
        "no room": "No space left on device",
        "a rank may not map it": "cannot map what rank 0 shares: Permission denied",
        "another processor": "aarch64 under linux is not known to keep the order of stores",
    }[fault]
    match fault:
        case "no memfd":
            monkeypatch.delattr(os, "memfd_create")
        case "no room":
            monkeypatch.setattr(os, "posix_fallocate", no_room)
        case "a rank may not map it":
            monkeypatch.setattr(os, "open", refuse)
        case _:
            monkeypatch.setattr("backend.comm.host.counters.platform.machine", lambda: "aarch64")
    for groups in groups_of(3, (0, 1)):
        assert not groups.carries_all and not groups.wires and groups.mapped_bytes == 0
        assert groups.about.startswith("gloo (") and said in groups.about


def test_a_peer_that_ended_or_does_not_come_ends_the_meeting() -> None:
    peer = subprocess.Popen(["sleep", "60"])
    lives = [-1, os.pidfd_open(peer.pid)]
    alone = Counters(torch.zeros(counters_bytes(2), dtype=torch.uint8), 0, (4, 7), lives, timeout_s=0.2)
    with pytest.raises(RuntimeError, match=r"timed out: rank 7 has not come to a collective within 0\.2 s"):
        alone.meet()
    threading.Timer(0.2, peer.kill).start()
    waiting = Counters(torch.zeros(counters_bytes(2), dtype=torch.uint8), 0, (4, 7), lives, timeout_s=60)
    started_s = time.monotonic()
    with pytest.raises(WorkerFailed, match="rank 4: rank 7 has ended in the midst of a collective"):
        waiting.meet()
    assert time.monotonic() < started_s + 5
    peer.wait()


def test_what_a_rank_left_before_it_ended_is_read() -> None:
    memory = torch.zeros(counters_bytes(2), dtype=torch.uint8)
    peer = subprocess.Popen(["true"])
    lives = [-1, os.pidfd_open(peer.pid)]
    peer.wait()
    memory.view(torch.int32)[16] = 1
    Counters(memory, 0, (0, 1), lives, timeout_s=5).meet()
    assert memory.view(torch.int32)[[0, 16]].tolist() == [1, 1], "both have come once"


def test_counters_run_around() -> None:
    memory = torch.zeros(counters_bytes(2), dtype=torch.uint8)
    ends = [Counters(memory, place, (0, 1), (-1, -1), timeout_s=5) for place in range(2)]
    memory.view(torch.int32).fill_(-3)
    for end in ends:
        end._count = 2**32 - 3
    on_ranks(2, lambda rank: [ends[rank].meet() for _ in range(6)] and None)
    assert memory.view(torch.int32)[[0, 16]].tolist() == [3, 3]
