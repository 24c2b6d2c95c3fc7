"""Devices by name, and the code of the CUDA device on a stub of torch.cuda."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator
from contextlib import contextmanager

import handmade
import pytest
import torch
from inprocess_cases import HANDMADE, assert_bit_equal
from matrix import STEPS

from backend.devices import cuda as device_cuda
from backend.devices.device import CpuDevice, Device, Work, parse_devices
from backend.devices.opening import open_devices
from backend.inprocess import run
from planner.ir.errors import Unsupported
from planner.ir.traces.trace import check_trace
from tests.backend.devices.late_devices import reference


def test_devices_are_named_per_rank_or_for_all() -> None:
    assert parse_devices("cuda", 2) == {0: "cuda:0", 1: "cuda:0"}
    assert parse_devices("1=cuda:3, 0=cpu", 2) == {0: "cpu", 1: "cuda:3"}
    for text, match in (
        ("tpu", "device 'tpu' is not known"),
        ("0=cpu", r"leaves out ranks \[1\]"),
        ("0=cpu,0=cpu", "once for each rank"),
        ("0=cpu,2=cpu", "0 to 1"),
        ("cuda:x", "not known"),
    ):
        with pytest.raises(Unsupported, match=match):
            parse_devices(text, 2)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a host without CUDA device")
def test_a_gpu_that_is_not_there_is_refused_with_what_is() -> None:
    with pytest.raises(Unsupported, match="device cuda:0: this process sees 0 CUDA devices"):
        open_devices({0: "cpu", 1: "cuda:0"})


class _Stub:
    """torch.cuda without CUDA: streams do their work at once, events carry the host's clock.  Proves that the code runs, not that it is right
    on hardware."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        stub = self

        class Event:
            def __init__(self, enable_timing: bool = False) -> None:
                assert enable_timing
                self.at_s = 0.0

            def record(self, stream: object) -> None:
                self.at_s = time.monotonic()

            def synchronize(self) -> None:
                stub.calls.append("event.synchronize")

            def query(self) -> bool:
                return True

            def elapsed_time(self, later: Event) -> float:
                return (later.at_s - self.at_s) * 1e3

        class Stream:
            def __init__(self, device: torch.device) -> None:
                stub.calls.append("Stream")

            def wait_event(self, event: Event) -> None:
                assert isinstance(event, Event)
                stub.calls.append("wait_event")

            def synchronize(self) -> None:
                pass

        class CUDAGraph:
            work: Work

            def replay(self) -> None:
                stub.calls.append("replay")
                self.work()

        @contextmanager
        def graph(made: CUDAGraph, pool: object, stream: Stream, capture_error_mode: str) -> Iterator[None]:
            assert capture_error_mode == "thread_local"
            stub.calls.append("capture")
            yield

        self.Event, self.Stream, self.CUDAGraph, self.graph = Event, Stream, CUDAGraph, graph

    @contextmanager
    def stream(self, stream: object) -> Iterator[None]:
        yield

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        assert device.type == "cuda"
        yield

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def init(self) -> None:
        pass

    def synchronize(self, device: torch.device) -> None:
        self.calls.append("synchronize")

    def graph_pool_handle(self) -> object:
        return object()


def test_the_code_of_the_cuda_device_runs_on_a_stub_of_torch_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    stub = _Stub()
    monkeypatch.setattr(device_cuda, "_cuda", stub)
    with pytest.raises(Unsupported, match="sees 1 CUDA devices"):
        device_cuda.CudaDevice("cuda:1")
    plan, micro_batches = HANDMADE["pipeline of 2 x 2"]
    devices: dict[int, Device] = {}
    for rank in range(plan.num_ranks):
        device = device_cuda.CudaDevice("cuda:0")
        device.torch_device = torch.device("cpu")
        device.allocate = device.host_memory = CpuDevice().allocate  # type: ignore[method-assign]
        device.about = lambda: "stub"  # type: ignore[method-assign]
        devices[rank] = device
    outcome = run(plan, handmade.start(), handmade.batches(micro_batches), STEPS, gradients=True, devices=devices, timeout_s=20)
    assert_bit_equal(outcome, reference("pipeline of 2 x 2"))
    check_trace(plan, outcome.trace)
    assert {"Stream", "wait_event", "event.synchronize", "synchronize"} <= set(stub.calls)


def test_what_the_cuda_device_calls_stands_in_torch_with_these_arguments() -> None:
    """A torch without CUDA has the signatures all the same."""
    graph = inspect.signature(torch.cuda.graph.__init__).parameters
    assert {"cuda_graph", "pool", "stream", "capture_error_mode"} <= set(graph)
    assert {"enable_timing"} <= set(inspect.signature(torch.cuda.Event.__new__).parameters)
    assert {"device"} <= set(inspect.signature(torch.cuda.Stream.__new__).parameters)
    for name in ("wait_event", "synchronize"):
        assert callable(getattr(torch.cuda.Stream, name))
    for name in ("record", "synchronize", "query", "elapsed_time"):
        assert callable(getattr(torch.cuda.Event, name))
    for name in ("mem_get_info", "max_memory_allocated", "reset_peak_memory_stats", "get_device_properties", "graph_pool_handle", "stream"):
        assert callable(getattr(torch.cuda, name))
    assert callable(torch.cuda.CUDAGraph.replay) and issubclass(torch.OutOfMemoryError, RuntimeError)
