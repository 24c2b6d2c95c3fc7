"""Devices whose work ends later than it is put there: order by events, reuse of blocks in stream order, errors that show late.

On a device without hardware whose lanes are threads that start late at random; what is proven here is what a GPU needs of the runtime.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import handmade
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inprocess_cases import HANDMADE, assert_bit_equal, broken
from matrix import STEPS, assert_transparent, expected, plan_for, program

from backend.devices.device import CpuDevice, ImmediateLane, Lane, Work
from backend.devices.fake import FakeRuntime, FakeStreamDevice, _FakeLane
from backend.devices.options import DeviceOptions
from backend.inprocess import run
from backend.inprocess.lanes.flights import Past
from backend.inprocess.lanes.hazards import Hazards, Mark
from backend.inprocess.registers import make_blocks
from backend.placing import lies_on_host
from backend.reference import perform
from planner.ir.errors import OutOfMemory, WorkerFailed
from planner.ir.plan import TaskKind
from planner.ir.traces.trace import check_trace
from planner.lower.data_actors.loading import with_loading
from tests.backend.devices.late_devices import fakes, on_fakes, reference


@settings(max_examples=12)
@given(name=st.sampled_from(sorted(HANDMADE)), ranks=st.sampled_from(["all", "odd"]), ahead=st.integers(1, 50), seed=st.integers(0, 10**6))
def test_values_are_those_of_the_reference_however_late_work_starts(name: str, ranks: str, ahead: int, seed: int) -> None:
    outcome = on_fakes(name, ranks, ahead=ahead, seed=seed)
    assert_bit_equal(outcome, reference(name))
    check_trace(HANDMADE[name][0], outcome.trace)


@pytest.mark.representatives("mlp-zb_h1", "convnet-data2")
@pytest.mark.parametrize(
    ("model", "way"), [("gpt", "pipeline2_data2_tensor2"), ("gpt", "zero3_accumulated"), ("mlp", "zb_h1"), ("convnet", "data2")]
)
def test_planned_models_on_late_devices_equal_training_on_one(model: str, way: str) -> None:
    plan, source = plan_for(model, way), program(model)
    with fakes(plan, delay_s=0.0002) as devices:
        outcome = run(plan, source.initial_state(plan.micro_batches), source.batch, STEPS, gradients=True, devices=devices, timeout_s=60)
    assert_transparent(outcome, expected(model, plan.micro_batches))
    check_trace(plan, outcome.trace)


def test_a_runtime_that_does_not_wait_for_what_it_reads_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hazards, "read", lambda self, key: [])
    with pytest.raises((AssertionError, WorkerFailed)):
        assert_bit_equal(on_fakes("pipeline", "all"), reference("pipeline"))


def test_a_runtime_that_overwrites_blocks_that_are_still_read_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hazards, "write", lambda self, key, generation: [])
    with pytest.raises((AssertionError, WorkerFailed)):
        assert_bit_equal(on_fakes("pipeline", "all"), reference("pipeline"))


def test_messages_travel_when_an_act_is_put_into_its_lane() -> None:
    """The lane is held back, the messages are not: what the quotas allow is in the lane before the first act of it has ended."""
    plan, gate = handmade.data_parallel(1, 4), threading.Event()
    device = FakeStreamDevice("fake:0")
    taken: list[int] = []

    class Held(_FakeLane):
        def enqueue(self, work: Work) -> None:
            taken.append(len(taken))
            super().enqueue(lambda: (gate.wait(20), work()))

    runtime = FakeRuntime()

    def lane(name: str) -> Lane:
        return Held(runtime, runtime.stream(name, None), None)

    device.lane = lane  # type: ignore[method-assign]
    runner = threading.Thread(
        target=lambda: run(
            plan,
            handmade.start(),
            handmade.batches(4),
            1,
            devices={0: _DeviceOnly(device, "compute")},
            options=DeviceOptions(ahead=100),
            timeout_s=20,
        )
    )
    runner.start()
    until = time.monotonic() + 15
    while len(taken) < 4 and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.1)
    held = len(taken)
    gate.set()
    runner.join(20)
    runtime.close()
    assert held == 4  # forward and backward of two micro-batches: the batch has two blocks, and loading a third waits for their readers


class _DeviceOnly:
    """A fake device whose other streams than one are immediate, so that loading does not wait for a lane that is held back."""

    def __init__(self, device: FakeStreamDevice, stream: str) -> None:
        self._device, self._stream = device, stream

    def __getattr__(self, name: str) -> object:
        return getattr(self._device, name)

    def lane(self, name: str) -> Lane:
        return self._device.lane(name) if name.startswith(self._stream) else ImmediateLane()


def test_an_error_that_shows_late_names_the_act_that_made_it_and_what_was_in_flight_behind_it() -> None:
    plan, filled = broken(handmade.pipeline(2), "forward.1"), threading.Event()
    with fakes(plan) as devices:
        lane_of = devices[1].lane

        def held_back(name: str) -> Lane:
            """The broken act starts once the act behind it is in the lane too."""
            lane = lane_of(name)
            enqueue, works = lane.enqueue, []

            def enqueued(work: Work) -> None:
                works.append(work)
                enqueue(work if len(works) > 1 else lambda: (filled.wait(10), work()))
                if len(works) > 1:
                    filled.set()

            if name.startswith("compute"):
                lane.enqueue = enqueued  # type: ignore[method-assign]
            return lane

        devices[1].lane = held_back  # type: ignore[method-assign]
        with pytest.raises(WorkerFailed, match=r"rank 1 failed in task forward\.1 \(act 0, micro-batch 0\).*shapes") as failed:
            run(plan, handmade.start(), handmade.batches(2), STEPS, devices=devices, timeout_s=20)
    assert filled.is_set()
    assert "; devices tell late, and also in flight were task backward.1 (act 0, micro-batch 0) of rank 1" in str(failed.value)


@pytest.mark.representatives("1")
@pytest.mark.parametrize("rank", [0, 1])
def test_a_lane_that_does_not_come_to_its_end_is_a_stall(rank: int) -> None:
    """Rank 1's keeps the loss back; of rank 0's the last update may be all that is missing when everything is in its lane."""
    plan, gate, went_on = handmade.pipeline(2), threading.Event(), list[str]()
    with fakes(plan) as devices:
        lane_of = devices[rank].lane

        def stuck(name: str) -> Lane:
            lane = lane_of(name)
            enqueue = lane.enqueue
            lane.enqueue = lambda work: enqueue(lambda: (gate.wait(30), went_on.append(name), work()))  # type: ignore[method-assign]
            return lane

        devices[rank].lane = stuck  # type: ignore[method-assign]
        try:
            with pytest.raises(WorkerFailed, match="did not end for 1 s"):
                run(plan, handmade.start(), handmade.batches(2), STEPS, devices=devices, timeout_s=1.0)
            assert not went_on  # the run ended before the lane did
        finally:
            gate.set()
            time.sleep(0.2)


def test_loaded_blocks_lie_on_the_host_and_are_copied_by_the_copy_actor() -> None:
    plan = with_loading(handmade.pipeline(3), copy=True)
    copy = next(task for task in plan.tasks if task.kind is TaskKind.COPY)
    assert lies_on_host(plan, plan.regst[copy.reads[0].regst])
    assert not lies_on_host(plan, plan.regst[copy.writes[0].regst])
    wanted = perform(plan, handmade.start(), handmade.batches(3), STEPS)
    with fakes(plan) as devices:
        outcome = run(plan, handmade.start(), handmade.batches(3), STEPS, devices=devices, timeout_s=20)
    assert outcome.losses == wanted.losses
    check_trace(plan, outcome.trace)


class _Recording(FakeStreamDevice):
    """Its graphs are the work itself, held fast: a graph of other memory than an act's would show as wrong values."""

    def __init__(self, name: str) -> None:
        super().__init__(name, delay_s=0.0005)
        self.recorded = 0
        self.replayed = 0

    def lane(self, name: str) -> Lane:
        lane, device = super().lane(name), self

        def again(work: Work) -> Work:
            device.recorded += 1

            def replay() -> None:
                device.replayed += 1
                work()

            return replay

        lane.again = again  # type: ignore[method-assign]
        return lane


@pytest.mark.parametrize("name", ["data parallel", "pipeline"])
def test_a_graph_is_recorded_once_per_choice_of_slots_and_replayed_with_the_same_values(name: str) -> None:
    plan, micro_batches = HANDMADE[name]
    devices = {rank: _Recording(f"fake:{rank}") for rank in range(plan.num_ranks)}
    outcome = run(
        plan,
        handmade.start(),
        handmade.batches(micro_batches),
        8,
        gradients=True,
        devices=devices,
        options=DeviceOptions(graphs=True),
        timeout_s=20,
    )
    for device in devices.values():
        device.close()
    assert_bit_equal(outcome, perform(plan, handmade.start(), handmade.batches(micro_batches), 8, gradients=True))
    for device in devices.values():
        assert 0 < device.recorded < device.replayed


def test_blocks_that_do_not_all_fit_are_refused_on_devices_with_lanes() -> None:
    plan = handmade.pipeline(3, quota=64)
    blocks = make_blocks(plan, {rank: CpuDevice() for rank in range(2)})
    needs = max(of_rank.arena.allocated_bytes for of_rank in blocks.values() if of_rank.arena is not None)
    small = replace(plan, cluster=replace(plan.cluster, device=replace(plan.cluster.device, memory_bytes=needs // 2)))
    with fakes(small) as devices, pytest.raises(OutOfMemory, match=rf"has {needs // 2} B"):
        make_blocks(small, devices)


def test_hazards_writers_of_one_block_wait_for_its_readers_and_not_for_each_other() -> None:
    hazards, done = Hazards(), FakeStreamDevice("fake:0")
    first, second, reader = (Mark(done.lane(name), Past(0), Past(0)) for name in "abc")
    assert hazards.write("block", 0) == []
    hazards.enqueued(first, [], ["block"])
    assert hazards.write("block", 0) == []
    hazards.enqueued(second, [], ["block"])
    assert hazards.read("block") == [first, second]
    hazards.enqueued(reader, ["block"], [])
    assert set(map(id, hazards.write("block", 1))) == {id(first), id(second), id(reader)}
    done.close()


def test_an_act_starts_after_what_it_waited_for_whatever_the_clocks_say() -> None:
    """Two clocks, 5 ns apart, and a chain that is longer than Python's stack; times come out in order and nothing is kept for ever."""
    lane = ImmediateLane()
    chain = [Mark(lane, Past(100), Past(110))]
    for number in range(5000):
        chain.append(Mark(lane, Past(105), Past(105 + number % 3), (chain[-1],)))
    assert chain[-1].times_ns() == (110, 110)
    assert chain[1].times_ns() == (110, 110) and chain[0].times_ns() == (100, 110)
    assert all(mark.waits == () for mark in chain)
    late = Mark(lane, Past(200), Past(230), (chain[-1],))
    assert late.times_ns() == (200, 230)
