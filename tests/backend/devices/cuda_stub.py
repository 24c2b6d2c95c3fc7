"""torch.cuda without CUDA: streams do their work at once, events carry a clock, and its rules for a process hold.

It proves that the code runs and keeps to the rules, not that it is right on hardware.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from backend.devices import cuda as device_cuda
from backend.devices.device import CpuDevice, Device, ImmediateLane, Work
from backend.devices.streams import StreamPool
from tests.backend.devices.cuda_rules import HOST, Clock, StreamRules

POOLED = 32
"""Streams that torch has per device; it hands them out round robin [torch, c10/cuda/CUDAStream.cpp]."""


class CudaStub:
    """torch.cuda as the CUDA device calls it.

    Args: drift: the device's clock gains so many seconds per second.   fails: the captures that fail, by their number.
        devices: of this process.   late: how often, of a hundred, an event that is asked has not been reached yet.

    Attributes:
        rules: what the streams were given, and what was wrong with it.   calls: by name.   captures: begun so far.
        contexts: devices on which this process has made a context by choosing a stream while another device was current.
    """

    def __init__(self, *, drift: float = 0.0, fails: frozenset[int] = frozenset(), devices: int = 1, late: int = 0) -> None:
        self.calls: list[str] = []
        self.rules = StreamRules()
        self.devices, self.current_device = devices, 0
        self.contexts: set[int] = set()
        self.drift, self.now_ns = drift, time.monotonic_ns
        self.captures = self.handed_out = 0
        stub, asked, rules = self, random.Random(0), self.rules

        class Event:
            """Recorded once, and waited for afterwards only: to wait for one that was not recorded is to wait for nothing."""

            def __init__(self, enable_timing: bool = False) -> None:
                assert enable_timing
                self.at_ns, self.clock = 0, None

            def record(self, stream: Stream) -> None:
                stream.refuse_capture()
                if self.clock is not None:
                    rules.broken.append("REUSED an event is recorded again, and who waits for its first record may wait for the second")
                self.at_ns, self.clock, self.stream = stub.now_ns(), rules.tick(stream.key), stream.key

            def recorded(self) -> Clock:
                if self.clock is None:
                    rules.broken.append("UNRECORDED an event that nobody recorded is waited for, which is not to wait")
                return self.clock or {}

            def synchronize(self) -> None:
                stub.calls.append("event.synchronize")
                rules.joined(HOST, self.recorded())

            @property
            def is_known(self) -> bool:
                """Whether the host knows that it was reached."""
                return bool(self.clock) and rules.clocks[HOST].get(self.stream, 0) >= self.clock[self.stream]

            def query(self) -> bool:
                if not self.is_known and asked.randrange(100) < late:
                    return False
                rules.joined(HOST, self.recorded())
                return True

            def elapsed_time(self, later: Event) -> float:
                if not (self.is_known and later.is_known):
                    raise RuntimeError("Both events must be completed before calculating elapsed time.")
                return (later.at_ns - self.at_ns) * (1.0 + stub.drift) * 1e-6

        class Stream:
            """One of torch's pool."""

            def __init__(self, device: torch.device) -> None:
                stub.calls.append("Stream")
                self.number, self.device_index = stub.handed_out % POOLED, device.index or 0
                stub.handed_out += 1

            @property
            def key(self) -> str:
                return f"stream {self.number}"

            def refuse_capture(self) -> None:
                if self.key in rules.capture_of:
                    raise RuntimeError("operation not permitted when stream is capturing")

            def wait_event(self, event: Event) -> None:
                assert isinstance(event, Event)
                self.refuse_capture()
                rules.joined(self.key, event.recorded())
                stub.calls.append("wait_event")

            def synchronize(self) -> None:
                self.refuse_capture()
                rules.host_waits_for(self.key)
                stub.calls.append("stream.synchronize")

        class ExternalStream(Stream):
            def __init__(self, number: int, device: torch.device) -> None:
                stub.calls.append("ExternalStream")
                self.number, self.device_index = number, device.index or 0

        class CUDAGraph:
            def replay(self) -> None:
                stub.calls.append("replay")
                self.capture.replay()

        @contextmanager
        def graph(made: CUDAGraph, pool: object, stream: Stream, capture_error_mode: str) -> Iterator[None]:
            """As torch.cuda.graph: waits for the device, and leaves its stream in place where the end of the capture fails."""
            assert capture_error_mode == "thread_local"
            stub.synchronize(torch.device("cuda", stream.device_index))
            number = stub.captures = stub.captures + 1
            before = stub.current_stream(torch.device("cuda", stream.device_index))
            with rules.capturing(stream.key) as made.capture:
                stub.calls.append("capture")
                stub.set_stream(stream)
                yield
                if number in fails:
                    raise RuntimeError("operation failed due to a previous error during capture")
            stub.set_stream(before)

        self.Event, self.Stream, self.ExternalStream, self.CUDAGraph, self.graph = Event, Stream, ExternalStream, CUDAGraph, graph
        self._current = threading.local()
        self._default = ExternalStream(0, torch.device("cuda", 0))
        self.calls.clear()

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        """As torch.cuda.StreamContext: at its end the device that was current has its stream set again, which takes a context there."""
        before, self.current_device = self.current_device, stream.device_index
        was = self.current_stream(torch.device("cuda", stream.device_index))
        self.set_stream(stream)
        try:
            with self.rules.on(stream.key):
                yield
        finally:
            self.set_stream(was)
            self.contexts |= {before, self.current_device}
            self.current_device = before

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        before, self.current_device = self.current_device, device.index or 0
        yield
        self.current_device = before

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return self.devices

    def init(self) -> None:
        pass

    def synchronize(self, device: torch.device) -> None:
        self.calls.append("synchronize")
        for stream in list(self.rules.clocks):
            if stream != HOST:
                self.rules.host_waits_for(stream)

    def current_stream(self, device: torch.device) -> Any:
        return getattr(self._current, "stream", None) or self._default

    def default_stream(self, device: torch.device) -> Any:
        return self._default

    def set_stream(self, stream: Any) -> None:
        self._current.stream = stream

    def graph_pool_handle(self) -> object:
        return object()

    def mem_get_info(self, device: torch.device) -> tuple[int, int]:
        return 2**40, 2**40

    def max_memory_allocated(self, device: torch.device) -> int:
        return 2**20

    def reset_peak_memory_stats(self, device: torch.device) -> None:
        self.calls.append("reset_peak_memory_stats")

    def get_device_properties(self, device: torch.device) -> object:
        return SimpleNamespace(name="stub", major=9, total_memory=2**40)


def stubbed(monkeypatch: pytest.MonkeyPatch, stub: CudaStub) -> None:
    """Let the code of the CUDA device call the stub, and streams be numbers that count up."""
    numbers = iter(range(1000, 10**6))

    def by_host(self: ImmediateLane, work: Work) -> None:
        with stub.rules.on(HOST):
            work()

    monkeypatch.setattr(ImmediateLane, "enqueue", by_host)
    monkeypatch.setattr(device_cuda, "_cuda", stub)
    monkeypatch.setattr(device_cuda, "_pools", {index: StreamPool(lambda: next(numbers)) for index in range(stub.devices)})


def stub_device(name: str = "cuda:0") -> device_cuda.CudaDevice:
    """A CudaDevice whose memory is the host's."""
    device = device_cuda.CudaDevice(name)
    device.torch_device = torch.device("cpu")
    device.host_memory = CpuDevice().host_memory  # type: ignore[method-assign]  # nothing is pinned here
    return device


def stub_devices(count: int) -> dict[int, Device]:
    return {rank: stub_device() for rank in range(count)}


__all__ = ["POOLED", "CudaStub", "stub_device", "stub_devices", "stubbed"]
