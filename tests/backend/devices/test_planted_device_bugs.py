"""The faults that a review found in the runtime of GPUs, planted one by one on a device without hardware: each is caught.

The device keeps a GPU's rules for a process (backend.devices.fake): one capture at a time, what a stream under capture records, streams that
are handed out round robin, workspaces that libraries keep per thread and stream, a clock that runs at a rate of its own.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext

import handmade
import pytest
import torch
from inprocess_cases import HANDMADE, assert_bit_equal
from matrix import STEPS, plan_for, program

from backend.devices import clock as device_clock
from backend.devices.device import Device, ImmediateLane, Lane
from backend.devices.fake import FAKE_LIBRARY_BYTES, FakeRuntime, FakeStreamDevice
from backend.devices.options import DeviceOptions
from backend.inprocess import perform as perform_module
from backend.inprocess import run
from backend.inprocess.body import ProcessBody
from backend.inprocess.lanes.acts import LaneActs
from backend.inprocess.lanes.flights import Past
from backend.memory.options import MemoryOptions
from backend.placing.graphs import NotCaptured
from backend.reference import perform
from backend.run_folder.outcome import Outcome
from planner.ir.actors.verify import stream_workspaces
from planner.ir.errors import InvalidTrace, OutOfMemory, WorkerFailed
from planner.ir.plan import Plan, Task
from planner.ir.traces.trace import check_trace

GRAPHS = DeviceOptions(graphs=True)
STEPS_WITH_REPLAYS = STEPS + 5


@contextmanager
def sharing(
    plan: Plan, runtime: FakeRuntime, *, delay_s: float = 0.0, drift: float = 0.0, memory_bytes: int = 0
) -> Iterator[Mapping[int, Device]]:
    """A device per rank of one process, all under its rules; with ``memory_bytes`` all ranks share one GPU."""
    one = FakeStreamDevice("fake:0", runtime=runtime, drift=drift, memory_bytes=memory_bytes)
    made: dict[int, Device] = {
        rank: one
        if memory_bytes
        else FakeStreamDevice(f"fake:{rank}", delay_s=delay_s, rng=random.Random(rank), runtime=runtime, drift=drift)
        for rank in range(plan.num_ranks)
    }
    try:
        yield made
    finally:
        runtime.close()


def perform_on(name: str, runtime: FakeRuntime, options: DeviceOptions, **about: float) -> Outcome:
    plan, micro_batches = HANDMADE[name]
    with sharing(plan, runtime, **about) as devices:  # type: ignore[arg-type]
        return run(
            plan,
            handmade.start(),
            handmade.batches(micro_batches),
            STEPS_WITH_REPLAYS,
            gradients=True,
            devices=devices,
            options=options,
            timeout_s=20,
        )


def wanted(name: str) -> Outcome:
    plan, micro_batches = HANDMADE[name]
    return perform(plan, handmade.start(), handmade.batches(micro_batches), STEPS_WITH_REPLAYS, gradients=True)


def several_threads_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As before: whichever thread is free puts an act into its lane."""
    monkeypatch.setattr(LaneActs, "is_launched", lambda self, joint: False)


def test_graphs_of_ranks_of_one_process_are_captured_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = FakeRuntime(capture_s=0.003)
    outcome = perform_on("pipeline of 2 x 2", runtime, GRAPHS)
    assert_bit_equal(outcome, wanted("pipeline of 2 x 2"))
    assert runtime.captured > 10 and outcome.trace.about["graphs"] == f"{runtime.captured} captured"
    several_threads_launch(monkeypatch)
    with pytest.warns(NotCaptured, match="another capture is underway"):
        perform_on("pipeline of 2 x 2", FakeRuntime(capture_s=0.003), GRAPHS)


@pytest.mark.parametrize("most_streams", [0, 2])
def test_a_capture_records_what_a_lane_of_the_same_stream_is_given_in_the_meantime(most_streams: int) -> None:
    """torch hands out 32 streams in turn, so of 40 lanes some shared one: a graph then did a neighbour's work again in every replay."""
    device = FakeStreamDevice(runtime=FakeRuntime(most_streams=most_streams, capture_s=0.05))
    one, _, other = (device.lane(f"{n}") for n in range(3))
    done: list[str] = []
    neighbour = threading.Timer(0.02, lambda: other.enqueue(lambda: done.append("neighbour")))
    neighbour.start()
    replay = one.again(lambda: done.append("own"))
    neighbour.join()
    for _ in range(2):
        one.enqueue(replay)
    for lane in (one, other):
        event = lane.record()
        assert event is not None
        event.synchronize()
    device._runtime.close()
    assert sorted(done) == (["neighbour", "neighbour", "own", "own"] if most_streams else ["neighbour", "own", "own"])


def test_library_workspaces_are_those_that_were_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuBLAS keeps 32 MiB per thread and stream on an H100: put there by any thread, 40 lanes of 8 ranks would keep 51 GB."""
    plan, _ = HANDMADE["pipeline of 2 x 2"]

    def kept() -> tuple[int, int]:
        runtime = FakeRuntime()
        perform_on("pipeline of 2 x 2", runtime, DeviceOptions(), delay_s=0.0005)
        return len(runtime.workspaces), runtime.num_streams

    with sharing(plan, FakeRuntime(), memory_bytes=1 << 30) as devices:
        counted = devices[0].library_bytes(1)
    assert counted == FAKE_LIBRARY_BYTES
    workspaces, streams = kept()
    assert workspaces <= streams  # one thread put everything there
    several_threads_launch(monkeypatch)
    assert max(kept()[0] for _ in range(3)) > streams


def test_memory_of_a_device_is_counted_by_owner_and_refused_before_the_first_act() -> None:
    plan, micro_batches = HANDMADE["data parallel"]
    outcome = perform_on("data parallel", FakeRuntime(), DeviceOptions(), memory_bytes=1 << 30)
    text = outcome.trace.about["memory of fake:0"]
    total, registers, workspace, libraries = (int(word.strip("B,:")) for word in text.split() if word.strip("B,:").isdigit())
    assert total == registers + workspace + libraries
    assert workspace == sum(sum(stream_workspaces(plan, rank).values()) for rank in range(2))
    assert libraries == 2 * FAKE_LIBRARY_BYTES
    with sharing(plan, FakeRuntime(), memory_bytes=total - 1) as devices:
        with pytest.raises(
            OutOfMemory, match=rf"ranks \[0, 1\] take {total} B: registers {registers}, .* fake:0, which has {total - 1} B left"
        ):
            run(plan, handmade.start(), handmade.batches(micro_batches), 1, devices=devices)
        assert devices[0].taken_bytes == 0  # type: ignore[attr-defined]


@pytest.mark.thorough
def test_values_inside_fragments_lie_in_the_workspace_that_the_plan_counts() -> None:
    """It was not used on devices with lanes, so what a run took there was more than its plan."""
    plan, source = plan_for("gpt", "data2"), program("gpt")
    state = source.initial_state(plan.micro_batches)
    outcomes = {}
    for planned in (True, False):
        with sharing(plan, FakeRuntime(), memory_bytes=1 << 33) as devices:
            outcomes[planned] = run(
                plan, state, source.batch, STEPS_WITH_REPLAYS, devices=devices, memory=MemoryOptions(workspace=planned), timeout_s=60
            )
    assert_bit_equal(outcomes[True], outcomes[False])
    taken = {planned: outcome.trace.about["workspace"] for planned, outcome in outcomes.items()}
    used, limit = (int(word) for word in taken[True].split() if word.isdigit())
    assert 0 < used <= limit == sum(sum(stream_workspaces(plan, rank).values()) for rank in range(2))
    assert taken[False] == "0 of 0 B"


@pytest.mark.thorough
def test_times_of_a_device_whose_clock_drifts_are_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A millisecond per second is far more than any GPU drifts; so a run of a second shows what an hour does."""
    monkeypatch.setattr(device_clock, "TIE_EVERY_NS", 20_000_000)
    monkeypatch.setattr(device_clock, "_LEAST_FOR_RATE_NS", 5_000_000)

    def worst_ns() -> float:
        device = FakeStreamDevice(drift=1e-3)
        lane, pause = device.lane("compute"), threading.Event()
        errors = []
        for number in range(60):
            lane.enqueue(lambda: pause.wait(0.01))
            event = lane.record()
            assert event is not None
            event.synchronize()
            if number > 10:
                errors.append(abs(event.time_ns() - event.at_ns))  # type: ignore[attr-defined]
        device.close()
        return max(errors)

    tied_again = worst_ns()
    monkeypatch.setattr(device_clock, "TIE_EVERY_NS", 10**18)
    tied_once = worst_ns()
    assert tied_again < 60_000 < 400_000 < tied_once


def test_a_run_on_drifting_clocks_keeps_the_laws_of_traces() -> None:
    plan, _ = HANDMADE["pipeline"]
    outcome = perform_on("pipeline", FakeRuntime(), DeviceOptions(), drift=1e-4)
    check_trace(plan, outcome.trace)


@pytest.mark.parametrize("planted", [False, True])
def test_host_acts_of_ranks_that_share_a_lane_are_caught(planted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One host lane served all ranks, and several threads took acts out of its queue at once: one that another had taken, or none at all."""
    plan, _ = HANDMADE["uneven"]
    monkeypatch.setattr(Past, "synchronize", lambda self: time.sleep(0.0005))
    shared, lane_of = ImmediateLane(), ProcessBody._lane

    def lane(self: ProcessBody, task: Task, rank: int) -> Lane:
        made = lane_of(self, task, rank)
        return shared if made.immediate else made

    if not planted:
        outcome = perform_on("uneven", FakeRuntime(), DeviceOptions())
        check_trace(plan, outcome.trace)
        return
    monkeypatch.setattr(ProcessBody, "_lane", lane)
    with pytest.raises((WorkerFailed, InvalidTrace)):
        check_trace(plan, perform_on("uneven", FakeRuntime(), DeviceOptions()).trace)


def test_a_lane_that_is_full_holds_up_no_other() -> None:
    """One thread puts all acts into lanes; when it waited for a full lane, the others ran empty."""
    plan, gate = handmade.data_parallel(2, 4), threading.Event()
    runtime = FakeRuntime()
    with sharing(plan, runtime) as devices:
        lane_of = devices[0].lane
        enqueued: list[str] = []

        def held(name: str) -> object:
            lane = lane_of(name)
            if name.startswith("compute"):
                enqueue = lane.enqueue
                lane.enqueue = lambda work: enqueue(lambda: (gate.wait(20), work()))  # type: ignore[method-assign, func-returns-value]
            return lane

        other_of = devices[1].lane

        def noted(name: str) -> object:
            lane = other_of(name)
            enqueue = lane.enqueue

            def noting(work: object) -> None:
                enqueued.append(name)
                if len(enqueued) >= 6:
                    gate.set()
                enqueue(work)  # type: ignore[arg-type]

            lane.enqueue = noting  # type: ignore[method-assign, assignment]
            return lane

        devices[0].lane, devices[1].lane = held, noted  # type: ignore[method-assign, assignment]
        outcome = run(plan, handmade.start(), handmade.batches(4), 1, devices=devices, options=DeviceOptions(ahead=1), timeout_s=20)
    assert gate.is_set() and len(outcome.losses) == 1


def test_graphs_that_cannot_be_captured_are_told_once_and_change_no_value() -> None:
    runtime = FakeRuntime(captures=False)
    with pytest.warns(
        NotCaptured, match=r"cannot be recorded as a graph \(RuntimeError: operation not permitted.*leave --graphs out"
    ) as said:
        outcome = perform_on("pipeline", runtime, GRAPHS)
    assert len([one for one in said if one.category is NotCaptured]) == 1
    assert_bit_equal(outcome, wanted("pipeline"))
    assert runtime.captured == 0
    assert outcome.trace.about["graphs"].startswith("0 captured, ")


@pytest.mark.parametrize("planted", [False, True])
def test_a_run_computes_with_the_numerics_it_was_asked_for_whatever_the_process_had(planted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """TF32 was set in tests alone: a process that had switched it on ran Plans with 10 bits of the 23."""
    before = torch.backends.cuda.matmul.allow_tf32
    seen: set[bool] = set()
    lane_of = FakeStreamDevice.lane

    def looking(self: FakeStreamDevice, name: str) -> Lane:
        lane = lane_of(self, name)
        enqueue = lane.enqueue
        lane.enqueue = lambda work: enqueue(lambda: (seen.add(torch.backends.cuda.matmul.allow_tf32), work()))  # type: ignore[method-assign, func-returns-value]
        return lane

    monkeypatch.setattr(FakeStreamDevice, "lane", looking)
    if planted:
        monkeypatch.setattr(perform_module, "numerics", lambda options: nullcontext())
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        perform_on("pipeline", FakeRuntime(), DeviceOptions())
        assert seen == {planted}
        assert torch.backends.cuda.matmul.allow_tf32
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
