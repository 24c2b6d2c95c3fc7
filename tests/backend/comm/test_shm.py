"""Blocks shared between the processes of a host: the same bits as through sockets, a fall-back that says why, and nothing left behind."""

from __future__ import annotations

import errno
import gc
import os
import queue
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import handmade
import pytest
import torch
from matrix import plan_for, program

from backend import run
from backend.comm.host.blocks import mapped_blocks, reserve, senders_of, shared_regsts
from backend.comm.transport import HEADER, Frame, Mesh
from backend.memory.options import MemoryOptions
from backend.run_folder.files import FailureKind
from backend.run_folder.outcome import Outcome
from backend.worker.failures import failure_of_reader
from planner.ir.errors import WorkerFailed
from planner.ir.plan import TaskKind

STEPS = 3


class Pair:
    """The part of a Mesh that hands descriptors over, between two ranks of one process."""

    def __init__(self) -> None:
        self.ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)

    def mesh(self, rank: int) -> Mesh:
        made = Mesh(rank, [], None, "test", key=bytes(32), unix=True, timeout_s=5)  # type: ignore[arg-type]  # without peers no store is asked
        made._links[1 - rank, Mesh.DATA] = self.ends[rank]
        return made


def test_a_fault_of_a_reader_is_reported_as_a_broken_connection_is() -> None:
    """Symptom: a run stood still for timeout_s and was called stalled.  Cause: a reader ended without a word on all but an OSError."""
    pair, reported = Pair(), queue.SimpleQueue[tuple[int, Exception]]()

    def raise_it(*_: object) -> None:
        raise KeyError("no such task")

    pair.mesh(0).start_readers(raise_it, raise_it, lambda peer, error: reported.put((peer, error)))
    pair.ends[1].sendall(HEADER.pack(Frame.DONE, 7, 0))
    peer, error = reported.get(timeout=10)
    assert peer == 1 and isinstance(error, KeyError)
    failure = failure_of_reader(0, peer, error)
    assert failure.kind is FailureKind.RAISED and failure.message == "reading what rank 1 sent: KeyError: 'no such task'"
    assert failure_of_reader(0, 1, ConnectionError()).kind is FailureKind.PEER_LOST


def test_shared_regsts_are_those_that_another_rank_sends_to() -> None:
    plan = handmade.pipeline(2)
    for rank in (0, 1):
        assert senders_of(plan, rank) == (1 - rank,)
        assert {r.id for r in shared_regsts(plan, rank)} == {
            port.regst for t in plan.tasks if t.kind is TaskKind.TRANSFER and plan.ranks_of(t) == (1 - rank,) for port in t.produces
        }
    alone = handmade.data_parallel(2)
    assert shared_regsts(alone, 0) == () and senders_of(alone, 0) == ()
    assert reserve(alone, 0, one_host=True, static=True).about == "none"


def test_what_the_sender_writes_lies_in_the_receivers_blocks() -> None:
    plan, pair = handmade.pipeline(2), Pair()
    shared = [reserve(plan, rank, one_host=True, static=True) for rank in (0, 1)]
    mapped: dict[int, dict[int, object]] = {}
    threads = [
        threading.Thread(target=lambda r=rank: mapped.update({r: mapped_blocks(plan, r, pair.mesh(r), shared[r], one_host=True)}))  # type: ignore[misc]
        for rank in (0, 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    for sender in (0, 1):
        receiver = 1 - sender
        tables = mapped[sender][receiver]
        memory = shared[receiver].memory
        assert memory is not None and not memory.any()
        for slots in tables.values():  # type: ignore[attr-defined]
            for row in slots:
                for tensor in row:
                    tensor.fill_(1.5)
        own = memory.view(torch.float32)
        assert int((own == 1.5).sum()) == sum(t.numel() for s in tables.values() for row in s for t in row)  # type: ignore[attr-defined]


def open_blocks() -> int:
    """Descriptors of this process that are of shared blocks; other threads open and close descriptors of their own meanwhile."""
    names = 0
    for entry in os.scandir("/proc/self/fd"):
        try:
            names += "memfd:regista-" in os.readlink(entry.path)
        except FileNotFoundError:  # that of the listing, or another thread's
            continue
    return names


def test_once_mapped_no_descriptor_stays_open_but_those_of_the_maps() -> None:
    plan, pair = handmade.pipeline(2), Pair()
    gc.collect()  # what earlier tests left may hold descriptors
    before = open_blocks()
    shared = [reserve(plan, rank, one_host=True, static=True) for rank in (0, 1)]
    meshes = [pair.mesh(rank) for rank in (0, 1)]
    with ThreadPoolExecutor(2) as threads:
        tables = list(threads.map(lambda rank: mapped_blocks(plan, rank, meshes[rank], shared[rank], one_host=True), (0, 1)))
    maps = 2 * len(shared)  # each rank's own memory and the peer's view of it; Python's mmap holds a descriptor of its own
    assert open_blocks() == before + maps
    assert all(len(table) == 1 for table in tables)


def test_a_descriptor_that_never_comes_ends_the_wait() -> None:
    pair = Pair()
    pair.ends[1].close()
    with pytest.raises(WorkerFailed, match="rank 1 ended before it handed over its blocks"):
        pair.mesh(0).receive_descriptor(1)


def test_without_room_blocks_are_not_shared_and_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = set(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "posix_fallocate", full)
    reserved = reserve(handmade.pipeline(2), 1, one_host=True, static=True)
    assert reserved.memory is None and reserved.about.startswith("sockets (no room for ") and "No space left" in reserved.about
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("one_host", "static", "why"), [(False, True, "sockets (several hosts)"), (True, False, "sockets (blocks come and go)")]
)
def test_between_hosts_and_for_blocks_that_come_and_go_payloads_travel_through_sockets(one_host: bool, static: bool, why: str) -> None:
    assert reserve(handmade.pipeline(2), 1, one_host=one_host, static=static).about == why


def assert_same_bits(one: Outcome, other: Outcome) -> None:
    assert one.losses == other.losses
    assert one.states and all(torch.equal(value, other.states[name]) for name, value in one.states.items())


@pytest.mark.processes
def test_shared_blocks_and_sockets_give_the_same_bits() -> None:
    plan, source = plan_for("gpt", "pipeline2"), program("gpt")
    shared, sockets = (
        run(plan, source.initial_state(plan.micro_batches), source.batch, STEPS, memory=MemoryOptions(shared_memory=wanted))
        for wanted in (True, False)
    )
    assert "shared memory" in shared.trace.about["transfers"]
    assert sockets.trace.about["transfers"] == "sockets (memory option shared_memory=False)"
    assert_same_bits(shared, sockets)


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:4 ranks on")
def test_several_senders_write_their_own_boxes_of_one_block() -> None:
    plan = handmade.pipeline(3, width=2)
    batch = handmade.batches(3)
    outcomes = []
    for wanted in (True, False):
        outcomes.append(run(plan, handmade.start(), batch, STEPS, timeout_s=60, memory=MemoryOptions(shared_memory=wanted)))
    assert "shared memory" in outcomes[0].trace.about["transfers"]
    assert_same_bits(outcomes[0], outcomes[1])


@pytest.mark.processes
def test_a_killed_run_leaves_no_shared_memory() -> None:
    """The memory has no name, so there is nothing to unlink, whenever the kill comes."""
    import signal

    same = handmade.batches(2)(0)
    before = set(Path("/dev/shm").iterdir())
    killed: list[int] = []

    def kill(step: int, loss: float) -> None:
        if step == 5 and not killed:
            workers = [
                int(entry.name)
                for entry in Path("/proc").iterdir()
                if entry.name.isdigit() and _maps_shared_blocks(entry) and int(entry.name) != os.getpid()
            ]
            killed.extend(workers)
            os.kill(workers[0], signal.SIGKILL)

    with pytest.raises(WorkerFailed):
        run(handmade.pipeline(2), handmade.start(), lambda step: same, 20000, on_progress=kill)
    assert len(killed) >= 2
    assert not [pid for pid in killed if _maps_shared_blocks(Path(f"/proc/{pid}"))]
    assert not [path for path in set(Path("/dev/shm").iterdir()) - before if "regista" in path.name]


def _maps_shared_blocks(process: Path) -> bool:
    """A worker of this process's own run: it maps a memfd of ours, and its line of parents leads here."""
    try:
        if "memfd:regista-" not in (process / "maps").read_text():
            return False
        pid = int(process.name)
        while pid > 1:
            pid = int((Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if pid == os.getpid():
                return True
    except (OSError, ValueError):
        pass
    return False
