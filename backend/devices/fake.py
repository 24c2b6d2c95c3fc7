"""A device without hardware whose lanes really run later: each is a stream with a thread and a queue, and its events are real.

It stands in for the CUDA device in tests: everything that the runtime must get right there, order between lanes, reuse of blocks, errors that
show late, is got right or wrong here too, and every test can see it.  Memory is the host's.  The rules that hold for a process and not for a
device stand in FakeRuntime:

    one capture at a time       a second one raises, and so does an event on a stream under capture
    a stream under capture      what anybody puts into it is recorded instead of done, and done again in every replay
    streams handed out          each its own, or round robin out of so many (torch: 32)
    libraries                   a workspace per (thread that puts products there, stream), never given back
    clocks                      the device's runs at a rate of its own
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable

import torch
from torch import Tensor

from backend.devices.clock import DeviceClock, Tie
from backend.devices.device import CaptureFailed, Event, Lane, Work
from backend.memory.arena import zeroed_memory
from planner.ir.errors import OutOfMemory, WorkerFailed

__all__ = ["FAKE_LIBRARY_BYTES", "FakeEvent", "FakeRuntime", "FakeStreamDevice"]

FAKE_LIBRARY_BYTES = 1 << 20
"""Of the workspace that libraries keep per thread and stream."""


class FakeEvent:
    def __init__(self, clock: DeviceClock[FakeEvent] | None = None) -> None:
        self._reached = threading.Event()
        self._error: BaseException | None = None
        self._clock = clock
        self.at_ns = 0

    def reach(self, error: BaseException | None) -> None:
        self._error, self.at_ns = error, time.monotonic_ns()
        self._reached.set()

    def synchronize(self) -> None:
        self._reached.wait()
        if self._error is not None:
            raise WorkerFailed(f"{type(self._error).__name__}: {self._error}") from self._error

    def reached(self) -> bool:
        return self._reached.is_set()

    def time_ns(self) -> int:
        return self.at_ns if self._clock is None else self._clock.host_ns(self)


class _FakeStream:
    """After an error it does nothing more, and every later event tells of it, as on a GPU."""

    def __init__(self, name: str, delay_s: Callable[[], float] | None) -> None:
        self.queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self.error: BaseException | None = None
        self.recorded: list[Work] | None = None
        """The graph that is being captured from it."""
        self._delay_s = delay_s
        self.thread = threading.Thread(target=self._serve, daemon=True, name=f"fake lane {name}")
        self.thread.start()

    def _serve(self) -> None:
        torch.set_num_threads(1)
        with torch.no_grad():
            while (work := self.queue.get()) is not None:
                work()

    def do(self, work: Work) -> None:
        def later() -> None:
            if self.error is not None:
                return
            if self._delay_s is not None:
                time.sleep(self._delay_s())
            try:
                work()
            except BaseException as error:
                self.error = error

        self.queue.put(later)

    def wait(self, event: Event) -> None:
        def later() -> None:
            try:
                event.synchronize()
            except BaseException as error:
                self.error = self.error or error

        self.queue.put(later)

    def end(self) -> None:
        self.queue.put(None)
        self.thread.join(timeout=1.0)


class FakeRuntime:
    """The rules of the module's text, for all devices that are given the same one.

    Args:
        most_streams: streams are handed out round robin out of so many; 0: each its own.   capture_s: how long a capture takes.
        captures: whether work can be recorded at all.

    Attributes:
        workspaces: (thread, stream) pairs for which libraries keep one.   captured: graphs made.   num_streams: made.
    """

    def __init__(self, *, most_streams: int = 0, capture_s: float = 0.0, captures: bool = True) -> None:
        self.workspaces: set[tuple[int, int]] = set()
        self.captured = self.num_streams = 0
        self._most_streams, self._capture_s, self._captures = most_streams, capture_s, captures
        self._streams: list[_FakeStream] = []
        self._handed_out = 0
        self._capturing = False
        self._lock = threading.Lock()

    def stream(self, name: str, delay_s: Callable[[], float] | None) -> _FakeStream:
        with self._lock:
            self._handed_out += 1
            if self._most_streams and len(self._streams) >= self._most_streams:
                return self._streams[(self._handed_out - 1) % self._most_streams]
            self._streams.append(_FakeStream(name, delay_s))
            self.num_streams += 1
            return self._streams[-1]

    def capture(self, stream: _FakeStream, work: Work) -> Work:
        """A graph of what ``work``, and whoever else, puts into the stream in the meantime.

        Raises:
            CaptureFailed: another capture is underway, or nothing can be recorded.
        """
        with self._lock:
            if self._capturing:
                raise CaptureFailed("RuntimeError: another capture is underway in this process")
            if not self._captures:
                raise CaptureFailed("RuntimeError: operation not permitted when stream is capturing")
            self._capturing, stream.recorded = True, []
        try:
            if self._capture_s:
                time.sleep(self._capture_s)
            stream.recorded.append(work)
            graph = tuple(stream.recorded)
        finally:
            with self._lock:
                self._capturing, stream.recorded = False, None
        self.captured += 1

        def replay() -> None:
            for recorded in graph:
                recorded()

        return replay

    def close(self) -> None:
        for stream in self._streams:
            stream.end()
        self._streams = []


class _FakeLane:
    immediate = False

    def __init__(self, runtime: FakeRuntime, stream: _FakeStream, clock: DeviceClock[FakeEvent] | None) -> None:
        self._runtime, self.stream, self._clock = runtime, stream, clock

    def enqueue(self, work: Work) -> None:
        self._runtime.workspaces.add((threading.get_ident(), id(self.stream)))
        recorded = self.stream.recorded
        if recorded is not None:
            recorded.append(work)
        else:
            self.stream.do(work)

    def wait(self, event: Event) -> None:
        self._refuse_capture()
        self.stream.wait(event)

    def record(self) -> FakeEvent:
        self._refuse_capture()
        event, stream = FakeEvent(self._clock), self.stream
        stream.queue.put(lambda: event.reach(stream.error))
        return event

    def again(self, work: Work) -> Work:
        return self._runtime.capture(self.stream, work)

    def _refuse_capture(self) -> None:
        if self.stream.recorded is not None:
            raise RuntimeError("operation not permitted when stream is capturing")


class FakeStreamDevice:
    """See the module's text.

    Args:
        delay_s: work of a lane starts up to so many seconds late, drawn evenly from ``rng``; 0: at once.
        runtime: of the process; None: one of its own, which it closes.
        drift: the device's clock gains so many seconds per second of the host's.   memory_bytes: of the device; 0: without end.
    """

    immediate = False

    def __init__(
        self,
        name: str = "fake:0",
        *,
        delay_s: float = 0.0,
        rng: random.Random | None = None,
        runtime: FakeRuntime | None = None,
        drift: float = 0.0,
        memory_bytes: int = 0,
    ) -> None:
        self.name = name
        self.torch_device = torch.device("cpu")
        self.taken_bytes = 0
        self._memory_bytes, self._drift = memory_bytes, drift
        self._lanes: list[_FakeLane] = []
        self._runtime, self._is_own = runtime or FakeRuntime(), runtime is None
        self.clock = DeviceClock(self._tie, self._elapsed_ns) if drift else None
        drawn = rng or random.Random(0)
        self._delay_s = (lambda: drawn.uniform(0.0, delay_s)) if delay_s > 0 else None

    def _tie(self) -> Tie[FakeEvent]:
        event = FakeEvent()
        event.reach(None)
        return Tie(event, event.at_ns, 0)

    def _elapsed_ns(self, one: FakeEvent, other: FakeEvent) -> float:
        return (other.at_ns - one.at_ns) * (1.0 + self._drift)

    def allocate(self, size_bytes: int) -> Tensor:
        if self._memory_bytes and size_bytes > self.free_bytes():
            raise OutOfMemory(f"{size_bytes} B are asked for, {self.name} has {self.free_bytes()} of {self._memory_bytes} B left")
        self.taken_bytes += size_bytes
        return zeroed_memory(size_bytes)

    def host_memory(self, size_bytes: int) -> Tensor:
        return zeroed_memory(size_bytes)

    def lane(self, name: str) -> Lane:
        stream = self._runtime.stream(f"{name} of {self.name}", self._delay_s)
        self._lanes.append(_FakeLane(self._runtime, stream, self.clock))
        return self._lanes[-1]

    def free_bytes(self) -> int:
        return max(self._memory_bytes - self.taken_bytes, 0)

    def library_bytes(self, lanes: int) -> int:
        return lanes * FAKE_LIBRARY_BYTES if self._memory_bytes else 0

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
        if self._is_own:
            self._runtime.close()
