"""A double of NCCL without hardware: its rules of order, and a record of what every rank launched.

    rank 0, any thread   launch --> [queue of device 0: first ... last]        a kernel runs when it stands first on every rank of its communicator
    rank 1, any thread   launch --> [queue of device 1: first ... last]        and leaves all these queues together

This is the worst device that NCCL allows: one kernel at a time.  Where ranks stand in a circle it says so at once, instead of hanging.  Ranks are
threads of one process; a call returns when its kernel is done.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from backend.comm.wires import Wire
from backend.layout.sharding import reduce_parts
from planner.ir.collective import Collective
from planner.ir.errors import DeadLock, Mismatch
from planner.ir.sbp import ReduceOp

__all__ = ["NcclDouble", "Recorded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One launch of a rank.   group: its communicator's ranks.   size_bytes: what the rank gives to it."""

    communicator: int
    group: tuple[int, ...]
    collective: Collective
    size_bytes: int


@dataclass(slots=True, eq=False)
class _Kernel:
    """One call of a communicator: number ``number`` of it.   given: rank -> (what it called, its tensors)."""

    communicator: int
    number: int
    group: tuple[int, ...]
    given: dict[int, tuple[Recorded, tuple[object, ...]]] = field(default_factory=dict)
    done: bool = False


class NcclDouble:
    """The devices of ranks 0 .. ranks - 1.

    Attributes:
        launches: rank -> its launches, in order.   created: rank -> the communicators that it made, in order.
    """

    def __init__(self, ranks: int, groups: Sequence[tuple[int, ...]]) -> None:
        self.launches: dict[int, list[Recorded]] = {rank: [] for rank in range(ranks)}
        self.created: dict[int, list[int]] = {rank: [] for rank in range(ranks)}
        self.groups = tuple(groups)
        self._queues: dict[int, deque[_Kernel]] = {rank: deque() for rank in range(ranks)}
        self._kernels: dict[tuple[int, int], _Kernel] = {}
        self._calls: dict[tuple[int, int], int] = {}
        self._error: Exception | None = None
        self._changed = threading.Condition()

    def create(self, rank: int, communicator: int) -> Wire:
        """Rank's end of a communicator, which all its ranks make; a rank waits in it for the others, as ncclCommInitRank does.

        Raises:
            DeadLock: ranks make communicators in different orders.   Mismatch: the rank does not belong to it.
        """
        group = self.groups[communicator]
        if rank not in group:
            raise Mismatch(f"rank {rank} makes communicator {communicator} of ranks {list(group)}; it is none of them")
        with self._changed:
            self.created[rank].append(communicator)
            self._enqueue(rank, -1 - communicator, group, None)
        return _DoubleWire(self, rank, communicator)

    def launch(self, rank: int, recorded: Recorded, tensors: tuple[object, ...]) -> None:
        """Put a kernel into the rank's queue and wait until it is done.

        Raises:
            DeadLock: ranks wait for each other in a circle.   Mismatch: ranks call different things in one place.
        """
        with self._changed:
            self.launches[rank].append(recorded)
            self._enqueue(rank, recorded.communicator, recorded.group, (recorded, tensors))

    # Under the lock.

    def _enqueue(self, rank: int, communicator: int, group: tuple[int, ...], given: tuple[Recorded, tuple[object, ...]] | None) -> None:
        number = self._calls[rank, communicator] = self._calls.get((rank, communicator), -1) + 1
        kernel = self._kernels.setdefault((communicator, number), _Kernel(communicator, number, group))
        if given is not None:
            kernel.given[rank] = given
        self._queues[rank].append(kernel)
        self._run_what_can_run()
        while not kernel.done and self._error is None:
            self._changed.wait()
        if self._error is not None:
            raise self._error

    def _run_what_can_run(self) -> None:
        try:
            while (kernel := next(filter(self._stands_first, self._firsts().values()), None)) is not None:
                _perform(kernel)
                for rank in kernel.group:
                    self._queues[rank].popleft()
                del self._kernels[kernel.communicator, kernel.number]
                kernel.done = True
            self._refuse_circle()
        except Exception as error:
            self._error = error
        self._changed.notify_all()

    def _firsts(self) -> dict[int, _Kernel]:
        return {rank: queue[0] for rank, queue in self._queues.items() if queue}

    def _stands_first(self, kernel: _Kernel) -> bool:
        return all(self._firsts().get(rank) is kernel for rank in kernel.group)

    def _refuse_circle(self) -> None:
        firsts = self._firsts()
        for start in firsts:
            path: list[int] = []
            rank: int | None = start
            while rank is not None and rank in firsts and rank not in path:
                path.append(rank)
                rank = next((other for other in firsts[rank].group if other in firsts and firsts[other] is not firsts[rank]), None)
            if rank in path:
                circle = path[path.index(rank) :]
                scenes = "; ".join(f"rank {r} runs {_shown(firsts[r])}" for r in circle)
                raise DeadLock(
                    f"communicators wait for each other for ever (SEMANTICS 3.12): {scenes}; launch them in one order on all ranks"
                )


def _shown(kernel: _Kernel) -> str:
    what = "call " + str(kernel.number) if kernel.communicator >= 0 else "the making"
    return f"{what} of communicator {max(kernel.communicator, -1 - kernel.communicator)} of ranks {list(kernel.group)}"


def _perform(kernel: _Kernel) -> None:
    """What the communicator does once all its ranks are there."""
    if not kernel.given:
        return
    recorded = {rank: kernel.given[rank][0] for rank in kernel.group}
    called = {(each.collective, 0 if each.collective is Collective.ALL_TO_ALL else each.size_bytes) for each in recorded.values()}
    if len(called) > 1:
        scenes = "; ".join(f"rank {rank} {each.collective.value} of {each.size_bytes} B" for rank, each in recorded.items())
        raise Mismatch(f"{_shown(kernel)}: {scenes}; all its ranks call the same, with as many bytes")
    rows = [kernel.given[rank][1] for rank in kernel.group]
    match called.pop()[0]:
        case Collective.ALL_REDUCE:
            _all_reduce(rows)
        case Collective.ALL_GATHER:
            for gathered, _ in rows:
                _tensor(gathered).copy_(torch.cat([_tensor(sent).reshape(-1) for _, sent in rows]))
        case Collective.REDUCE_SCATTER:
            parts = [_tensor(sent).chunk(len(rows)) for _, sent, _ in rows]
            for place, (reduced, _, op) in enumerate(rows):
                assert isinstance(op, ReduceOp)
                _tensor(reduced).copy_(reduce_parts(op, [part[place] for part in parts]))
        case _:
            _all_to_all(kernel, rows)


def _tensor(value: object) -> Tensor:
    assert isinstance(value, Tensor)
    return value


def _all_reduce(rows: Sequence[tuple[object, ...]]) -> None:
    op = rows[0][1]
    assert isinstance(op, ReduceOp)
    whole = reduce_parts(op, [_tensor(tensor).clone() for tensor, _ in rows])
    for tensor, _ in rows:
        _tensor(tensor).copy_(whole)


def _all_to_all(kernel: _Kernel, rows: Sequence[tuple[object, ...]]) -> None:
    pieces = [torch.split(_tensor(sent).reshape(-1), _lengths(lengths)) for _, sent, _, lengths in rows]
    for place, (received, _, taken, _) in enumerate(rows):
        coming, wanted = [of_rank[place] for of_rank in pieces], _lengths(taken)
        if [piece.numel() for piece in coming] != wanted:
            raise Mismatch(
                f"{_shown(kernel)}: rank {kernel.group[place]} takes {wanted} elements, and {[p.numel() for p in coming]} are sent"
            )
        _tensor(received)[: sum(wanted)].copy_(torch.cat(coming))


def _lengths(value: object) -> list[int]:
    assert isinstance(value, Sequence)
    return list(value)


class _DoubleWire:
    scatters = True

    def __init__(self, double: NcclDouble, rank: int, communicator: int) -> None:
        self._double, self._rank, self._communicator = double, rank, communicator

    def _launch(self, collective: Collective, given: Tensor, *tensors: object) -> None:
        group = self._double.groups[self._communicator]
        recorded = Recorded(communicator=self._communicator, group=group, collective=collective, size_bytes=given.nbytes)
        self._double.launch(self._rank, recorded, tensors)

    def all_reduce(self, tensor: Tensor, op: ReduceOp, sent: Tensor | None = None) -> None:
        if sent is not None:
            tensor.copy_(sent)
        self._launch(Collective.ALL_REDUCE, tensor, tensor, op)

    def all_gather(self, gathered: Tensor, sent: Tensor) -> None:
        self._launch(Collective.ALL_GATHER, sent, gathered, sent)

    def all_to_all(self, received: Tensor, sent: Tensor, receive_lengths: Sequence[int], send_lengths: Sequence[int]) -> None:
        self._launch(Collective.ALL_TO_ALL, sent, received, sent, receive_lengths, send_lengths)

    def reduce_scatter(self, reduced: Tensor, sent: Tensor, op: ReduceOp) -> None:
        self._launch(Collective.REDUCE_SCATTER, sent, reduced, sent, op)
