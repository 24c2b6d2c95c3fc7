"""Devices by name, and the code of the CUDA device on a stub of torch.cuda that keeps torch's rules for a process."""

from __future__ import annotations

import inspect
import threading
import time

import handmade
import pytest
import torch
from inprocess_cases import HANDMADE, assert_bit_equal
from matrix import STEPS

from backend.devices import cuda as device_cuda
from backend.devices.device import CaptureFailed, parse_devices
from backend.devices.libraries import cublas_bytes, parse_cublas_config
from backend.devices.opening import open_devices
from backend.devices.options import DeviceOptions, numerics
from backend.devices.streams import MOST_STREAMS, StreamPool
from backend.inprocess import run
from backend.placing.graphs import NotCaptured
from planner.ir.errors import Unsupported, WorkerFailed
from planner.ir.traces.trace import check_trace
from tests.backend.devices.cuda_stub import POOLED, CudaStub, stub_device, stub_devices, stubbed
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
    with pytest.raises(Unsupported, match="device cuda:0: this process sees 0 CUDA devices"), open_devices({0: "cpu", 1: "cuda:0"}):
        pass


def test_the_code_of_the_cuda_device_runs_on_a_stub_of_torch_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    stub = CudaStub()
    stubbed(monkeypatch, stub)
    with pytest.raises(Unsupported, match="sees 1 CUDA devices"):
        device_cuda.CudaDevice("cuda:1")
    plan, micro_batches = HANDMADE["pipeline of 2 x 2"]
    outcome = run(
        plan,
        handmade.start(),
        handmade.batches(micro_batches),
        STEPS,
        gradients=True,
        devices=stub_devices(plan.num_ranks),
        timeout_s=20,
    )
    assert_bit_equal(outcome, reference("pipeline of 2 x 2"))
    check_trace(plan, outcome.trace)
    assert {"ExternalStream", "wait_event", "event.synchronize", "synchronize"} <= set(stub.calls)
    assert "Stream" not in stub.calls  # none of torch's own


def test_captures_of_several_devices_of_one_process_never_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each device had a lock of its own, and there is a device per rank; torch allows one capture per process."""
    stub = CudaStub()
    stubbed(monkeypatch, stub)
    monkeypatch.setattr(torch, "zeros", lambda *shape, device=None: torch.ones(*shape))
    lanes = [device.lane("compute") for device in stub_devices(4).values()]
    failures: list[BaseException] = []

    def capture(number: int) -> None:
        try:
            lanes[number].again(lambda: time.sleep(0.02))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=capture, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert failures == [] and stub.captures == 4


def test_no_two_lanes_of_a_gpu_share_a_stream_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 ranks have 40 lanes, and torch hands out 32 streams round robin: two lanes on one stream, and foreign kernels in a capture."""
    stubbed(monkeypatch, CudaStub())
    devices = stub_devices(8)
    numbers = [lane._stream.number for device in devices.values() for lane in (device.lane(f"{n}") for n in range(5))]  # type: ignore[attr-defined]
    assert len(numbers) > POOLED
    assert len(set(numbers)) == len(numbers)


def test_streams_of_a_closed_device_serve_the_next_one_and_too_many_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stubbed(monkeypatch, CudaStub())
    for _ in range(3):
        device = stub_device()
        numbers = {device.lane(f"{n}")._stream.number for n in range(3)}  # type: ignore[attr-defined]
        device.close()
        assert numbers <= set(range(1000, 1004))
    pool = StreamPool(iter(range(10**4)).__next__)
    for _ in range(MOST_STREAMS):
        pool.take()
    with pytest.raises(Unsupported, match=f"{MOST_STREAMS} streams of one GPU are taken; close devices"):
        pool.take()


def test_a_capture_that_fails_leaves_the_stream_as_it_was_and_the_act_is_performed_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    stub = CudaStub(fails=frozenset({1}))
    stubbed(monkeypatch, stub)
    real = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *shape, device=None, dtype=None: real(*shape, dtype=dtype))
    with pytest.raises(CaptureFailed, match="RuntimeError: operation failed"):
        stub_device().lane("compute").again(lambda: None)
    assert stub.current_stream(torch.device("cuda:0")) is stub.default_stream(torch.device("cuda:0"))
    plan, micro_batches = HANDMADE["pipeline"]
    stub = CudaStub(fails=frozenset(range(1000)))
    stubbed(monkeypatch, stub)
    with pytest.warns(NotCaptured, match=r"task \w+.\d on rank \d cannot be recorded as a graph \(RuntimeError: operation failed") as said:
        outcome = run(
            plan,
            handmade.start(),
            handmade.batches(micro_batches),
            STEPS + 5,
            devices=stub_devices(plan.num_ranks),
            options=DeviceOptions(graphs=True),
            timeout_s=20,
        )
    assert len(said) == 1  # once, however many tasks there are
    assert outcome.trace.about["graphs"].startswith("0 captured, ") and "replay" not in stub.calls


@pytest.mark.parametrize("drift", [50e-6, -50e-6])
def test_times_stay_those_of_the_host_however_long_a_run_takes(monkeypatch: pytest.MonkeyPatch, drift: float) -> None:
    """The clocks were tied once; two that differ by 50 millionths are 3 ms apart after a minute, which trace laws took for waiting."""
    stub = CudaStub(drift=drift)
    stubbed(monkeypatch, stub)
    now = [10**12]
    monkeypatch.setattr(stub, "now_ns", lambda: now[0])
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    device = stub_device()
    lane = device.lane("compute")
    for _ in range(600):
        event = lane.record()
        at_ns = now[0]
        now[0] += 100_000_000
        assert event is not None
        event.synchronize()
        assert abs(event.time_ns() - at_ns) <= (26_000 if device.clock.count < 3 else 1000)
    assert device.clock.count > 50


def test_library_workspaces_are_counted_per_lane_as_the_variable_or_torch_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cublas_bytes(5, 9, None) == 5 * (32 << 20)
    assert cublas_bytes(5, 8, None) == 5 * 8_519_680
    assert cublas_bytes(2, 9, ":16:8") == 2 * 16 * 8 * 1024
    for wrong in ("4096:8", ":4096", ":a:1", ":-1:2"):
        with pytest.raises(Unsupported, match="write :SIZE:COUNT"):
            parse_cublas_config(wrong)
    stubbed(monkeypatch, CudaStub())
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:2")
    assert stub_device().library_bytes(3) == 3 * (8 << 20)


def _legacy() -> tuple[bool, ...]:
    cudnn = torch.backends.cudnn
    return (
        torch.backends.cuda.matmul.allow_tf32,
        cudnn.allow_tf32,
        cudnn.deterministic,
        cudnn.benchmark,
        torch.are_deterministic_algorithms_enabled(),
    )


SWITCHES = (("generic", "all"), ("cuda", "all"), ("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn"), ("mkldnn", "matmul"))


def _new() -> list[str]:
    return [torch._C._get_fp32_precision_getter(*switch) for switch in SWITCHES]


def test_numerics_are_set_as_asked_whatever_they_were_and_put_back() -> None:
    """TF32 was set in tests only: what a user's process had switched on changed the results of a run."""
    before = _legacy(), _new()
    for tf32 in (False, True):
        for deterministic in (False, True):
            with numerics(DeviceOptions(tf32=tf32, deterministic=deterministic)):
                assert _legacy() == (tf32, tf32, deterministic, False, deterministic)
                assert _new()[1:5] == ["tf32" if tf32 else "ieee"] * 4 and _new()[5] == before[1][5]
    assert (_legacy(), _new()) == before


@pytest.mark.parametrize("switch", SWITCHES[:5], ids="-".join)
def test_numerics_serve_a_process_that_has_set_torchs_new_switches(switch: tuple[str, str]) -> None:
    """Reading ``allow_tf32`` is an error of torch once a new switch says otherwise, and a run ended there."""
    before = _new()
    try:
        torch._C._set_fp32_precision_setter(*switch, "tf32" if switch[1] in ("matmul", "all") else "ieee")
        mixed = _new()
        for tf32 in (False, True):
            with numerics(DeviceOptions(tf32=tf32)):
                assert _legacy()[:2] == (tf32, tf32)
        assert _new() == mixed
    finally:
        for _ in range(2):
            for each, precision in zip(SWITCHES, before, strict=True):
                torch._C._set_fp32_precision_setter(*each, precision)
            torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = False, True
        for each, precision in zip(SWITCHES, before, strict=True):
            torch._C._set_fp32_precision_setter(*each, precision)
        assert _new() == before


def test_a_kernel_that_failed_is_told_with_its_task_as_soon_as_an_event_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event of a GPU raises when it is asked; the launching thread ended there, and the run said after its time limit that it hung."""
    stub = CudaStub()
    stubbed(monkeypatch, stub)

    def fails(self: object) -> bool:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(stub.Event, "query", fails)
    plan, micro_batches = HANDMADE["pipeline"]
    begin = time.monotonic()
    with pytest.raises(WorkerFailed, match=r"rank \d failed in task .*illegal memory access"):
        run(plan, handmade.start(), handmade.batches(micro_batches), STEPS, devices=stub_devices(plan.num_ranks), timeout_s=20)
    assert time.monotonic() - begin < 10


def test_a_rank_on_another_gpu_takes_nothing_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread that chose a stream of cuda:1 put cuda:0 back, and made a context of half a gigabyte there; 8 ranks took 4 GB of GPU 0."""
    stub = CudaStub(devices=2)
    stubbed(monkeypatch, stub)
    device_cuda.CudaDevice("cuda:1").lane("compute").enqueue(lambda: None)
    assert stub.contexts == {1}


def test_memory_is_zeroed_before_anybody_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workspace is taken in the midst of a run, on the stream of one lane; another lane wrote there before the zeros came."""
    stub = CudaStub()
    stubbed(monkeypatch, stub)
    device, real = stub_device(), torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *args, **kwargs: (stub.calls.append("zeros"), real(*args, **kwargs))[1])
    stub.calls.clear()
    memory, lane = device.allocate(64), device.lane("compute")
    assert stub.calls[:2] == ["zeros", "stream.synchronize"]
    lane.enqueue(lambda: memory.fill_(1))
    assert stub.rules.broken == []


def test_what_the_cuda_device_calls_stands_in_torch_with_these_arguments() -> None:
    """A torch without CUDA has the signatures all the same."""
    graph = inspect.signature(torch.cuda.graph.__init__).parameters
    assert {"cuda_graph", "pool", "stream", "capture_error_mode"} <= set(graph)
    assert {"enable_timing"} <= set(inspect.signature(torch.cuda.Event.__new__).parameters)
    assert {"stream_ptr", "device"} <= set(inspect.signature(torch.cuda.ExternalStream.__new__).parameters)
    for name in ("wait_event", "synchronize"):
        assert callable(getattr(torch.cuda.ExternalStream, name))
    for name in ("record", "synchronize", "query", "elapsed_time"):
        assert callable(getattr(torch.cuda.Event, name))
    for name in ("mem_get_info", "max_memory_allocated", "reset_peak_memory_stats", "get_device_properties", "graph_pool_handle", "stream"):
        assert callable(getattr(torch.cuda, name))
    for name in ("current_stream", "set_stream"):
        assert callable(getattr(torch.cuda, name))
    assert callable(torch.cuda.CUDAGraph.replay) and issubclass(torch.OutOfMemoryError, RuntimeError)
