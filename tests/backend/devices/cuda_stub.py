"""torch.cuda without CUDA: streams do their work at once, events carry a clock, and its rules for a process hold.

It proves that the code runs and keeps to the rules, not that it is right on hardware.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from backend.devices import cuda as device_cuda
from backend.devices.device import CpuDevice, Device, Work
from backend.devices.streams import StreamPool

POOLED = 32
"""Streams that torch has per device; it hands them out round robin [torch, c10/cuda/CUDAStream.cpp]."""


class CudaStub:
    """Args: drift: the device's clock gains so many seconds per second.   fails: the captures that fail, by their number."""

    def __init__(self, *, drift: float = 0.0, fails: frozenset[int] = frozenset(), devices: int = 1) -> None:
        self.calls: list[str] = []
        self.devices, self.current_device = devices, 0
        self.contexts: set[int] = set()
        """Devices on which this process has made a context by choosing a stream while another device was current."""
        self.drift, self.now_ns = drift, time.monotonic_ns
        self.capturing: list[object] = []
        self.captures = 0
        self.handed_out = 0
        self.current: object = "default stream"
        stub = self

        class Event:
            def __init__(self, enable_timing: bool = False) -> None:
                assert enable_timing
                self.at_ns = 0

            def record(self, stream: object) -> None:
                self.at_ns = stub.now_ns()

            def synchronize(self) -> None:
                stub.calls.append("event.synchronize")

            def query(self) -> bool:
                return True

            def elapsed_time(self, later: Event) -> float:
                return (later.at_ns - self.at_ns) * (1.0 + stub.drift) * 1e-6

        class Stream:
            """One of torch's pool."""

            def __init__(self, device: torch.device) -> None:
                stub.calls.append("Stream")
                self.number = stub.handed_out % POOLED
                stub.handed_out += 1

            def wait_event(self, event: Event) -> None:
                assert isinstance(event, Event)
                stub.calls.append("wait_event")

            def synchronize(self) -> None:
                pass

        class ExternalStream(Stream):
            def __init__(self, number: int, device: torch.device) -> None:
                stub.calls.append("ExternalStream")
                self.number, self.device_index = number, device.index or 0

        class CUDAGraph:
            work: Work

            def replay(self) -> None:
                stub.calls.append("replay")
                self.work()

        @contextmanager
        def graph(made: CUDAGraph, pool: object, stream: Stream, capture_error_mode: str) -> Iterator[None]:
            assert capture_error_mode == "thread_local"
            if stub.capturing:
                raise RuntimeError("another capture is underway in this process")
            stub.capturing.append(made)
            stub.captures += 1
            stub.current = stream
            stub.calls.append("capture")
            yield
            stub.capturing.clear()
            if stub.captures in fails:
                raise RuntimeError("operation failed due to a previous error during capture")
            stub.current = "default stream"

        self.Event, self.Stream, self.ExternalStream, self.CUDAGraph, self.graph = Event, Stream, ExternalStream, CUDAGraph, graph

    @contextmanager
    def stream(self, stream: object) -> Iterator[None]:
        """As torch.cuda.StreamContext: at its end the device that was current has its stream set again, which takes a context there."""
        before, self.current_device = self.current_device, getattr(stream, "device_index", 0)
        yield
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

    def current_stream(self, device: torch.device) -> object:
        return SimpleNamespace(synchronize=lambda: None) if self.current == "default stream" else self.current

    def set_stream(self, stream: object) -> None:
        self.current = "default stream"

    def graph_pool_handle(self) -> object:
        return object()

    def mem_get_info(self, device: torch.device) -> tuple[int, int]:
        return 2**40, 2**40

    def get_device_properties(self, device: torch.device) -> object:
        return SimpleNamespace(name="stub", major=9, total_memory=2**40)


def stubbed(monkeypatch: pytest.MonkeyPatch, stub: CudaStub) -> None:
    """Let the code of the CUDA device call the stub, and streams be numbers that count up."""
    numbers = iter(range(1000, 10**6))
    monkeypatch.setattr(device_cuda, "_cuda", stub)
    monkeypatch.setattr(device_cuda, "_pools", {index: StreamPool(lambda: next(numbers)) for index in range(stub.devices)})


def stub_device(name: str = "cuda:0") -> device_cuda.CudaDevice:
    """A CudaDevice whose memory is the host's."""
    device = device_cuda.CudaDevice(name)
    device.torch_device = torch.device("cpu")
    device.allocate = device.host_memory = CpuDevice().allocate  # type: ignore[method-assign]
    return device


def stub_devices(count: int) -> dict[int, Device]:
    return {rank: stub_device() for rank in range(count)}


__all__ = ["POOLED", "CudaStub", "stub_device", "stub_devices", "stubbed"]
