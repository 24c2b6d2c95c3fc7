"""One process of a micro-benchmark: ``python -m backend.measure.bench_worker FOLDER``, started by backend.measure.microbench."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from backend.acts.bookkeeper import BegunAct
from backend.comm.host.groups import HostGroups
from backend.comm.host.inbox import Inbox, connect_inboxes
from backend.comm.host.wire import SLOT_BYTES
from backend.comm.transport import Frame, Mesh, receive_into, tensor_bytes
from backend.comm.wires import GroupWire, Wire
from backend.devices.cores import bind
from backend.run_folder.files import Failure, FailureKind, load_options, write_failure
from backend.worker.process import connect, die_with_parent, leave, make_default_group
from backend.worker.reading import SharedReader
from planner.ir.actors.communicators import Communicator
from planner.ir.sbp import ReduceOp

__all__ = ["main"]

MM = 768
STREAM_BYTES = 64 * 2**20
_TIMEOUT_S = 60.0


def _p10(once: Callable[[], float], rounds: int) -> float:
    """10th percentile of ``rounds`` after 3 that warm up; every call starts at a barrier."""
    times: list[float] = []
    for number in range(rounds + 3):
        dist.barrier()
        taken = once()
        if number >= 3:
            times.append(taken)
    return sorted(times)[len(times) // 10]


def _timed(work: Callable[[], object]) -> Callable[[], float]:
    def once() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return once


def _collectives(wire: Wire, ranks: int, size_bytes: int) -> dict[str, Callable[[], object]]:
    """One call each on T = size_bytes of float32, T being the logical size."""
    count = max(size_bytes // 4 // ranks, 1)
    whole, part = torch.ones(count * ranks), torch.ones(count)
    swapped, summed = torch.empty(count * ranks), torch.empty(max(count // ranks, 1) * ranks)
    piece = torch.ones(max(count // ranks, 1) * ranks)

    def reduce_scatter() -> None:
        wire.all_to_all(swapped, whole, [count] * ranks, [count] * ranks)
        swapped.view(ranks, count).sum(0)

    each = [len(piece) // ranks] * ranks
    return {
        "all_reduce": lambda: wire.all_reduce(whole, ReduceOp.SUM),
        "all_gather": lambda: wire.all_gather(swapped, part),
        "reduce_scatter": reduce_scatter,
        "all_to_all": lambda: wire.all_to_all(summed, piece, each, each),
    }


def _wire(store: Store, rank: int, ranks: int) -> Wire:
    """What would carry the collectives of a run on all ranks."""
    shared = HostGroups(store, rank, _TIMEOUT_S)
    everybody = Communicator(stream="measured", axis=0, ranks=tuple(range(ranks)))
    shared.join(everybody, SLOT_BYTES)
    return shared.wires.get(everybody) or GroupWire(dist.new_group(list(range(ranks))))


class _Echo:
    """Rank 0 sends over the data and control sockets of a Mesh, rank 1 answers at once.

    Args:
        looks: they read as workers do that have cores of their own (backend.worker.reading).   inbox: of this rank, as such workers have.
    """

    def __init__(self, mesh: Mesh, rank: int, looks: bool, inbox: Inbox | None) -> None:
        self._mesh, self._rank = mesh, rank
        self._came = threading.Semaphore(0)
        self._waiting = 0
        """Answers that rank 0 waits for."""
        self._reader: SharedReader | None = None
        lost: Callable[[int, Exception], None] = lambda peer, error: None  # noqa: E731
        if not looks:
            mesh.start_readers(self._on_control, self._on_data, lost)
            return
        self._reader = SharedReader(mesh, self._on_control, self._on_data, lost, lambda: rank == 1 or self._waiting > 0, inbox)
        if rank == 1:
            threading.Thread(target=self._reader.serve, args=(lambda: None, lambda acts: None), daemon=True).start()

    def _on_control(self, peer: int, numbers: Sequence[int]) -> list[BegunAct]:
        if self._rank == 1:
            self._mesh.send_control(0, *numbers)
        else:
            self._waiting -= len(numbers)
            self._came.release(len(numbers))
        return []

    def _on_data(self, peer: int, connection: socket.socket | None, frame: Frame, task: int, act: int) -> list[BegunAct]:
        assert connection is not None  # a payload, which a socket brings
        receive_into(connection, tensor_bytes(torch.empty(task)))
        self._mesh.send_control(0, 0)
        return []

    def ping(self) -> None:
        self._waiting += 1
        self._mesh.send_control(1, 0)
        self._wait()

    def send(self, payload: torch.Tensor) -> None:
        self._waiting += 1
        self._mesh.send_payload(1, payload.numel(), 0, [tensor_bytes(payload)])
        self._wait()

    def _wait(self) -> None:
        while self._reader is not None and self._waiting:
            self._reader.attend()
            self._reader.look(lambda acts: None)
        self._came.acquire()


def measure(folder: Path) -> dict[str, object]:
    """All constants, as seen by this rank."""
    options = load_options(folder)
    rounds = options.isolated_rounds
    store, key, rank, ranks = connect(folder)
    make_default_group(store, rank, ranks)
    cores = bind(options.waiting, rank, ranks)
    a, b = torch.randn(MM, MM), torch.randn(MM, MM)
    x = torch.ones(STREAM_BYTES // 4)
    y = torch.empty_like(x)
    result: dict[str, object] = {
        "flop_per_s": 2 * MM**3 / _p10(_timed(lambda: torch.mm(a, b)), rounds),
        "memory_bytes_per_s": 2 * STREAM_BYTES / _p10(_timed(lambda: y.copy_(x)), rounds),
    }
    sizes = json.loads((folder / "sizes.json").read_text())
    lines: dict[str, dict[int, float]] = {}
    wire = _wire(store, rank, ranks) if ranks > 1 else None
    for size in sizes if wire is not None else ():
        assert wire is not None
        for name, call in _collectives(wire, ranks, size).items():
            lines.setdefault(name, {})[size] = _p10(_timed(call), rounds)
    result["collectives"] = lines
    result["transfer"], result["message_s"] = {}, 0.0
    if ranks > 1:
        peers = {1 - rank} if rank < 2 else set[int]()
        mesh = Mesh(rank, peers, store, options.run_id, key=key, unix=True, timeout_s=_TIMEOUT_S)
        echo = _Echo(mesh, rank, bool(cores), connect_inboxes(mesh, peers, wanted=bool(cores)))
        idle: Callable[[], object] = lambda: None  # noqa: E731
        one_way = _p10(_timed(echo.ping if rank == 0 else idle), 10 * rounds) / 2
        transfer: dict[int, float] = {}
        for size in sizes:
            payload = torch.ones(max(size // 4, 1))
            transfer[size] = _p10(_timed((lambda p: lambda: echo.send(p))(payload) if rank == 0 else idle), rounds) - one_way
        result["transfer"], result["message_s"] = transfer, one_way
        dist.barrier()
        mesh.close()
    return result


def main(path: str) -> int:
    folder, rank = Path(path), int(os.environ.get("RANK", "0"))
    die_with_parent()
    torch.set_num_threads(1)
    try:
        result = measure(folder)
        (folder / f"rank{rank}.json").write_text(json.dumps(result))
        dist.barrier()
    except BaseException as error:
        message = f"{type(error).__name__}: {error}"
        write_failure(folder, Failure(rank=rank, kind=FailureKind.RAISED, message=message, traceback=traceback.format_exc()))
        return 1
    return 0


if __name__ == "__main__":
    leave(main(sys.argv[1]))
