"""All devices in one process: same values as the reference, lawful traces, and an end to every fault with no thread left."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import handmade
import pytest
import torch
from inprocess_cases import HANDMADE, assert_bit_equal, broken
from matrix import STEPS, assert_is_what_it_says, assert_transparent, expected, plan_for, program, roomy_cluster
from torch import Tensor

from backend.devices.options import DeviceOptions
from backend.inprocess import run
from backend.inprocess.rendezvous import Rendezvous
from backend.memory.options import MemoryOptions, RegisterMode
from backend.reference import perform
from planner.frontend import SGD, Program
from planner.ir.actors.actor import build_actors
from planner.ir.errors import InvalidPlan, InvalidProgram, Unsupported, WorkerFailed
from planner.ir.files import load_trace
from planner.ir.traces.trace import check_trace
from planner.lower.data_actors.loading import with_loading
from planner.parallelism.make import PlanOptions, make_plan
from regista.cli import main

CELLS = [
    ("mlp", "data2"),
    ("gpt", "data2_tensor2"),
    ("gpt", "pipeline2"),
    ("gpt", "recompute_pipeline2"),
    ("gpt", "sequence2"),
    ("convnet", "data2"),
    ("mlp", "zb_h1"),
    ("mlp", "interleaved2_data2"),
    ("gpt", "zero3_accumulated"),
    ("gpt", "pipeline2_data2_tensor2"),
    pytest.param("llama3", "recompute_pipeline2", marks=pytest.mark.thorough),
    ("moe", "data2_experts2"),
]


def assert_no_thread_is_left() -> None:
    """All threads of runs have ended, or end within 10 s: where other programs hold all cores one may outlive the 2 s that a run waits."""
    for thread in threading.enumerate():
        if thread.name.startswith("regista"):
            thread.join(10)
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("regista")] == []


@pytest.mark.parametrize(("model", "way"), CELLS)
def test_plan_in_one_process_equals_training_on_one_device(model: str, way: str) -> None:
    plan = plan_for(model, way)
    assert_is_what_it_says(plan, way)
    source = program(model)
    outcome = run(plan, source.initial_state(plan.micro_batches), source.batch, STEPS, gradients=True)
    assert_transparent(outcome, expected(model, plan.micro_batches))
    check_trace(plan, outcome.trace)
    assert outcome.trace.performer == "threads"
    assert_no_thread_is_left()


@pytest.mark.parametrize("registers", RegisterMode)
@pytest.mark.parametrize("name", HANDMADE)
def test_values_are_bit_equal_to_the_reference(name: str, registers: RegisterMode) -> None:
    plan, micro_batches = HANDMADE[name]
    batch = handmade.batches(micro_batches)
    outcome = run(plan, handmade.start(), batch, STEPS, gradients=True, memory=MemoryOptions(registers=registers))
    assert outcome.trace.about["registers"] == registers.value
    assert_bit_equal(outcome, perform(plan, handmade.start(), batch, STEPS, gradients=True))


def test_collectives_of_a_planned_gpt_are_bit_equal_to_the_reference() -> None:
    """With plain SGD, as the reference's AdamW rounds otherwise than torch's fused one, which runs here; and with new memory for every block,
    as the reference has it: kernels that add up many numbers take them in another order where memory is aligned otherwise.
    """
    source = program("gpt")
    plain = Program(source.module, source.example_inputs, source.loss, SGD(lr=0.1), name="gpt", data=source.data)
    pins = ("input.0=S(0),B", "h.*.mlp.c_fc.weight=B,S(0)", "h.*.mlp.c_proj.weight=B,S(1)")
    options = PlanOptions(mesh=(2, 2), pins=pins)
    plan = make_plan(plain.graph(1), model="gpt", batch_size=plain.batch_size, cluster=roomy_cluster(4), options=options)
    state = plain.initial_state(1)
    here = run(plan, state, plain.batch, 2, gradients=True, memory=MemoryOptions(registers=RegisterMode.DYNAMIC))
    there = perform(plan, state, plain.batch, 2, gradients=True)
    assert_bit_equal(here, there)


def test_released_blocks_are_never_read() -> None:
    """They are overwritten with NaN as soon as their last reader has acknowledged."""
    plan = handmade.pipeline(3, width=2)
    outcome = run(plan, handmade.start(), handmade.batches(3), STEPS, gradients=True, memory=MemoryOptions(poison=True))
    assert_bit_equal(outcome, perform(plan, handmade.start(), handmade.batches(3), STEPS, gradients=True))


@pytest.mark.parametrize("option", [{"shared_memory": False}, {"workspace": False}, {"return_freed": True}])
def test_a_memory_option_of_worker_processes_is_refused_in_one_process(option: dict[str, bool]) -> None:
    (name,) = option
    with pytest.raises(Unsupported, match=f"memory options {name} do not apply to ranks of one process"):
        run(handmade.pipeline(3), handmade.start(), handmade.batches(3), STEPS, memory=MemoryOptions(**option))


def test_callers_state_is_not_written_to() -> None:
    state = handmade.start()
    run(handmade.pipeline(3), state, handmade.batches(3), STEPS)
    assert all(torch.equal(state[name], value) for name, value in handmade.start().items())


def test_progress_is_told_in_order_on_the_calling_thread() -> None:
    seen: list[tuple[int, float]] = []
    threads: set[str] = set()

    def note(step: int, loss: float) -> None:
        seen.append((step, loss))
        threads.add(threading.current_thread().name)

    outcome = run(handmade.data_parallel(2, 2), handmade.start(), handmade.batches(2), 5, on_progress=note)
    assert seen == list(enumerate(outcome.losses))
    assert threads == {threading.current_thread().name}


def test_a_loss_that_is_no_number_names_rank_task_micro_batch_and_the_first_bad_value() -> None:
    good = handmade.batches(2)

    def batch(step: int) -> tuple[Tensor, ...]:
        (part,) = good(step)
        return (torch.full_like(part, float("nan")),) if step == 2 else (part,)

    plan = handmade.pipeline(2)
    where = r"rank 1 failed in task forward\.1 \(act 4, micro-batch 0\): the loss is nan: h \(tensor 0 of regst .*came in with nan"
    with pytest.raises(WorkerFailed, match=where):
        run(plan, handmade.start(), batch, 4)
    outcome = run(plan, handmade.start(), batch, 4, allow_nan=True)
    assert [loss == loss for loss in outcome.losses] == [True, True, False, False]


def test_an_exception_in_a_kernel_names_rank_task_and_micro_batch() -> None:
    with pytest.raises(WorkerFailed, match=r"rank 1 failed in task forward\.1 \(act 0, micro-batch 0\): RuntimeError.*shapes"):
        run(broken(handmade.pipeline(2), "forward.1"), handmade.start(), handmade.batches(2), STEPS)
    assert_no_thread_is_left()


def test_a_fault_of_the_data_names_the_micro_batch_that_asked_for_it() -> None:
    good = handmade.batches(2)

    def batch(step: int) -> tuple[Tensor, ...]:
        if step == 2:
            raise OSError("disk gone")
        return good(step)

    with pytest.raises(WorkerFailed, match=r"rank 0 failed in task load.*\(act 4, micro-batch 0\): OSError: disk gone"):
        run(handmade.pipeline(2), handmade.start(), batch, 5)
    assert_no_thread_is_left()


def test_an_act_that_hangs_is_named_within_the_timeout() -> None:
    wake, went_on = threading.Event(), list[int]()
    good = handmade.batches(2)

    def batch(step: int) -> tuple[Tensor, ...]:
        if step == 1:
            wake.wait(60)
            went_on.append(step)
        return good(step)

    with pytest.raises(WorkerFailed, match=r"rank 0 failed in task load.*\(act 2, micro-batch 0\): it is running and did not end for 1 s"):
        run(handmade.pipeline(2), handmade.start(), batch, 5, timeout_s=1.0)
    assert not went_on  # the run ended before its act did
    wake.set()
    for thread in threading.enumerate():
        if thread.name.startswith("regista"):
            thread.join(20)
    assert_no_thread_is_left()


def test_an_interrupt_ends_the_run() -> None:
    good = handmade.batches(2)

    def batch(step: int) -> tuple[Tensor, ...]:
        if step == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return good(min(step, 4))

    with pytest.raises(KeyboardInterrupt):
        run(handmade.pipeline(2), handmade.start(), batch, 10**5)
    assert_no_thread_is_left()


def test_a_fault_in_the_callers_progress_function_comes_back() -> None:
    def stop(step: int, loss: float) -> None:
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        run(handmade.pipeline(2), handmade.start(), lambda step: handmade.batches(2)(0), 10**5, on_progress=stop)
    assert_no_thread_is_left()


def test_ranks_that_come_to_their_collectives_in_different_orders_are_refused() -> None:
    actors, _ = build_actors(handmade.data_parallel(2, 2), 1)
    place = Rendezvous((0, 1))
    assert place.come((actors["reduce.loss", 0], 0, 0)) is None
    with pytest.raises(InvalidPlan, match=r"rank 1 came to collective reduce.grads \(act 0\) while rank 0 waits in reduce.loss"):
        place.come((actors["reduce.grads", 1], 0, 0))


def test_the_acts_of_a_collective_are_in_axis_order_whoever_comes_last() -> None:
    actors, _ = build_actors(handmade.data_parallel(2, 2), 1)
    place = Rendezvous((1, 0))
    assert place.come((actors["reduce.loss", 0], 0, 0)) is None
    joint = place.come((actors["reduce.loss", 1], 0, 0))
    assert joint is not None
    assert [actor.rank for actor, _, _ in joint] == [1, 0]
    assert place.waiting() == ()


def test_what_can_be_refused_is_refused_before_anything_starts() -> None:
    plan = handmade.pipeline(2)
    with pytest.raises(InvalidProgram, match="at least 1 step"):
        run(plan, handmade.start(), handmade.batches(2), 0)
    with pytest.raises(InvalidPlan, match="needs state w1"):
        run(plan, {}, handmade.batches(2), 1)
    with pytest.raises(Unsupported, match="at least 1 act"):
        run(plan, handmade.start(), handmade.batches(2), 1, options=DeviceOptions(ahead=0))


def test_the_command_line_performs_a_plan_with_threads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, trace = str(tmp_path / "plan.json"), str(tmp_path / "run.json")
    assert main(["plan", "zoo:mlp", "--cluster", "local:2", "-o", plan]) == 0
    assert main(["run", plan, "--steps", "3", "--performer", "threads", "--timeout", "20", "--init", "philox:1", "-o", trace]) == 0
    performed, outcome = load_trace(trace)
    check_trace(performed, outcome)
    assert outcome.performer == "threads" and outcome.about["devices"] == "rank 0 cpu; rank 1 cpu"
    capsys.readouterr()
    assert main(["run", plan, "--performer", "reference", "--device", "cuda"]) == 2
    assert "performer reference runs on CPUs; use performer gloo or threads" in capsys.readouterr().err
    assert main(["run", plan, "--performer", "threads", "--device", "0=cpu"]) == 2
    assert "leaves out ranks [1]" in capsys.readouterr().err
    assert main(["run", plan, "--performer", "threads", "--checkpoint", str(tmp_path / "saved")]) == 2
    assert "performer threads has none" in capsys.readouterr().err


def test_a_chain_of_loading_actors_gives_the_losses_of_the_reference() -> None:
    source = program("gpt")
    plan = with_loading(plan_for("gpt", "data2"), copy=True)
    state = source.initial_state(plan.micro_batches)
    here = run(plan, state, source.batch, STEPS)
    torch.testing.assert_close(torch.tensor(here.losses), torch.tensor(perform(plan, state, source.batch, STEPS).losses))
    check_trace(plan, here.trace)
