"""The shared memory of communicators whose ranks are processes of one host: made by the first of them, mapped by all, or by none.

    first of the ranks    memfd --"pid fd slot"--> store --verdict-----------> store     every rank of the run reads the verdict
    the others                    store --> /proc/pid/fd/fd, map --answer--> store

The memory has no name, so nothing is left when processes end, however they end.  One rank that cannot map it is enough, and gloo carries the
communicator's collectives on all of its ranks; the trace says why.
"""

from __future__ import annotations

import mmap
import os
from math import prod

import torch
from torch import Tensor
from torch._C._distributed_c10d import Store

from backend.comm.host.counters import missing
from backend.comm.host.memory import allocated
from backend.comm.host.wire import SLOT_BYTES, HostWire, ceil_div, memory_bytes
from planner.ir.actors.communicators import Communicator, communicators
from planner.ir.plan import Plan

__all__ = ["HostGroups"]

_OK = "ok"
_PAGE_BYTES = 4096


class HostGroups:
    """Makes the communicators of one rank; all ranks of the run ask for all of them, in one order.

    Args:
        store: of the run.   why_not: the reason for which none is to be made; the same on all ranks.

    wires: this rank's ends.   mapped_bytes: of all that this rank has mapped.
    """

    def __init__(self, store: Store, rank: int, timeout_s: float, *, why_not: str = "") -> None:
        self._store, self._rank, self._timeout_s, self._why_not = store, rank, timeout_s, why_not
        self._verdicts: dict[Communicator, str] = {}
        self.wires: dict[Communicator, HostWire] = {}
        self.mapped_bytes = 0

    def carries(self, communicator: Communicator) -> bool:
        """Whether its ranks have shared memory."""
        return self._verdicts.get(communicator) == _OK

    @property
    def carries_all(self) -> bool:
        """Whether no communicator is left to others."""
        return all(verdict == _OK for verdict in self._verdicts.values())

    @property
    def about(self) -> str:
        """One phrase for the trace: what carries collectives."""
        whys = dict.fromkeys(why for why in self._verdicts.values() if why != _OK)
        phrases = [f"shared memory ({self.mapped_bytes} B)"] if self.wires else []
        return "; ".join(phrases + [f"gloo ({why})" for why in whys]) or "none"

    def join_all(self, plan: Plan) -> None:
        """Make all communicators of a Plan that are for collectives."""
        for each in communicators(plan):
            if each.axis is not None:
                self.join(each, _largest_bytes(plan, each))

    def join(self, communicator: Communicator, largest_bytes: int) -> None:
        """Make the next communicator, or hear why it has no shared memory.

        Args:
            largest_bytes: of what a rank sends at once.
        """
        if self._why_not:
            self._verdicts[communicator] = self._why_not
            return
        name, ranks = f"collectives/{len(self._verdicts)}", communicator.ranks
        opened = self._open(name, ranks, largest_bytes) if self._rank in ranks else ""
        verdict = self._verdicts[communicator] = self._store.get(name).decode()
        if verdict == _OK and isinstance(opened, HostWire):
            self.wires[communicator] = opened
            self.mapped_bytes += opened.mapped_bytes

    def _open(self, name: str, ranks: tuple[int, ...], largest_bytes: int) -> HostWire | str:
        """The wire, or why there is none; the first of the ranks hears all answers and gives the verdict."""
        first, fd = ranks[0], -1
        if self._rank == first:
            offer, fd = self._offer(len(ranks), largest_bytes)
            self._store.set(f"{name}/offer", offer)
        opened: HostWire | str
        try:
            opened = self._map(self._store.get(f"{name}/offer").decode(), ranks, name)
        except OSError as error:
            opened = f"rank {self._rank} cannot map what rank {first} shares: {error.strerror}"
        if self._rank != first:
            self._store.set(f"{name}/{self._rank}", opened if isinstance(opened, str) else _OK)
            return opened
        answers = [opened if isinstance(opened, str) else _OK] + [self._store.get(f"{name}/{rank}").decode() for rank in ranks[1:]]
        self._store.set(name, next((answer for answer in answers if answer != _OK), _OK))
        if fd >= 0:
            os.close(fd)
        return opened

    def _offer(self, ranks: int, largest_bytes: int) -> tuple[str, int]:
        """("fd slot", fd), or ("why there is none", -1)."""
        if why := missing():
            return why, -1
        slot_bytes = min(SLOT_BYTES, max(1, ceil_div(largest_bytes, _PAGE_BYTES)) * _PAGE_BYTES)
        size_bytes = memory_bytes(ranks, slot_bytes)
        try:
            fd = allocated(f"regista-collectives-{self._rank}", size_bytes)
        except OSError as error:
            return f"no room for {size_bytes} B: {error.strerror}", -1
        return f"{fd} {slot_bytes}", fd

    def _map(self, offer: str, ranks: tuple[int, ...], name: str) -> HostWire | str:
        """Raises OSError: this process may not open it."""
        pids = self._pids(ranks, name)
        words = offer.split()
        if len(words) != 2 or not all(word.isdecimal() for word in words):
            return offer
        slot_bytes = int(words[1])
        size_bytes = memory_bytes(len(ranks), slot_bytes)
        fd = os.open(f"/proc/{pids[0]}/fd/{words[0]}", os.O_RDWR | os.O_CLOEXEC)
        try:
            memory: Tensor = torch.frombuffer(mmap.mmap(fd, size_bytes), dtype=torch.uint8)
        finally:
            os.close(fd)
        lives = [-1 if rank == self._rank else os.pidfd_open(pid) for rank, pid in zip(ranks, pids, strict=True)]
        return HostWire(memory, ranks.index(self._rank), ranks, lives, self._timeout_s, slot_bytes)

    def _pids(self, ranks: tuple[int, ...], name: str) -> list[int]:
        self._store.set(f"{name}/pid/{self._rank}", str(os.getpid()))
        return [int(self._store.get(f"{name}/pid/{rank}")) for rank in ranks]


def _largest_bytes(plan: Plan, communicator: Communicator) -> int:
    """No rank has more to say in one collective than what its ranks hold together."""
    tasks = [task for task in plan.tasks if task.stream == communicator.stream and task.meeting_axis == communicator.axis]
    tensors = [[plan.regst[access.regst].tensors[access.index] for access in task.reads] for task in tasks]
    return max(sum(prod(tensor.shape) * tensor.dtype.size_bytes for tensor in of_task) for of_task in tensors)
