"""A CUDA device: every lane a stream of its own, every event a torch.cuda.Event, kept so thin that little can be wrong in it.

streams     from a pool of ours, never one of torch's 32 (backend.devices.streams)
captures    one at a time in the whole process, as torch demands; one that fails leaves the work as it is, and the lane says why
times       events know only differences, so events are tied to the host's clock again and again (backend.devices.clock)
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor

from backend.devices.clock import DeviceClock, Tie
from backend.devices.device import CaptureFailed, Event, Lane, Work
from backend.devices.libraries import CUBLAS_CONFIG, cublas_bytes
from backend.devices.streams import StreamPool
from planner.ir.errors import OutOfMemory, Unsupported

__all__ = ["CudaDevice"]

_cuda: Any = torch.cuda
"""torch.cuda has no types for its streams and events."""

_TRIES = 8
"""Of a tie; the quickest counts."""

_capturing = threading.Lock()
"""Within a process, only one capture may be underway at a time [torch, notes on CUDA semantics, constraints of graphs]."""

_pools: defaultdict[int, StreamPool] = defaultdict(StreamPool)
"""GPU -> its streams in this process; several runs share it."""


class _CudaEvent:
    def __init__(self, device: CudaDevice, event: torch.cuda.Event) -> None:
        self.event, self._device = event, device

    def synchronize(self) -> None:
        self.event.synchronize()

    def reached(self) -> bool:
        return bool(cast(Any, self.event).query())

    def time_ns(self) -> int:
        return self._device.clock.host_ns(self.event)


class _CudaLane:
    immediate = False

    def __init__(self, device: CudaDevice, stream: Any) -> None:
        self._device, self._stream = device, stream
        # Graphs of one lane never run at the same time and leave nothing in the pool, so one pool serves them all.
        self._pool: Any = None

    def enqueue(self, work: Work) -> None:
        with self._device.current(), _cuda.stream(self._stream):
            work()

    def wait(self, event: Event) -> None:
        if isinstance(event, _CudaEvent):
            self._stream.wait_event(event.event)
        else:
            event.synchronize()

    def record(self) -> _CudaEvent:
        event = _cuda.Event(enable_timing=True)
        event.record(self._stream)
        return _CudaEvent(self._device, event)

    def again(self, work: Work) -> Work:
        """Capturing needs a quiet stream, and other threads go on with theirs: thread_local mode.

        cuBLAS and cuDNN set themselves up once per thread, which must not fall into a capture, so each is called before.
        """
        if self._pool is None:
            self._pool = _cuda.graph_pool_handle()
        with self._device.current(), _cuda.stream(self._stream):
            small = torch.zeros(1, 1, 1, 1, device=self._device.torch_device)
            torch.nn.functional.conv2d(small, small)
            torch.mm(small.view(1, 1), small.view(1, 1))
        self._stream.synchronize()
        graph = _cuda.CUDAGraph()
        before = _cuda.current_stream(self._device.torch_device)
        try:
            with (
                self._device.current(),
                _capturing,
                _cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"),
            ):
                work()
        except Exception as error:
            _cuda.set_stream(before)  # torch leaves the capture's stream in place when the end of a capture fails
            raise CaptureFailed(f"{type(error).__name__}: {error}") from error
        replay: Work = graph.replay
        return replay


class CudaDevice:
    """See the module's text.

    Raises:
        Unsupported: no such device, or a torch without CUDA.
    """

    immediate = False

    def __init__(self, name: str = "cuda:0") -> None:
        self.index = int(name.removeprefix("cuda:"))
        count = _cuda.device_count() if _cuda.is_available() else 0
        if self.index >= count:
            raise Unsupported(f"device {name}: this process sees {count} CUDA devices (torch {torch.__version__}); use --device cpu")
        self.name = name
        self.torch_device = torch.device(name)
        self._taken: list[int] = []
        _cuda.init()
        with _cuda.device(self.torch_device):
            self._clock_stream = self._stream()
            self.clock: DeviceClock[torch.cuda.Event] = DeviceClock(self._tie, lambda one, other: one.elapsed_time(other) * 1e6)

    def current(self) -> AbstractContextManager[object]:
        """Make it the thread's device.

        To choose one of its streams makes it so as well, but then puts device 0 back, which takes 0.5 GB of that GPU for a context in each process
        whose rank is on another one.
        """
        return nullcontext() if self.index == 0 else cast(AbstractContextManager[object], _cuda.device(self.torch_device))

    def _stream(self) -> Any:
        """A stream that nobody else has, until this device is closed."""
        _cuda.current_stream(self.torch_device).synchronize()  # a call of the runtime makes the device's context this thread's
        self._taken.append(_pools[self.index].take())
        return _cuda.ExternalStream(self._taken[-1], device=self.torch_device)

    def _tie(self) -> Tie[torch.cuda.Event]:
        """The quickest of several tries, on a stream where nothing else lies."""
        readings: list[tuple[int, int, torch.cuda.Event]] = []
        for _ in range(_TRIES):
            event = _cuda.Event(enable_timing=True)
            before = time.monotonic_ns()
            event.record(self._clock_stream)
            event.synchronize()
            after = time.monotonic_ns()
            readings.append((after - before, (before + after) // 2, event))
        width, middle, event = min(readings, key=lambda entry: entry[0])
        return Tie(event, middle, width)

    def allocate(self, size_bytes: int) -> Tensor:
        try:
            # All streams use it, so it is of no lane's pool, which would hand it out again without asking the others.  It is zeroed before
            # anybody has it: workspace is taken in the midst of a run, and a lane that is quicker would find its first values overwritten.
            whole = _cuda.default_stream(self.torch_device)
            with self.current(), _cuda.stream(whole):
                memory = torch.zeros(size_bytes, dtype=torch.uint8, device=self.torch_device)
            whole.synchronize()
            return memory
        except torch.OutOfMemoryError as error:
            free_bytes, total_bytes = _cuda.mem_get_info(self.torch_device)
            raise OutOfMemory(
                f"the registers of one rank take {size_bytes} B, {self.name} has {free_bytes} of {total_bytes} B left; use smaller quotas, "
                f"more micro-batches, or fewer ranks on this device"
            ) from error

    def host_memory(self, size_bytes: int) -> Tensor:
        return torch.zeros(size_bytes, dtype=torch.uint8, pin_memory=True)

    def lane(self, name: str) -> Lane:
        with _cuda.device(self.torch_device):
            return _CudaLane(self, self._stream())

    def free_bytes(self) -> int:
        return int(_cuda.mem_get_info(self.torch_device)[0])

    def library_bytes(self, lanes: int) -> int:
        major = _cuda.get_device_properties(self.torch_device).major
        return cublas_bytes(lanes, major, os.environ.get(CUBLAS_CONFIG))

    def synchronize(self) -> None:
        _cuda.synchronize(self.torch_device)

    def reset_peak(self) -> None:
        _cuda.reset_peak_memory_stats(self.torch_device)

    def peak_bytes(self) -> int:
        return int(_cuda.max_memory_allocated(self.torch_device))

    def about(self) -> str:
        facts = _cuda.get_device_properties(self.torch_device)
        return f"{facts.name}, {facts.total_memory} B, CUDA {torch.version.cuda}, clock tied {self.clock.count} times, to {self.clock.bound_ns} ns"

    def close(self) -> None:
        """Its streams are free for the next device; lanes of this one must not be used any more."""
        if self._taken:
            self.synchronize()
        for stream in self._taken:
            _pools[self.index].give_back(stream)
        self._taken = []
