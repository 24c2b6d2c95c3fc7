"""Counters in memory that processes of one host share: each has one writer, and who waits for one sleeps in the kernel (a futex).

    rank 0:  data into its slot --> counter 0 = n, wake --> wait until counter 1 >= n --> read the slot of rank 1
    rank 1:  data into its slot --> counter 1 = n, wake --> wait until counter 0 >= n --> read the slot of rank 0

Who sees a counter sees the data that was written before it, on processors that keep the order of stores (x86).  Elsewhere a fence would be
needed, which Python has none of, so ``missing`` says no there.   [Linux: futex(2), pidfd_open(2)]
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import select
import sys
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from planner.ir.errors import WorkerFailed

__all__ = ["Counters", "counters_bytes", "missing"]

_SYS_FUTEX, _WAIT, _WAKE = 202, 0, 1
"""Of x86-64 [linux/futex.h, asm/unistd_64.h]; without FUTEX_PRIVATE_FLAG, as the waiting processes are several."""

_LINE_BYTES = 64
"""A counter has a cache line to itself."""

_WORD = 1 << 32
_EVERYBODY = (1 << 31) - 1

LOOKS = 50
"""So often a rank looks again before it sleeps, giving up its core in between: a peer that is nearly there costs no wake-up (about 14 us)."""

_LOOK_S = 0.05
"""How often a waiting rank looks whether its peer still lives."""


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_LOOK = _Timespec(0, int(_LOOK_S * 1e9))


def missing() -> str:
    """What this machine lacks; empty: nothing."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"{platform.machine()} under {sys.platform} is not known to keep the order of stores"
    for name in ("memfd_create", "posix_fallocate", "pidfd_open"):
        if not hasattr(os, name):
            return f"this system has no {name}"
    return ""


def counters_bytes(ranks: int) -> int:
    return ranks * _LINE_BYTES


class Counters:
    """One counter per rank of a communicator, on one of its ranks.

    Args:
        memory: counters_bytes(ranks) zeros that all of them map.   place: of this rank.   ranks: names for messages, by place.
        lives: a pidfd per place, which tells when that process has ended (-1: this one).
    """

    def __init__(self, memory: Tensor, place: int, ranks: Sequence[int], lives: Sequence[int], timeout_s: float) -> None:
        self._memory = memory
        self._words = memory.view(torch.int32).numpy().view("uint32").data
        self._per_line = _LINE_BYTES // 4
        self._own, self._count, self._timeout_s = place, 0, timeout_s
        self._ranks, self._lives = ranks, lives
        self._others = [other for other in range(len(ranks)) if other != place]
        self._addresses = [memory.data_ptr() + other * _LINE_BYTES for other in range(len(ranks))]
        self._call = ctypes.CDLL(None, use_errno=True).syscall
        self._call.argtypes = (ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)
        self._look = ctypes.addressof(_LOOK)

    def meet(self) -> None:
        """Return when all ranks have called it as often as this one: what each wrote before is there to be read.

        Raises:
            WorkerFailed: a rank has ended.   RuntimeError: one has not come within the timeout.
        """
        self._count = count = (self._count + 1) % _WORD
        self._words[self._own * self._per_line] = count
        self._call(_SYS_FUTEX, self._addresses[self._own], _WAKE, _EVERYBODY, None)
        for other in self._others:
            if not self._has_come(other):
                self._wait(other)

    def _has_come(self, other: int) -> bool:
        """Counters run around at 2**32; no rank is ever more than one meeting ahead."""
        return (self._words[other * self._per_line] - self._count) % _WORD < _WORD // 2

    def _wait(self, other: int) -> None:
        for _ in range(LOOKS):
            os.sched_yield()
            if self._has_come(other):
                return
        until_s = time.monotonic() + self._timeout_s
        while True:
            seen = self._words[other * self._per_line]
            if (seen - self._count) % _WORD < _WORD // 2:
                return
            # Returns at once where the counter has changed since.
            failed = self._call(_SYS_FUTEX, self._addresses[other], _WAIT, seen, self._look)
            if failed and ctypes.get_errno() == errno.ETIMEDOUT and not self._has_come(other):
                self._look_after(other, until_s)

    def _look_after(self, other: int, until_s: float) -> None:
        if select.select([self._lives[other]], [], [], 0)[0] and not self._has_come(other):
            raise WorkerFailed(f"rank {self._ranks[self._own]}: rank {self._ranks[other]} has ended in the midst of a collective")
        if time.monotonic() > until_s:
            raise RuntimeError(f"timed out: rank {self._ranks[other]} has not come to a collective within {self._timeout_s:g} s")
