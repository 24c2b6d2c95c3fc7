"""A CUDA device: every lane a torch.cuda.Stream, every event a torch.cuda.Event, kept so thin that little can be wrong in it.

Times: events know only differences, so one event per device is tied to the host's clock; later events are measured from it, and it is
moved forward now and then, as elapsed_time is a float32 of milliseconds (8 us apart after 100 s).

(1)  t(event) = t_host(anchor) + elapsed(anchor, event)        bound: the time of one record and synchronize -> CudaDevice.anchor_bound_ns
"""

from __future__ import annotations

import threading
import time
from typing import Any, cast

import torch
from torch import Tensor

from backend.devices.device import Event, Lane, Work
from planner.ir.errors import OutOfMemory, Unsupported

__all__ = ["CudaDevice"]

_cuda: Any = torch.cuda
"""torch.cuda has no types for its streams and events."""

_MOVE_AFTER_MS = 500.0
_ANCHOR_TRIES = 16


class _CudaEvent:
    def __init__(self, device: CudaDevice, event: torch.cuda.Event) -> None:
        self.event, self._device = event, device

    def synchronize(self) -> None:
        self.event.synchronize()

    def reached(self) -> bool:
        return bool(cast(Any, self.event).query())

    def time_ns(self) -> int:
        return self._device.time_of(self.event)


class _CudaLane:
    immediate = False

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._stream = _cuda.Stream(device=device.torch_device)
        # Graphs of one lane never run at the same time and leave nothing in the pool, so one pool serves them all.
        self._pool: Any = None

    def enqueue(self, work: Work) -> None:
        with _cuda.stream(self._stream):
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
        with _cuda.stream(self._stream):
            small = torch.zeros(1, 1, 1, 1, device=self._device.torch_device)
            torch.nn.functional.conv2d(small, small)
            torch.mm(small.view(1, 1), small.view(1, 1))
        self._stream.synchronize()
        graph = _cuda.CUDAGraph()
        with self._device.capturing, _cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            work()
        replay: Work = graph.replay
        return replay


class CudaDevice:
    """See the module's text.

    Raises:
        Unsupported: no such device, or a torch without CUDA.
    """

    immediate = False

    def __init__(self, name: str = "cuda:0") -> None:
        number = int(name.removeprefix("cuda:"))
        count = _cuda.device_count() if _cuda.is_available() else 0
        if number >= count:
            raise Unsupported(f"device {name}: this process sees {count} CUDA devices (torch {torch.__version__}); use --device cpu")
        self.name = name
        self.torch_device = torch.device(name)
        self.capturing = threading.Lock()
        self._anchoring = threading.Lock()
        _cuda.init()
        with _cuda.device(self.torch_device):
            self._anchor, self._anchor_ns, self.anchor_bound_ns = self._tie()

    def _tie(self) -> tuple[torch.cuda.Event, int, int]:
        """(event, host time, bound) of the quickest of several tries; equation (1)."""
        stream = _cuda.Stream(device=self.torch_device)
        readings: list[tuple[int, int, torch.cuda.Event]] = []
        for _ in range(_ANCHOR_TRIES):
            event = _cuda.Event(enable_timing=True)
            stream.synchronize()
            before = time.monotonic_ns()
            event.record(stream)
            event.synchronize()
            after = time.monotonic_ns()
            readings.append((after - before, (before + after) // 2, event))
        width, middle, event = min(readings, key=lambda entry: entry[0])
        return event, middle, width

    def time_of(self, event: torch.cuda.Event) -> int:
        """Host time of a reached event, in ns; equation (1)."""
        with self._anchoring:
            elapsed_ms = self._anchor.elapsed_time(event)
            at_ns: int = self._anchor_ns + round(elapsed_ms * 1e6)
            if elapsed_ms > _MOVE_AFTER_MS:
                self._anchor, self._anchor_ns = event, at_ns
            return at_ns

    def allocate(self, size_bytes: int) -> Tensor:
        try:
            return torch.zeros(size_bytes, dtype=torch.uint8, device=self.torch_device)
        except torch.OutOfMemoryError as error:
            free_bytes, total_bytes = _cuda.mem_get_info(self.torch_device)
            raise OutOfMemory(
                f"the registers of one rank take {size_bytes} B, {self.name} has {free_bytes} of {total_bytes} B left; use smaller quotas, "
                f"more micro-batches, or fewer ranks on this device"
            ) from error

    def host_memory(self, size_bytes: int) -> Tensor:
        return torch.zeros(size_bytes, dtype=torch.uint8, pin_memory=True)

    def lane(self, name: str) -> Lane:
        return _CudaLane(self)

    def synchronize(self) -> None:
        _cuda.synchronize(self.torch_device)

    def reset_peak(self) -> None:
        _cuda.reset_peak_memory_stats(self.torch_device)

    def peak_bytes(self) -> int:
        return int(_cuda.max_memory_allocated(self.torch_device))

    def about(self) -> str:
        facts = _cuda.get_device_properties(self.torch_device)
        return f"{facts.name}, {facts.total_memory} B, CUDA {torch.version.cuda}, clock tied to {self.anchor_bound_ns} ns"

    def close(self) -> None:
        pass
