"""The CUDA device and the runtime on top of it keep the rules of streams, seen op by op; planted faults of the review break them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import handmade
import pytest
import torch
from inprocess_cases import HANDMADE, assert_bit_equal
from matrix import STEPS

from backend.devices import cuda as device_cuda
from backend.devices.device import CaptureFailed, ImmediateLane, Work
from backend.devices.opening import open_devices
from backend.devices.options import DeviceOptions, check_options
from backend.devices.streams import made_by_driver
from backend.inprocess import run
from backend.inprocess.lanes.hazards import Hazards, Mark
from backend.run_folder.outcome import Outcome
from planner.ir.errors import OutOfMemory, RegistaError, Unsupported
from planner.ir.traces.trace import check_trace
from tests.backend.devices.cuda_stub import CudaStub, stub_device, stub_devices, stubbed
from tests.backend.devices.late_devices import reference

LATE = 60
"""Of a hundred events that are asked, so many have not been reached."""


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> CudaStub:
    made = CudaStub(late=LATE)
    stubbed(monkeypatch, made)
    return made


def _run(name: str, *, graphs: bool = False, ahead: int = 8, steps: int = STEPS) -> Outcome:
    plan, micro_batches = HANDMADE[name]
    outcome = run(
        plan,
        handmade.start(),
        handmade.batches(micro_batches),
        steps,
        gradients=True,
        devices=stub_devices(plan.num_ranks),
        options=DeviceOptions(graphs=graphs, ahead=ahead),
        timeout_s=20,
    )
    check_trace(plan, outcome.trace)
    return outcome


@pytest.mark.representatives("pipeline of 2 x 2-1-False", "pipeline of 2 x 2-8-True")
@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("ahead", [1, 8])
@pytest.mark.parametrize("name", HANDMADE)
def test_every_op_of_a_run_waits_for_what_it_touches(name: str, ahead: int, graphs: bool, stub: CudaStub) -> None:
    outcome = _run(name, graphs=graphs, ahead=ahead)
    assert_bit_equal(outcome, reference(name))
    assert stub.rules.broken == [] and stub.rules.ops > 100
    assert ("replay" in stub.calls) is graphs


def _forgets_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not wait for who wrote what it reads."""

    def forgets(self: Hazards, key: Hashable) -> list[Mark]:
        return []

    monkeypatch.setattr(Hazards, "read", forgets)


def _forgets_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not wait for who still reads what it overwrites."""
    whole = Hazards.write

    def forgets(self: Hazards, key: Hashable, generation: int) -> list[Mark]:
        whole(self, key, generation)
        return []

    monkeypatch.setattr(Hazards, "write", forgets)


def _wait_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_cuda._CudaLane, "wait", lambda self, event: None)


def _host_reads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the host does is not behind the events of who wrote it."""
    monkeypatch.setattr(ImmediateLane, "wait", lambda self, event: None)


def _waits_for_new_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event that was never recorded is waited for."""
    whole = device_cuda._CudaLane.wait

    def wait(self: Any, event: Any) -> None:
        whole(self, device_cuda._CudaEvent(event._device, device_cuda._cuda.Event(enable_timing=True)))

    monkeypatch.setattr(device_cuda._CudaLane, "wait", wait)


def _one_event_per_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each lane records the same event again and again."""

    def record(self: Any) -> Any:
        self.kept = getattr(self, "kept", None) or device_cuda._cuda.Event(enable_timing=True)
        self.kept.record(self._stream)
        return device_cuda._CudaEvent(self._device, self.kept)

    monkeypatch.setattr(device_cuda._CudaLane, "record", record)


@pytest.mark.parametrize(
    ("plant", "rule"),
    [
        (_forgets_reads, "RACE"),
        (_forgets_writes, "RACE"),
        (_wait_does_nothing, "RACE"),
        (_host_reads_at_once, "RACE"),
        (_waits_for_new_events, "UNRECORDED"),
        (_one_event_per_lane, "REUSED"),
    ],
)
def test_a_runtime_that_does_not_wait_breaks_a_rule_although_its_numbers_are_right(
    plant: Callable[[pytest.MonkeyPatch], None], rule: str, stub: CudaStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    for name in ("pipeline of 2 x 2", "uneven"):
        try:
            _run(name)
        except (RegistaError, AssertionError):
            continue
    assert any(broken.startswith(rule) for broken in stub.rules.broken)


def test_memory_of_one_lane_that_another_uses_must_not_go_back_before_it_was_used(stub: CudaStub) -> None:
    device = stub_device()
    for recorded in (False, True):
        stub.rules.broken.clear()
        one, other = device.lane("one"), device.lane("other")
        made: list[torch.Tensor] = []
        one.enqueue(lambda made=made: made.append(torch.ones(4)))  # type: ignore[misc]
        event = one.record()
        assert event is not None
        other.wait(event)
        other.enqueue(lambda made=made: made[0].add_(1))  # type: ignore[misc]
        if recorded:
            stub.rules.record_stream(made[0], other._stream.key)  # type: ignore[attr-defined]
        made.clear()
        assert [broken.split()[0] for broken in stub.rules.broken] == ([] if recorded else ["FREED"])


@pytest.mark.parametrize("planted", [False, True])
def test_workspace_that_is_zeroed_on_the_stream_of_a_lane_is_caught(planted: bool, stub: CudaStub, monkeypatch: pytest.MonkeyPatch) -> None:
    if planted:
        monkeypatch.setattr(device_cuda.CudaDevice, "allocate", lambda self, size: torch.zeros(size, dtype=torch.uint8))
    device, made = stub_device(), list[torch.Tensor]()
    one, other = device.lane("one"), device.lane("other")
    one.enqueue(lambda: made.append(device.allocate(64)))
    other.enqueue(lambda: made[0].fill_(1))
    assert any(broken.startswith("RACE aten::fill_") for broken in stub.rules.broken) is planted
    device.close()


def test_a_replay_does_the_ops_again_and_the_capture_has_done_none(stub: CudaStub) -> None:
    lane, value, calls = stub_device().lane("compute"), torch.ones(3), []

    def work() -> None:
        calls.append(1)
        value.add_(value * 2)

    lane.enqueue(work)
    replay = lane.again(work)
    assert value.tolist() == [3.0] * 3 and len(calls) == 2
    for _ in range(2):
        lane.enqueue(replay)
    assert value.tolist() == [27.0] * 3 and len(calls) == 2


@pytest.mark.parametrize("what", ["item", "event", "stream", "nested"])
def test_what_may_not_be_done_in_a_capture_fails_it_and_the_stream_is_as_before(what: str, stub: CudaStub) -> None:
    device = stub_device()
    lane, value = device.lane("compute"), torch.ones(1)
    forbidden: dict[str, Work] = {
        "item": lambda: value.add_(1).item(),
        "event": lane.record,
        "stream": lambda: lane._stream.synchronize(),  # type: ignore[attr-defined]
        "nested": lambda: stub.graph(stub.CUDAGraph(), None, lane._stream, "thread_local").__enter__(),  # type: ignore[attr-defined]
    }
    with pytest.raises(CaptureFailed):
        lane.again(forbidden[what])
    assert value.tolist() == [1.0] and stub.rules.capture_of == {}
    where = torch.device("cuda:0")
    assert stub.current_stream(where) is stub.default_stream(where)


def test_two_captures_at_once_are_caught_without_the_lock_of_the_process(stub: CudaStub, monkeypatch: pytest.MonkeyPatch) -> None:
    device = stub_device()
    one, other = device.lane("one"), device.lane("other")
    unlocked: AbstractContextManager[None] = nullcontext()
    monkeypatch.setattr(device_cuda, "_capturing", unlocked)
    with pytest.raises(CaptureFailed, match="another capture is underway"):
        one.again(lambda: other.again(lambda: None))


def test_what_the_device_says_of_itself(stub: CudaStub) -> None:
    device = stub_device()
    device.reset_peak()
    assert (device.peak_bytes(), device.free_bytes()) == (2**20, 2**40)
    assert device.about().startswith("stub, 1099511627776 B, CUDA") and "clock tied 1 times" in device.about()
    assert device.library_bytes(2) == 2 * (32 << 20)
    lane = device.lane("compute")
    event = lane.record()
    assert event is not None
    while not event.reached():
        pass
    lane.wait(event)
    ImmediateLane().wait(event)
    device.close()
    device.close()
    assert "reset_peak_memory_stats" in stub.calls


def test_memory_that_is_not_there_is_refused_with_what_is(stub: CudaStub, monkeypatch: pytest.MonkeyPatch) -> None:
    device = stub_device()

    def full(*arguments: object, **options: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "zeros", full)
    with pytest.raises(OutOfMemory, match=r"take 64 B, cuda:0 has \d+ of \d+ B left"):
        device.allocate(64)


def test_pinned_memory_is_asked_for_by_that_name(stub: CudaStub, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, object] = {}
    monkeypatch.setattr(torch, "zeros", lambda size, **options: asked.update(options))
    device_cuda.CudaDevice("cuda:0").host_memory(8)
    assert asked == {"dtype": torch.uint8, "pin_memory": True}


class _Driver:
    """libcuda as far as streams go.   code: what it gives back."""

    def __init__(self, code: int) -> None:
        self.code, self.flags = code, list[int]()

    def cuStreamCreate(self, stream: Any, flags: Any) -> int:
        self.flags.append(flags.value)
        stream._obj.value = None if self.code else 4711
        return self.code


def test_streams_are_made_by_the_driver_as_ones_that_the_default_stream_does_not_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = _Driver(0)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    assert (made_by_driver(), driver.flags) == (4711, [1])
    monkeypatch.setattr(ctypes, "CDLL", lambda name: _Driver(201))
    with pytest.raises(Unsupported, match=r"refused another stream \(cuStreamCreate gave 201\)"):
        made_by_driver()

    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(Unsupported, match=r"the CUDA driver cannot be loaded \(libcuda\.so\.1: cannot open"):
        made_by_driver()


def test_options_that_would_be_ignored_or_cannot_be_kept_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    for options, devices, says in (
        (DeviceOptions(ahead=0), {"cuda:0"}, "at least 1 act"),
        (DeviceOptions(graphs=True), {"cpu"}, "options of devices with streams, and all ranks are on CPUs"),
        (DeviceOptions(deterministic=True), {"cuda:0"}, "CUBLAS_WORKSPACE_CONFIG is not set; set it to :4096:8 or :16:8"),
    ):
        with pytest.raises(Unsupported, match=says):
            check_options(options, devices, own_process=True)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    check_options(DeviceOptions(deterministic=True), {"cuda:0"}, own_process=True)


def test_a_cpu_has_no_streams_no_graphs_and_nothing_to_wait_for() -> None:
    with open_devices({0: "cpu"}) as opened:
        device = opened[0]
        lane, calls = device.lane("any"), list[int]()
        again = lane.again(lambda: calls.append(1))
        lane.enqueue(again)
        device.reset_peak()
        device.synchronize()
        assert calls == [1] and lane.record() is None
        assert (device.free_bytes(), device.library_bytes(3), device.peak_bytes(), device.about()) == (0, 0, 0, "cpu")
