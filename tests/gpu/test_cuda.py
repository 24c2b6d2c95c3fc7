"""On a real CUDA device: virtual devices that share it, CPU and GPU together, graphs, clocks, memory.  Skipped where there is none."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace

import handmade
import pytest
import torch
from inprocess_cases import HANDMADE, broken
from matrix import STEPS, assert_transparent, expected, plan_for, program

from backend.devices.cuda import CudaDevice
from backend.devices.device import Device
from backend.devices.opening import open_devices
from backend.devices.options import DeviceOptions
from backend.inprocess import run
from backend.inprocess.registers import make_blocks
from backend.memory.arena import planned_bytes
from backend.placing import lies_on_host
from backend.reference import perform
from backend.run_folder.outcome import Outcome
from planner.ir.errors import OutOfMemory, WorkerFailed
from planner.ir.traces.trace import check_trace
from planner.lower.data_actors.loading import with_loading

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

CELLS = [
    ("mlp", "data2"),
    ("gpt", "data2_tensor2"),
    ("gpt", "pipeline2"),
    ("gpt", "recompute_pipeline2"),
    ("gpt", "zero3_accumulated"),
    ("gpt", "pipeline2_data2_tensor2"),
    ("mlp", "zb_h1"),
    ("convnet", "data2"),
    ("llama3", "recompute_pipeline2"),
    ("moe", "data2_experts2"),
]
FACTOR = 10.0
"""A GPU adds up in another order than the CPU that is compared with; both are right to the rounding of float32 (TF32 is off)."""


@pytest.fixture
def opened() -> Iterator[Callable[[Mapping[int, str]], Mapping[int, Device]]]:
    """Opens devices, which are closed at the end of the test."""
    with ExitStack() as closing:
        yield lambda names: closing.enter_context(open_devices(names))


Opened = Callable[[Mapping[int, str]], Mapping[int, Device]]


def close_to(one: Outcome, other: Outcome) -> None:
    torch.testing.assert_close(torch.tensor(one.losses), torch.tensor(other.losses), rtol=1e-4, atol=1e-5)
    for here, there in ((one.states, other.states), (one.gradients, other.gradients)):
        for name, value in there.items():
            torch.testing.assert_close(here[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
@pytest.mark.parametrize(("model", "way"), CELLS)
def test_plan_on_virtual_devices_of_one_gpu_equals_training_on_one(model: str, way: str, graphs: bool, opened: Opened) -> None:
    plan, source = plan_for(model, way), program(model)
    devices = opened(dict.fromkeys(range(plan.num_ranks), "cuda:0"))
    state = source.initial_state(plan.micro_batches)
    outcome = run(plan, state, source.batch, STEPS, gradients=True, devices=devices, options=DeviceOptions(graphs=graphs), timeout_s=60)
    assert_transparent(outcome, expected(model, plan.micro_batches), factor=FACTOR)
    check_trace(plan, outcome.trace)


@pytest.mark.parametrize("gpu_rank", [0, 1])
def test_cpu_and_gpu_are_one_cluster(gpu_rank: int, opened: Opened) -> None:
    plan = handmade.pipeline(3)
    devices = opened({gpu_rank: "cuda:0", 1 - gpu_rank: "cpu"})
    outcome = run(plan, handmade.start(), handmade.batches(3), STEPS, gradients=True, devices=devices, timeout_s=60)
    close_to(outcome, perform(plan, handmade.start(), handmade.batches(3), STEPS, gradients=True))
    check_trace(plan, outcome.trace)


def test_a_planned_pipeline_on_cpu_and_gpu_equals_training_on_one(opened: Opened) -> None:
    plan, source = plan_for("gpt", "pipeline2"), program("gpt")
    devices = opened({0: "cpu", 1: "cuda:0"})
    outcome = run(plan, source.initial_state(plan.micro_batches), source.batch, STEPS, gradients=True, devices=devices, timeout_s=60)
    assert_transparent(outcome, expected("gpt", plan.micro_batches), factor=FACTOR)


@pytest.mark.parametrize("ahead", [1, 2, 64])
@pytest.mark.parametrize("name", HANDMADE)
def test_how_far_the_host_runs_ahead_changes_no_value(name: str, ahead: int, opened: Opened) -> None:
    plan, micro_batches = HANDMADE[name]
    batch = handmade.batches(micro_batches)
    outcome = run(
        plan,
        handmade.start(),
        batch,
        20,
        gradients=True,
        devices=opened(dict.fromkeys(range(plan.num_ranks), "cuda:0")),
        options=DeviceOptions(ahead=ahead),
        timeout_s=60,
    )
    close_to(outcome, perform(plan, handmade.start(), batch, 20, gradients=True))
    check_trace(plan, outcome.trace)


def test_loaded_blocks_are_pinned_and_the_others_lie_on_the_gpu(opened: Opened) -> None:
    plan = with_loading(handmade.pipeline(3), copy=True)
    devices = opened({0: "cuda:0", 1: "cpu"})
    blocks = make_blocks(plan, devices)
    for regst in plan.regsts:
        (rank,) = plan.placement[regst.placement].ranks
        for tensor in blocks[rank].rows(regst.id)[0]:
            assert tensor is not None
            on_gpu = rank == 0 and not lies_on_host(plan, regst)
            assert tensor.is_cuda == on_gpu and (on_gpu or tensor.is_pinned()), regst.id


def test_device_memory_taken_for_registers_is_the_plans(opened: Opened) -> None:
    plan = handmade.data_parallel(2, 2)
    before = torch.cuda.memory_allocated()
    blocks = make_blocks(plan, opened({0: "cuda:0", 1: "cuda:0"}))
    arenas = [of_rank.arena for of_rank in blocks.values()]
    taken = torch.cuda.memory_allocated() - before
    assert [arena.allocated_bytes for arena in arenas if arena] == [planned_bytes(plan, 0), planned_bytes(plan, 1)]
    granule_bytes = 512  # of torch's caching allocator
    assert sum(a.allocated_bytes + a.padding_bytes for a in arenas if a) <= taken
    assert taken <= sum(-(-(a.allocated_bytes + a.padding_bytes) // granule_bytes) * granule_bytes for a in arenas if a)


def test_an_event_is_reached_between_the_host_times_around_it() -> None:
    device = CudaDevice("cuda:0")
    lane = device.lane("test")
    square = torch.randn(1024, 1024, device="cuda:0")
    device.synchronize()
    for _ in range(20):
        before = time.monotonic_ns()
        lane.enqueue(lambda: square @ square)
        event = lane.record()
        assert event is not None
        event.synchronize()
        after = time.monotonic_ns()
        slack_ns = device.clock.bound_ns + 2000
        assert before - slack_ns <= event.time_ns() <= after + slack_ns


def test_an_exception_in_a_kernel_names_rank_task_and_micro_batch(opened: Opened) -> None:
    plan = broken(handmade.pipeline(2), "forward.1")
    with pytest.raises(WorkerFailed, match=r"rank 1 failed in task forward\.1 \(act 0, micro-batch 0\).*shapes"):
        run(plan, handmade.start(), handmade.batches(2), STEPS, devices=opened({0: "cuda:0", 1: "cuda:0"}), timeout_s=30)


def test_registers_beyond_the_devices_memory_are_refused_with_the_numbers(opened: Opened) -> None:
    plan = handmade.pipeline(2)
    _, total = torch.cuda.mem_get_info()
    with pytest.raises(OutOfMemory, match=rf"take {4 * total} B"):
        CudaDevice("cuda:0").allocate(4 * total)
    small = replace(plan, cluster=replace(plan.cluster, device=replace(plan.cluster.device, memory_bytes=1)))
    with pytest.raises(OutOfMemory):
        run(small, handmade.start(), handmade.batches(2), 1, devices=opened({0: "cuda:0", 1: "cpu"}))
