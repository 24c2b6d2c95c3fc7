"""All-reduce between processes of this host: ours through shared memory beside gloo over loopback, in one run, taking turns.

``python -m experiments.benchmarks.collectives``.  Before the times, both give the same bits on random values.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from datetime import timedelta
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table

from backend.comm.host.groups import HostGroups
from backend.comm.host.wire import SLOT_BYTES
from backend.comm.wires import GroupWire, Wire
from planner.ir.actors.communicators import Communicator
from planner.ir.sbp import ReduceOp

__all__ = ["main", "measure"]

SIZES_BYTES = (1 << 10, 1 << 20, 64 << 20)
RANKS = (2, 4)

Times = dict[str, dict[str, list[float]]]
"""Size in bytes -> who carries it -> [seconds of a call, ...]; JSON has keys of text."""


def _calls(size_bytes: int) -> int:
    return max(3, min(100, (16 << 20) // size_bytes))


def _perform(rank: int, ranks: int, folder: str, rounds: int) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store{ranks}", ranks)
    dist.init_process_group("gloo", store=dist.PrefixStore("gloo", store), rank=rank, world_size=ranks, timeout=timedelta(seconds=60))
    everybody = Communicator(stream="measured", axis=0, ranks=tuple(range(ranks)))
    shared = HostGroups(dist.PrefixStore("ours", store), rank, 60.0)
    shared.join(everybody, SLOT_BYTES)
    wires: dict[str, Wire] = {"gloo": GroupWire(dist.new_group(list(range(ranks)))), "shared memory": shared.wires[everybody]}
    times: Times = {}
    for size_bytes in SIZES_BYTES:
        values = torch.randn(size_bytes // 4, generator=torch.Generator().manual_seed(rank))
        sums = {name: values.clone() for name in wires}
        for name, wire in wires.items():
            wire.all_reduce(sums[name], ReduceOp.SUM)
        assert torch.equal(*sums.values()), "two ways to add up"
        taken = times[str(size_bytes)] = {name: [] for name in wires}
        for _ in range(rounds):
            for name, wire in wires.items():
                sums[name].zero_()
                dist.barrier()
                wire.all_reduce(sums[name], ReduceOp.SUM)
                for _ in range(_calls(size_bytes)):
                    start_s = time.perf_counter()
                    wire.all_reduce(sums[name], ReduceOp.SUM)
                    taken[name].append(time.perf_counter() - start_s)
    if rank == 0:
        Path(folder, f"{ranks}.json").write_text(json.dumps(times))
    dist.barrier()
    os._exit(0)  # gloo's threads may outlive their peers


def measure(ranks: int, rounds: int) -> Times:
    """Times of calls on rank 0 of ``ranks`` processes."""
    context = multiprocessing.get_context("spawn")
    with TemporaryDirectory() as folder:
        processes = [context.Process(target=_perform, args=(rank, ranks, folder, rounds)) for rank in range(ranks)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        times: Times = json.loads(Path(folder, f"{ranks}.json").read_text())
        return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    table = Table("ranks", "bytes", "gloo", "shared memory", "ratio", title=f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} (run)")
    for ranks in RANKS:
        for size_bytes, taken in measure(ranks, asked.rounds).items():
            medians = {name: median(values) for name, values in taken.items()}
            shown = [f"{medians[name] * 1e6:.1f} us (p10 {sorted(values)[len(values) // 10] * 1e6:.1f})" for name, values in taken.items()]
            table.add_row(str(ranks), f"{int(size_bytes):,}", *shown, f"{medians['gloo'] / medians['shared memory']:.1f}")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
