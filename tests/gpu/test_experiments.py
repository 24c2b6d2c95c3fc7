"""The code of experiments/gpu, on lanes without hardware and on the CPU: what is left unproven is torch.cuda itself."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import torch
from inprocess_cases import assert_bit_equal
from matrix import program

from backend.devices.fake import FakeStreamDevice
from backend.inprocess import run
from backend.reference import perform
from experiments.gpu.__main__ import LIMITS_S, NO_DEVICE, main
from experiments.gpu.__main__ import perform as perform_part
from experiments.gpu.alone import AlonePrices, predict_then_run, prices_of
from experiments.gpu.figure import draw, gathered
from experiments.gpu.parts import PARTS, measure
from experiments.gpu.plans import four_actors, offloaded, roomy_cluster
from planner.frontend import SGD, Program
from planner.ir.errors import InvalidPlan, Unsupported
from planner.ir.files import load_trace
from planner.ir.plan import Plan, RegstKind
from planner.ir.traces.trace import Source, check_trace
from planner.parallelism.make import PlanOptions, make_plan
from simulator import simulate

pytestmark = pytest.mark.experiments


@pytest.mark.parametrize("device", ["fake", "cpu"])
@pytest.mark.parametrize("part", PARTS)
def test_every_part_leaves_rows_of_both_kinds_and_lawful_traces(part: str, device: str, tmp_path: Path) -> None:
    rows = pd.read_csv(measure(part, device, tmp_path, small=True))
    assert set(rows["part"]) == {part}
    assert (rows["run"] > 0).all() and (rows["run_low"] <= rows["run"]).all() and (rows["run"] <= rows["run_high"]).all()
    assert (rows[rows["quantity"] == "step"]["sim"] > 0).all()
    traces = sorted(tmp_path.glob("*.json"))
    assert len(traces) == 2 * sum(rows["quantity"] == "step")
    for path in traces:
        plan, trace = load_trace(str(path))
        assert trace.source is (Source.SIM if path.name.endswith("sim.json") else Source.RUN)
        check_trace(plan, trace)


def test_a_part_that_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="part 'nonsense' is not known; choose from actors"):
        measure("nonsense", "cpu", tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a host without CUDA device")
def test_without_a_cuda_device_it_says_so_and_has_an_exit_code_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--out", str(tmp_path / "gpu")]) == NO_DEVICE
    assert "no CUDA device" in capsys.readouterr().err
    assert not (tmp_path / "gpu").exists()


def test_one_part_by_name_writes_into_its_folder(tmp_path: Path) -> None:
    assert main(["--only", "actors", "--device", "fake", "--small", "--out", str(tmp_path)]) == 0
    whole = gathered(tmp_path)
    assert len(whole) == 3
    draw(whole, tmp_path / "steps.png", "test")
    assert (tmp_path / "steps.png").stat().st_size > 1000


def test_a_part_over_its_limit_is_ended_and_the_next_goes_on(tmp_path: Path) -> None:
    begin = time.monotonic()
    slow = perform_part("slow", [sys.executable, "-c", "import time; time.sleep(60)"], tmp_path, 0.5)
    bad = perform_part("bad", [sys.executable, "-c", "print('words'); raise SystemExit(4)"], tmp_path, 20)
    good = perform_part("good", [sys.executable, "-c", ""], tmp_path, 20)
    assert [end.state for end in (slow, bad, good)] == ["over its 0.5 s", "failed (exit code 4)", "ok"]
    assert (tmp_path / "bad.log").read_text() == "words\n"
    assert time.monotonic() - begin < 40


def test_all_limits_together_are_less_than_8_minutes() -> None:
    assert set(LIMITS_S) == {"tests", *PARTS}
    assert sum(LIMITS_S.values()) < 8 * 60


def test_four_actors_compute_what_torch_does() -> None:
    x, w = (torch.randn(8, 8, generator=torch.Generator().manual_seed(n)) for n in range(2))
    for quota in (1, 2, 3):
        outcome = perform(four_actors(quota, 8, 3), {"w": w}, lambda step: (x,), 2)
        assert outcome.losses == (float((x @ w @ w @ w).sum()),) * 2


def test_with_equal_times_the_four_actors_need_two_blocks_each_to_overlap() -> None:
    """Every act takes 1 s.  With one block a register is filled and emptied in turn: 2 s per batch; with two nobody waits: 1 s."""
    unit = dict.fromkeys((("load", 0), ("h2d", 0), ("compute", 1), ("d2h", 1)), 1.0) | {("fetch", 0): 0.0}
    periods = []
    for quota in (1, 2, 3):
        plan = four_actors(quota, 8, 1)
        periods.append(simulate(plan, AlonePrices(seconds=unit), steps=10).step_times_s(plan)[-1])
    assert periods == [2.0, 1.0, 1.0]


def test_acts_that_run_alone_never_overlap() -> None:
    plan = four_actors(3, 8, 2)
    x = torch.ones(8, 8)
    devices = {1: FakeStreamDevice(delay_s=0.001)}
    outcome = run(plan, {"w": x}, lambda step: (x,), 6, devices=devices, alone=True)
    devices[1].close()
    acts = sorted(outcome.trace.acts, key=lambda act: act.start_s)
    assert all(before.end_s <= after.start_s for before, after in zip(acts, acts[1:], strict=False))


def test_a_prediction_of_acts_that_never_vary_is_the_measurement_of_a_serial_plan() -> None:
    """On RegstNum 1 and one lane at a time, step = sum of acts: the simulator adds nothing of its own."""
    plan = four_actors(1, 8, 1)
    unit = AlonePrices(seconds={(task.id, rank): 0.5 for task in plan.tasks for rank in plan.ranks_of(task)})
    sim = simulate(plan, unit, steps=4)
    prices = prices_of(plan, sim)
    assert set(prices.seconds.values()) == {0.5}
    assert prices.id == unit.id


def _one_rank(optimizer: SGD | None = None) -> tuple[Plan, Program]:
    source = program("mlp")
    if optimizer is not None:
        source = Program(source.module, source.example_inputs, source.loss, optimizer, name="mlp", data=source.data)
    plan = make_plan(
        source.graph(2), model="mlp", batch_size=source.batch_size, cluster=roomy_cluster(1), options=PlanOptions(micro_batches=2)
    )
    return plan, source


def test_state_on_the_host_changes_no_value() -> None:
    plan, source = _one_rank(SGD(lr=0.1, momentum=0.9))
    state = source.initial_state(2)
    assert_bit_equal(
        perform(offloaded(plan), state, source.batch, 3, gradients=True), perform(plan, state, source.batch, 3, gradients=True)
    )


def test_state_that_is_updated_lies_on_the_host_and_nothing_else_does() -> None:
    plan = offloaded(_one_rank()[0])
    lies = {regst.id: plan.placement[regst.placement].ranks for regst in plan.regsts}
    for regst in plan.regsts:
        updated = regst.kind is RegstKind.STATE and regst.producer is not None
        assert updated <= (lies[regst.id] == (1,))
    with pytest.raises(InvalidPlan, match="2 ranks"):
        offloaded(plan)


def test_a_prediction_is_made_before_the_run_and_both_have_as_many_steps() -> None:
    plan, source = _one_rank()
    devices = {0: FakeStreamDevice()}
    predicted = predict_then_run(plan, source.initial_state(2), source.batch, devices, steps=3, alone_steps=2)
    devices[0].close()
    assert predicted.sim.steps == predicted.outcome.trace.steps == 5
    assert len(predicted.run_steps_s) == 3
    assert predicted.sim_step_s > 0
