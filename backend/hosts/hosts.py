"""What a worker does in addition when the ranks of a run are on several hosts: the same inputs everywhere, one clock, results sent to rank 0.

On one host none of it is needed: values lie in one file, CLOCK_MONOTONIC is shared, results lie in one folder.
Round trips and results travel over the default process group, short messages over the store.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store

from backend.hosts.clocks import Correction, Estimate, Ping, estimate
from backend.hosts.log_relay import relaying_logs
from planner.ir.errors import InvalidFile, Mismatch

__all__ = ["Hosts", "clock_slack_s"]

PINGS = 32
CHUNK_BYTES = 1 << 24
VISIBLE_S = 20.0
"""How long a network's file system may take until a host sees what another has written [NFS looks for new names after 3 to 60 s]."""
RESULTS_TIMEOUT = timedelta(hours=2)
"""How long a rank waits for the results of others, which may be large.  A host that died is noticed by its broken connections, long before."""


class Hosts:
    """This rank's place among the hosts.

    Args:
        inputs: a digest of what the run starts from; equal on all ranks, or the run is refused.

    Raises:
        Mismatch: some host starts from other values or data than rank 0's.
    """

    def __init__(self, store: Store, rank: int, ranks: int, inputs: str) -> None:
        self._store, self._rank, self._ranks = store, rank, ranks
        self._node = int(os.environ["GROUP_RANK"])
        per_host = int(os.environ["LOCAL_WORLD_SIZE"])
        self._leaders = range(per_host, ranks, per_host)
        self._ranks_per_host = per_host
        store.set(f"inputs/{rank}", inputs)
        first = store.get("inputs/0").decode()
        for other in range(1, ranks):
            # Every rank looks at all, so that all hosts refuse at once.
            if (theirs := store.get(f"inputs/{other}").decode()) != first:
                raise Mismatch(
                    f"rank {other} on host {other // per_host} starts from other values or data ({theirs}) than rank 0 ({first}); the model's "
                    "factory must seed what it draws, and data files must be the same on all hosts"
                )
        self._estimates: list[Estimate] = []

    def check_shared(self, folder: Path) -> None:
        """Refuse a folder of checkpoints that is not one and the same on all hosts.

        Raises:
            Mismatch: some host does not see what rank 0 has written there.   InvalidFile: rank 0 cannot write there.
        """
        name = f".shared.{uuid.uuid4().hex[:12]}" if self._rank == 0 else ""
        if self._rank == 0:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / name).touch()
            except OSError as error:
                raise InvalidFile(f"cannot write into {folder}: {error.strerror}; give --checkpoint a folder that takes files") from error
            self._store.set("shared", name)
        path = folder / self._store.get("shared").decode()
        until_s = time.monotonic() + VISIBLE_S
        while not (there := path.exists()) and time.monotonic() < until_s:
            time.sleep(0.05)
        self._store.set(f"shared/{self._rank}", "1" if there else "")
        blind = [rank for rank in range(self._ranks) if not self._store.get(f"shared/{rank}")]
        if self._rank == 0:
            path.unlink(missing_ok=True)
        if blind:
            raise Mismatch(
                f"rank {blind[0]} on host {blind[0] // self._ranks_per_host} does not see what rank 0 has written into {folder}; "
                "checkpoints of several hosts need one folder that all of them share, by the same path"
            )

    def relaying_logs(self, folder: Path) -> AbstractContextManager[None]:
        """While the body runs, host 0's launcher sees what the ranks of the others report."""
        return relaying_logs(self._store, folder, self._node, self._nodes, is_leader=self._rank % self._ranks_per_host == 0)

    def estimate_clock(self) -> None:
        """Estimate how far rank 0's clock is ahead; every rank calls it, before the run and after it."""
        name = f"clock/{len(self._estimates)}"
        if self._rank == 0:
            for leader in self._leaders:
                self._answer(leader)
        elif self._rank in self._leaders:
            to_rank0 = estimate([self._ping() for _ in range(PINGS)])
            self._store.set(f"{name}/{self._node}", json.dumps([to_rank0.at_ns, to_rank0.offset_ns, to_rank0.bound_ns]))
        if self._node == 0:
            of_this_host = Estimate(at_ns=time.monotonic_ns(), offset_ns=0, bound_ns=0)  # the clock of rank 0 itself
        else:
            at_ns, offset_ns, bound_ns = json.loads(self._store.get(f"{name}/{self._node}"))
            of_this_host = Estimate(at_ns=at_ns, offset_ns=offset_ns, bound_ns=bound_ns)
        self._estimates.append(of_this_host)

    @staticmethod
    def _ping() -> Ping:
        clock_ns = torch.zeros(1, dtype=torch.int64)
        sent = time.monotonic_ns()
        dist.send(clock_ns, 0)
        dist.recv(clock_ns, 0)
        return sent, int(clock_ns), time.monotonic_ns()

    @staticmethod
    def _answer(leader: int) -> None:
        clock_ns = torch.zeros(1, dtype=torch.int64)
        for _ in range(PINGS):
            dist.recv(clock_ns, leader)
            clock_ns[0] = time.monotonic_ns()
            dist.send(clock_ns, leader)

    def on_one_clock(self, acts: Tensor) -> Tensor:
        """The rows (task, number, ready, start, end) with their times moved onto rank 0's clock; int64 [acts, 5]."""
        before, after = self._estimates
        moved = acts.clone()
        moved[:, 2:] = Correction(before=before, after=after).apply(acts[:, 2:])
        return moved

    def collect_results(self, folder: Path, files_of: Callable[[int], Sequence[str]]) -> None:
        """Send what ranks left to rank 0's folder, one rank after the other; on rank 0 also write clock.json.

        Args:
            files_of: rank -> names of its files in the run's folder, the same on all ranks.
        """
        if self._rank == 0:
            for rank in range(self._ranks_per_host, self._ranks):
                self._store.set(f"send result/{rank}", "1")
                for name in files_of(rank):
                    self._receive(rank, folder / name)
            bounds = [json.loads(self._store.get(f"clock/{when}/{node}"))[2] for node in range(1, self._nodes) for when in (0, 1)]
            # The times of two hosts, neither of which is rank 0's, are wrong by the bounds of both.
            (folder / "clock.json").write_text(json.dumps({"slack_s": 2e-9 * max(bounds, default=0)}))
            self._store.set("results collected", "1")
        elif self._node > 0:
            self._store.wait([f"send result/{self._rank}"], RESULTS_TIMEOUT)
            for name in files_of(self._rank):
                self._send(folder / name)
        self._store.wait(["results collected"], RESULTS_TIMEOUT)

    @property
    def _nodes(self) -> int:
        return self._ranks // self._ranks_per_host

    @staticmethod
    def _send(path: Path) -> None:
        dist.send(torch.tensor([path.stat().st_size]), 0)
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                dist.send(torch.frombuffer(bytearray(chunk), dtype=torch.uint8), 0)

    @staticmethod
    def _receive(rank: int, path: Path) -> None:
        size = torch.zeros(1, dtype=torch.int64)
        dist.recv(size, rank)
        left_bytes = int(size)
        with path.open("wb") as file:
            while left_bytes:
                chunk = torch.empty(min(left_bytes, CHUNK_BYTES), dtype=torch.uint8)
                dist.recv(chunk, rank)
                file.write(chunk.numpy().tobytes())
                left_bytes -= len(chunk)


def clock_slack_s(folder: Path) -> float:
    """How far the times of two ranks in a finished run's trace may be apart although they mean the same moment; 0 on one host."""
    path = folder / "clock.json"
    return float(json.loads(path.read_text())["slack_s"]) if path.exists() else 0.0
