"""One process per device: ranks are placed by the index of their device, with streams without hardware in real processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import handmade
import pytest
import torch
from inprocess_cases import HANDMADE, assert_bit_equal, broken
from matrix import STEPS, assert_transparent, expected, plan_for, program

from backend import run
from backend.checkpoint import SaveRequest, resume_point
from backend.devices.options import DeviceOptions
from backend.launch.on_devices import NotByNccl, check_devices, say_not_captured
from backend.memory.options import MemoryOptions
from backend.placing.graphs import NotCaptured
from backend.reference import perform
from planner.ir.actors.verify import device_bytes
from planner.ir.errors import OutOfMemory, Unsupported, WorkerFailed
from planner.ir.traces.trace import check_trace
from planner.lower.data_actors.loading import with_loading

pytestmark = pytest.mark.processes


def names(ranks: int) -> dict[int, str]:
    return {rank: f"fake:{rank}" for rank in range(ranks)}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", ["data parallel", pytest.param("pipeline of 2 x 2", marks=pytest.mark.thorough)])
def test_each_rank_is_a_process_on_the_device_of_its_index(name: str) -> None:
    plan, micro_batches = HANDMADE[name]
    state, batches = handmade.start(), handmade.batches(micro_batches)
    outcome = run(plan, state, batches, STEPS, gradients=True, devices=names(plan.num_ranks), timeout_s=60)
    assert_bit_equal(outcome, perform(plan, state, batches, STEPS, gradients=True))
    check_trace(plan, outcome.trace)
    about = outcome.trace.about
    assert about["devices"] == "; ".join(f"rank {rank} fake:{rank}" for rank in range(plan.num_ranks))
    # Each process opened its own device, and no other.
    facts = about["device facts"].split("; ")
    assert facts == [f"ranks {rank}: fake:{rank}: no hardware: threads with queues" for rank in range(plan.num_ranks)]
    assert about["collectives"] == "gloo (devices without hardware have no NCCL)"


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("model", "way"), [("gpt", "pipeline2_data2_tensor2"), ("gpt", "zero3"), ("mlp", "zb_h1")])
def test_planned_models_on_a_process_per_device_equal_training_on_one(model: str, way: str) -> None:
    plan, source = plan_for(model, way), program(model)
    state = source.initial_state(plan.micro_batches)
    outcome = run(plan, state, source.batch, STEPS, gradients=True, devices=names(plan.num_ranks), timeout_s=120)
    assert_transparent(outcome, expected(model, plan.micro_batches))
    check_trace(plan, outcome.trace)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_graphs_of_worker_processes_change_no_value() -> None:
    plan, source = plan_for("gpt", "pipeline2"), program("gpt")
    state = source.initial_state(plan.micro_batches)
    outcomes = [
        run(plan, state, source.batch, 6, gradients=True, devices=names(2), device_options=DeviceOptions(graphs=graphs), timeout_s=60)
        for graphs in (False, True)
    ]
    assert_bit_equal(*outcomes)
    captured = [int(phrase.split()[-2]) for phrase in outcomes[1].trace.about["graphs"].split("; ")]
    assert min(captured) > 0 and "graphs" not in outcomes[0].trace.about


def test_tasks_that_workers_could_not_record_are_said_once() -> None:
    with pytest.warns(NotCaptured, match="3 tasks of the workers could not be recorded as graphs") as said:
        say_not_captured(3)
    assert len(said) == 1
    say_not_captured(0)
    assert len(said) == 1


@pytest.mark.thorough
def test_ranks_may_share_a_device_and_stages_may_differ_in_kind_which_is_said() -> None:
    plan, micro_batches = HANDMADE["pipeline"]
    state, batches = handmade.start(), handmade.batches(micro_batches)
    wanted = perform(plan, state, batches, STEPS, gradients=True)
    for devices in ({0: "fake:0", 1: "fake:0"}, {0: "cpu", 1: "fake:3"}):
        outcome = run(plan, state, batches, STEPS, gradients=True, devices=devices, timeout_s=60)
        assert_bit_equal(outcome, wanted)
        assert outcome.trace.about["devices"] == "; ".join(f"rank {rank} {name}" for rank, name in devices.items())


def test_what_gloo_carries_is_said_before_anything_starts() -> None:
    plan = handmade.data_parallel(2, 2)
    says = "gloo carries collectives, through the host's memory: "
    with pytest.warns(NotByNccl, match=says + "devices without hardware have no NCCL"):
        assert check_devices(plan, names(2), DeviceOptions(), MemoryOptions()) == ("fake:0", "fake:1")
    with pytest.warns(NotByNccl, match=says + r"ranks \[0, 1\] share cuda:0, and NCCL refuses two ranks of one device"):
        check_devices(plan, {0: "cuda:0", 1: "cuda:0"}, DeviceOptions(), MemoryOptions())
    assert check_devices(plan, {}, DeviceOptions(), MemoryOptions()) == ()


def test_what_cannot_be_is_refused_before_anything_starts() -> None:
    plan = handmade.data_parallel(2, 2)
    with pytest.raises(Unsupported, match=r"ranks 0 on cpu, 1 on fake:0 meet in collectives of stream .*stages may differ"):
        check_devices(plan, {1: "fake:0"}, DeviceOptions(), MemoryOptions())
    with pytest.raises(Unsupported, match="ahead is an option of all ranks in one process"):
        check_devices(plan, names(2), DeviceOptions(ahead=2), MemoryOptions())
    with pytest.raises(Unsupported, match="options of devices with streams, and all ranks are on CPUs"):
        check_devices(plan, {}, DeviceOptions(tf32=True), MemoryOptions())
    with pytest.raises(Unsupported, match="poison and registers do not apply"):
        check_devices(plan, names(2), DeviceOptions(), MemoryOptions(poison=True))
    tight = replace(plan.cluster.device, memory_bytes=max(device_bytes(plan).values()) - 1)
    with pytest.raises(OutOfMemory, match="on devices with streams every block is memory of its own"):
        check_devices(replace(plan, cluster=replace(plan.cluster, device=tight)), names(2), DeviceOptions(), MemoryOptions())


@pytest.mark.thorough
@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a host without CUDA device")
def test_a_gpu_that_a_worker_does_not_see_is_told_with_its_rank() -> None:
    with pytest.raises(WorkerFailed, match="device cuda:0: this process sees 0 CUDA devices"):
        run(handmade.pipeline(2), handmade.start(), handmade.batches(2), 1, devices={1: "cuda:0"}, timeout_s=30)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_act_that_fails_on_a_device_is_named_with_its_rank_and_task() -> None:
    plan = broken(handmade.pipeline(2), "forward.1")
    with pytest.raises(WorkerFailed, match=r"rank 1 failed in task forward\.1 \(act 0, micro-batch 0\).*shapes"):
        run(plan, handmade.start(), handmade.batches(2), STEPS, devices=names(2), timeout_s=30)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_loading_saving_and_resuming_work_on_devices_too(tmp_path: Path) -> None:
    plan = with_loading(handmade.pipeline(3), copy=True)
    state, batches, folder = handmade.start(), handmade.batches(3), str(tmp_path / "saves")
    wanted = perform(plan, state, batches, 4)
    outcome = run(plan, state, batches, 2, devices=names(2), checkpoint=SaveRequest(folder=folder), timeout_s=60)
    assert outcome.losses == wanted.losses[:2]
    check_trace(plan, outcome.trace)
    saved = resume_point(folder)
    assert saved is not None and saved.steps == 2
    resumed = run(plan, saved.values, batches, 2, first_step=2, devices={0: "cpu", 1: "fake:5"}, timeout_s=60)
    assert resumed.losses == wanted.losses[2:]
    assert all(torch.equal(value, wanted.states[name]) for name, value in resumed.states.items())
