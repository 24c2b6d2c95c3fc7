"""A device without hardware whose lanes really run later: each is a thread with a queue, and its events are real.

It stands in for the CUDA device in tests: everything that the runtime must get right there, order between lanes, reuse of
blocks, errors that show late, is got right or wrong here too, and every test can see it.  Memory is the host's.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable

import torch
from torch import Tensor

from backend.devices.device import Event, Lane, Work
from backend.memory.arena import zeroed_memory
from planner.ir.errors import WorkerFailed

__all__ = ["FakeEvent", "FakeStreamDevice"]


class FakeEvent:
    def __init__(self) -> None:
        self._reached = threading.Event()
        self._error: BaseException | None = None
        self._time_ns = 0

    def reach(self, error: BaseException | None) -> None:
        self._error, self._time_ns = error, time.monotonic_ns()
        self._reached.set()

    def synchronize(self) -> None:
        self._reached.wait()
        if self._error is not None:
            raise WorkerFailed(f"{type(self._error).__name__}: {self._error}") from self._error

    def reached(self) -> bool:
        return self._reached.is_set()

    def time_ns(self) -> int:
        return self._time_ns


class _FakeLane:
    """After an error the lane does nothing more, and every later event tells of it, as on a GPU."""

    immediate = False

    def __init__(self, name: str, delay_s: Callable[[], float] | None) -> None:
        self._queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._delay_s = delay_s
        self.thread = threading.Thread(target=self._serve, daemon=True, name=f"fake lane {name}")
        self.thread.start()

    def _serve(self) -> None:
        torch.set_num_threads(1)
        with torch.no_grad():
            while (work := self._queue.get()) is not None:
                work()

    def enqueue(self, work: Work) -> None:
        def later() -> None:
            if self._error is not None:
                return
            if self._delay_s is not None:
                time.sleep(self._delay_s())
            try:
                work()
            except BaseException as error:
                self._error = error

        self._queue.put(later)

    def wait(self, event: Event) -> None:
        def later() -> None:
            try:
                event.synchronize()
            except BaseException as error:
                self._error = self._error or error

        self._queue.put(later)

    def record(self) -> FakeEvent:
        event = FakeEvent()
        self._queue.put(lambda: event.reach(self._error))
        return event

    def again(self, work: Work) -> Work:
        return work

    def end(self) -> None:
        self._queue.put(None)


class FakeStreamDevice:
    """See the module's text.

    Args:
        delay_s: work of a lane starts up to so many seconds late, drawn evenly from ``rng``; 0: at once.
    """

    immediate = False

    def __init__(self, name: str = "fake:0", *, delay_s: float = 0.0, rng: random.Random | None = None) -> None:
        self.name = name
        self.torch_device = torch.device("cpu")
        self._lanes: list[_FakeLane] = []
        drawn = rng or random.Random(0)
        self._delay_s = (lambda: drawn.uniform(0.0, delay_s)) if delay_s > 0 else None

    def allocate(self, size_bytes: int) -> Tensor:
        return zeroed_memory(size_bytes)

    def host_memory(self, size_bytes: int) -> Tensor:
        return zeroed_memory(size_bytes)

    def lane(self, name: str) -> Lane:
        self._lanes.append(_FakeLane(f"{name} of {self.name}", self._delay_s))
        return self._lanes[-1]

    def synchronize(self) -> None:
        for lane in self._lanes:
            lane.record().synchronize()

    def reset_peak(self) -> None:
        pass

    def peak_bytes(self) -> int:
        return 0

    def about(self) -> str:
        return "no hardware: threads with queues"

    def close(self) -> None:
        for lane in self._lanes:
            lane.end()
        for lane in self._lanes:
            lane.thread.join(timeout=1.0)
