"""Devices as the executors of one process see them: memory, queues of work, events.

    thread of the runtime                      device
    lane.wait(event) ------ queue of ---------> not before the event
    lane.enqueue(work) ---- the lane ---------> work, in the order in which it was put there
    event = lane.record() ---------------------> reached when all work before it is done; it carries the time

A message may travel as soon as an act is *enqueued*, if its event goes with it: whoever comes next makes its own lane wait for the event.
On an immediate device (a CPU) work is done when ``enqueue`` returns, so there are no events: ``record`` gives None.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from backend.memory.arena import zeroed_memory
from planner.ir.errors import Unsupported

__all__ = ["CaptureFailed", "CpuDevice", "Device", "Event", "ImmediateLane", "Lane", "Work", "parse_devices"]

Work = Callable[[], object]
"""Reads and writes memory that was chosen before; asks no counter and no table, as it may run much later."""


class CaptureFailed(Exception):
    """Work cannot be recorded as a graph; it can still be put into the lane as it is."""


class Event(Protocol):
    """A point in a lane."""

    def synchronize(self) -> None:
        """Wait, on the calling thread, until it is reached.  Raises what the device says of the work before it."""

    def reached(self) -> bool:
        """Whether ``synchronize`` would return at once."""

    def time_ns(self) -> int:
        """When it was reached, on CLOCK_MONOTONIC; to be asked after ``synchronize``."""


class Lane(Protocol):
    """A queue of a device that does its work in order.  Used by one thread at a time."""

    @property
    def immediate(self) -> bool:
        """Work is done when ``enqueue`` returns."""

    def enqueue(self, work: Work) -> None:
        """Add work; what it raises may show only at a later event."""

    def wait(self, event: Event) -> None:
        """What is added from now on starts after the event; of this or of another device."""

    def record(self) -> Event | None:
        """A point after all that was added; None: it is reached already."""

    def again(self, work: Work) -> Work:
        """The same work in a form that is cheaper to add many times, always with the same memory (a CUDA graph); ``work`` itself where
        the device has none.  ``work`` was done once before; this call does not do it.

        Raises:
            CaptureFailed: it cannot be recorded.
        """


class Device(Protocol):
    """name: ``cpu``, ``cuda:0``.   immediate: see Lane."""

    name: str
    torch_device: torch.device
    immediate: bool

    def allocate(self, size_bytes: int) -> Tensor:
        """Bytes (uint8) of the device, zeroed.

        Raises:
            OutOfMemory: with what is there.
        """

    def host_memory(self, size_bytes: int) -> Tensor:
        """Bytes (uint8) of the host that this device copies to and from without waiting (pinned), zeroed."""

    def lane(self, name: str) -> Lane:
        """A new queue, shared with nobody, until the device is closed."""

    def free_bytes(self) -> int:
        """Memory that can be taken now; 0: not known."""

    def library_bytes(self, lanes: int) -> int:
        """What libraries keep for good when products are computed on so many lanes of it, by one thread."""

    def synchronize(self) -> None:
        """Wait until all lanes are empty.  Raises what the device says of their work."""

    def reset_peak(self) -> None:
        """Let ``peak_bytes`` start again from what is allocated now."""

    def peak_bytes(self) -> int:
        """Most bytes that were allocated at once on the device by this process, working memory included; 0: not known."""

    def about(self) -> str:
        """What a measured number needs beside it."""

    def close(self) -> None:
        """End what belongs to it."""


class ImmediateLane:
    """The thread that enqueues does the work."""

    immediate = True

    def enqueue(self, work: Work) -> None:
        work()

    def wait(self, event: Event) -> None:
        event.synchronize()

    def record(self) -> None:
        return None

    def again(self, work: Work) -> Work:
        return work


class CpuDevice:
    """The host's processor; every thread has its own share of it."""

    immediate = True

    def __init__(self) -> None:
        self.name = "cpu"
        self.torch_device = torch.device("cpu")

    def allocate(self, size_bytes: int) -> Tensor:
        return zeroed_memory(size_bytes)

    def host_memory(self, size_bytes: int) -> Tensor:
        return zeroed_memory(size_bytes)

    def lane(self, name: str) -> Lane:
        return ImmediateLane()

    def free_bytes(self) -> int:
        return 0

    def library_bytes(self, lanes: int) -> int:
        return 0

    def synchronize(self) -> None:
        pass

    def reset_peak(self) -> None:
        pass

    def peak_bytes(self) -> int:
        return 0

    def about(self) -> str:
        return "cpu"

    def close(self) -> None:
        pass


def parse_devices(text: str, num_ranks: int) -> dict[int, str]:
    """``cpu``, ``cuda``, ``cuda:1`` for all ranks, or ``0=cpu,1=cuda:0`` rank by rank -> rank -> name of its device.

    Plain ``cuda`` is ``cuda:0``: several ranks may share a GPU, each with streams of its own.

    >>> parse_devices("0=cpu,1=cuda", 2)
    {0: 'cpu', 1: 'cuda:0'}

    Raises:
        Unsupported: another form, a rank that the plan does not have, a rank left out, a device of another kind.
    """
    if "=" not in text:
        return dict.fromkeys(range(num_ranks), _device_name(text))
    device_of: dict[int, str] = {}
    for entry in text.split(","):
        rank, equals, name = entry.strip().partition("=")
        if not equals or not rank.isascii() or not rank.isdigit() or int(rank) >= num_ranks or int(rank) in device_of:
            raise Unsupported(
                f"device {entry.strip()!r}: write RANK=DEVICE once for each rank of 0 to {num_ranks - 1}, as in 0=cpu,1=cuda:0"
            )
        device_of[int(rank)] = _device_name(name)
    missing = sorted(set(range(num_ranks)) - set(device_of))
    if missing:
        raise Unsupported(f"device {text!r} leaves out ranks {missing[:8]}; every rank of the plan needs one")
    return dict(sorted(device_of.items()))


def _device_name(text: str) -> str:
    kind, colon, number = text.strip().partition(":")
    if kind == "cpu" and not colon:
        return "cpu"
    if kind in ("cuda", "fake") and (not colon or (number.isascii() and number.isdigit() and len(number) < 10)):
        return f"{kind}:{int(number or 0)}"
    raise Unsupported(f"device {text.strip()!r} is not known; it is cpu, cuda or cuda:NUMBER (or fake:NUMBER, lanes without hardware)")
