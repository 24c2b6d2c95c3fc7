"""The code of experiments/gpu, on lanes without hardware and on the CPU: what is left unproven is torch.cuda itself."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from inprocess_cases import assert_bit_equal
from matrix import program

from backend.devices.fake import FakeStreamDevice
from backend.inprocess import run
from backend.reference import perform
from experiments.gpu import __main__ as program_of
from experiments.gpu.__main__ import LIMITS_S, NO_DEVICE, main
from experiments.gpu.__main__ import perform as perform_part
from experiments.gpu.alone import AlonePrices, predict_then_run, prices_of
from experiments.gpu.bench import SMALL, Bench, Row, row
from experiments.gpu.compared import rivals
from experiments.gpu.compared.predicted import CONVOLUTIONS, GPT, _allocator
from experiments.gpu.figure import draw, gathered
from experiments.gpu.must_show import lines
from experiments.gpu.parts import PARTS, measure
from experiments.gpu.plans import four_actors, offloaded, roomy_cluster
from experiments.gpu.publish import publish
from planner.cost.kernels.table import load_kernels
from planner.frontend import SGD, Program
from planner.ir.cluster import load_cluster
from planner.ir.errors import InvalidPlan, Unsupported
from planner.ir.files import load_trace
from planner.ir.plan import Plan, RegstKind
from planner.ir.traces.trace import Source, check_trace
from planner.parallelism.make import PlanOptions, make_plan
from regista.report.rows import predicted_quantities, read_rows
from simulator import simulate
from zoo import ZOO

pytestmark = pytest.mark.experiments

_IN_ONE_CALL = {("kernels", "cpu"), ("predicted", "cpu")}
"""Parts that one test performs in turn, since the second reads what the first measured."""


@pytest.mark.parametrize(("part", "device"), [case for case in product(PARTS, ("cpu", "fake")) if case not in _IN_ONE_CALL])
def test_every_part_leaves_rows_of_both_kinds_and_lawful_traces(part: str, device: str, tmp_path: Path) -> None:
    _check_part(pd.read_csv(measure(part, device, tmp_path, small=True)), part, tmp_path)


def _check_part(rows: pd.DataFrame, part: str, folder: Path) -> None:
    assert set(rows["part"]) == {part}
    counted = rows["quantity"].str.startswith("counted for")  # a device without libraries has none
    exact = rows["quantity"] == "error"  # may be none at all
    assert (
        (rows["run"] > 0)[~counted & ~exact].all()
        and (rows["run"] >= 0).all()
        and (rows["run_low"] <= rows["run"]).all()
        and (rows["run"] <= rows["run_high"]).all()
    )
    predicted = rows[(rows["quantity"] == "step") & rows["sim"].notna()]
    assert (predicted["sim"] > 0).all()
    traces = sorted(path for path in folder.glob("*.json") if path.name.endswith((".sim.json", ".run.json")))
    assert len(traces) == 2 * len(predicted)
    for path in traces:
        plan, trace = load_trace(str(path))
        assert trace.source is (Source.SIM if path.name.endswith("sim.json") else Source.RUN)
        check_trace(plan, trace)


def test_the_kernel_table_of_the_run_predicts_every_plan(tmp_path: Path) -> None:
    _check_part(pd.read_csv(measure("kernels", "cpu", tmp_path / "kernels", small=True)), "kernels", tmp_path / "kernels")
    rows = pd.read_csv(measure("predicted", "cpu", tmp_path / "predicted", small=True))
    _check_part(rows, "predicted", tmp_path / "predicted")
    settings = set(rows[rows["quantity"] == "step"]["setting"])
    assert set(rows[rows["quantity"] == "step by the kernel table"]["setting"]) == settings and len(settings) == 10
    assert (tmp_path / "predicted" / "gantt-1.png").stat().st_size > 1000 and (tmp_path / "predicted" / "gantt-2.png").exists()
    assert load_kernels(str(tmp_path / "kernels" / "kernels.json")).times and load_cluster(tmp_path / "kernels" / "cluster.toml")


def test_at_least_twelve_plans_are_predicted_and_measured() -> None:
    settings = [*GPT, *CONVOLUTIONS]
    assert len({setting.name for setting in settings}) >= 12
    for wanted in ("recompute", "graphs", "dropout"):
        assert any(getattr(setting, wanted) for setting in settings)
    assert {setting.precision for setting in settings} == {"fp32", "bf16-mixed"} and {s.micro_batches for s in settings} >= {1, 2, 4}


def test_a_way_of_pytorch_that_fails_leaves_the_rows_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(bench: Bench, source: Program) -> rivals.Step:
        raise RuntimeError("no compiler\nhere")

    monkeypatch.setattr(rivals, "_compiled", fails)
    with pytest.warns(UserWarning, match="gpt2: torch.compile failed: RuntimeError: no compiler$"):
        rows = pd.read_csv(measure("gpt2", "cpu", tmp_path, small=True))
    assert set(rows["setting"]) == {"eager", "regista", "eager again", "eager / regista"}


def test_rows_are_there_before_a_part_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def part(bench: Bench) -> Iterator[Row]:
        yield row("half", "a", "step", "s", None, (1.0,))
        raise RuntimeError("the device is gone")

    monkeypatch.setitem(PARTS, "half", part)  # type: ignore[misc]
    with pytest.raises(RuntimeError):
        measure("half", "cpu", tmp_path, small=True)
    assert list(pd.read_csv(tmp_path / "rows.csv")["setting"]) == ["a"]


class _Stream:
    """What the whole step as a CUDA graph asks of torch.cuda, done at once."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def wait_stream(self, other: object) -> None:
        self.calls.append("wait_stream")


def test_the_code_that_only_a_gpu_runs_is_run_on_a_stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    steps: list[int] = []
    graph = SimpleNamespace(replay=lambda: calls.append("replay"))

    @contextmanager
    def called(name: str) -> Iterator[None]:
        calls.append(name)
        yield

    stub = {
        "Stream": lambda: _Stream(calls),
        "current_stream": lambda: _Stream(calls),
        "stream": lambda stream: called("stream"),
        "graph": lambda made: called("capture"),
        "CUDAGraph": lambda: graph,
        "synchronize": lambda device: calls.append("synchronize"),
        "empty_cache": lambda: calls.append("empty_cache"),
        "memory_stats": lambda device: defaultdict(lambda: 7),
    }
    for name, value in stub.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(rivals, "_parts", lambda bench, source: (None, [], None))
    monkeypatch.setattr(rivals, "_step_of", lambda *arguments: lambda: steps.append(1))
    bench, source = Bench("cuda:0", SMALL, tmp_path), ZOO["mlp"](batch=4)
    assert set(rivals._ways(bench, "mlp", source)) == {
        "eager", "CUDA graph", "regista, graphs", "regista", "eager again", "torch.compile",
    }  # fmt: skip
    replay = rivals._graphed(bench, source)
    assert len(steps) == 4 and calls == ["wait_stream", "stream", "wait_stream", "capture"]
    assert len(rivals._timed(bench, replay)) == 5 and calls.count("synchronize") == 10
    rivals._free(bench)
    assert calls[-1] == "empty_cache"
    assert [row.run for row in _allocator(bench, "gpt")] == [7.0] * 3


def _measured() -> pd.DataFrame:
    """Rows of a run on which every line holds."""
    made = [
        row("transparency", f"{name}: {ranks}", "error", "x", None, (0.5,))
        for name in ("fp32", "fp32, dropout", "bf16-mixed")
        for ranks in ("2 ranks, ZeRO-3", "4 ranks, pipeline of 2 x 2")
    ]
    made += [row("overhead", setting, "step / acts", "s", None, (1e-5,)) for setting in ("without graphs", "with graphs")]
    for part in ("gpt2", "resnet50"):
        made += [row(part, f"{rival} / regista, graphs", "ratio", "x", None, (1.2,)) for rival in ("eager", "torch.compile", "CUDA graph")]
    for number in range(12):
        made.append(row("predicted", f"{number}", "step", "s", 1.0, (1.04,)))
        made.append(row("predicted", f"{number}", "step by the kernel table", "s", 1.0, (0.97,)))
        made.append(row("predicted", f"{number}", "peak of cuda:0", "B", 100.0, (102.0,)))
    made += [row("actors", f"RegstNum {n}", "step", "s", None, (seconds,)) for n, seconds in ((1, 3.0), (2, 2.05))]
    made += [row("actors", task, "act alone", "s", None, (seconds,)) for task, seconds in (("h2d", 1.0), ("compute", 2.0))]
    return pd.DataFrame([asdict(each) for each in made])


def _kept(out: Path) -> None:
    for folder in ("kernels", "predicted"):
        (out / folder).mkdir(parents=True)
    for name in ("about.json", "kernels/kernels.json", "predicted/gantt-1.png", "predicted/gpt.run.json", "steps.png"):
        (out / name).write_text("{}")


def test_the_lines_that_a_run_must_show_hold_or_not_by_its_rows_alone(tmp_path: Path) -> None:
    _kept(tmp_path)
    ended = [{"part": "all", "state": "ok", "seconds": 470.0}]
    assert [line for line in lines(_measured(), ended, tmp_path) if line.holds is not True] == []
    empty = lines(pd.DataFrame(columns=_measured().columns), ended, tmp_path)
    assert {line.holds for line in empty[1:-1]} == {None}
    for part, quantity, factor, line in (
        ("transparency", "error", 3, "transparency in fp32"),
        ("gpt2", "ratio", 0.5, "gpt2: its step beside eager"),
        ("resnet50", "ratio", 0.5, "resnet50: its step beside torch.compile"),
        ("predicted", "step", 1.1, "step predicted by acts alone"),
        ("predicted", "peak of cuda:0", 1.1, "peak counted before the run"),
        ("actors", "step", 1.5, "H2D hides behind compute"),
    ):
        rows = _measured()
        rows.loc[(rows["part"] == part) & (rows["quantity"] == quantity), "run"] *= factor
        assert line in {each.line for each in lines(rows, ended, tmp_path) if each.holds is False}, line
    fewer = _measured()[lambda rows: ~((rows["part"] == "predicted") & (rows["setting"] == "3"))]
    assert "step predicted by acts alone" in {each.line for each in lines(fewer, ended, tmp_path) if each.holds is False}
    late = lines(_measured(), [{"part": "a", "state": "over its 3 s", "seconds": 3.0}], tmp_path)
    assert (late[0].holds, late[0].measured) == (False, "3 s, not well: a")


def test_a_second_call_keeps_what_ended_well_and_measures_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []
    states = iter(["ok", "failed (exit code 1)", "ok"])

    def perform(part: str, command: Sequence[str], out: Path, limit_s: float) -> program_of.Ended:
        measured.append(part)
        return program_of.Ended(part=part, state=next(states), seconds=1.0, log="")

    monkeypatch.setattr(program_of, "LIMITS_S", {"actors": 1.0, "overhead": 1.0})
    monkeypatch.setattr(program_of, "perform", perform)
    arguments = ["--device", "fake", "--small", "--out", str(tmp_path / "gpu")]
    assert (main(arguments), main(arguments)) == (1, 0)
    assert measured == ["actors", "overhead", "overhead"]
    assert list(pd.read_csv(tmp_path / "gpu" / "parts.csv")["state"]) == ["ok", "ok"]


def test_what_was_measured_is_copied_to_where_it_is_committed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, results = tmp_path / "out", tmp_path / "results"
    assert publish(out, tmp_path) == 1 and "holds no finished run" in capsys.readouterr().err
    _kept(out)
    (out / "about.json").write_text('{"gpu": "H100", "torch": "2.13"}')
    _measured().to_csv(out / "rows.csv", index=False)
    pd.DataFrame([asdict(line) for line in lines(_measured(), [], out)]).to_csv(out / "must_show.csv", index=False)
    (out / "parts.csv").write_text("part\n")
    (tmp_path / "figures").mkdir()
    assert publish(out, tmp_path) == 0
    assert {path.name for path in (results / "gpu").iterdir()} == {"about.json", "parts.csv", "kernels.json", "gpt.run.json.gz"}
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {"gpu_steps.png", "gpu_gantt-1.png"}
    assert set(pd.read_csv(results / "gpu_lines.csv")["gpu"]) == {"H100"}
    assert {quantity.name for quantity in predicted_quantities(read_rows(results / "gpu.csv"))} >= {"step_s", "peak_bytes"}


def test_a_part_that_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="part 'nonsense' is not known; choose from kernels"):
        measure("nonsense", "cpu", tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a host without CUDA device")
def test_without_a_cuda_device_it_says_so_and_has_an_exit_code_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--out", str(tmp_path / "gpu")]) == NO_DEVICE
    assert "no CUDA device" in capsys.readouterr().err
    assert not (tmp_path / "gpu").exists()


def test_one_part_by_name_writes_into_its_folder(tmp_path: Path) -> None:
    assert main(["--only", "actors", "--device", "fake", "--small", "--out", str(tmp_path)]) == 0
    whole = gathered(tmp_path)
    assert (whole["quantity"] == "step").sum() == 3
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


def test_a_call_takes_less_than_8_minutes_and_what_has_not_begun_is_left_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(LIMITS_S) == {"tests", *PARTS}
    assert program_of.TOTAL_S < 8 * 60
    limits: list[float] = []

    def perform(part: str, command: Sequence[str], out: Path, limit_s: float) -> program_of.Ended:
        limits.append(limit_s)
        time.sleep(0.3)
        return program_of.Ended(part=part, state="ok", seconds=0.3, log="")

    monkeypatch.setattr(program_of, "LIMITS_S", {"actors": 60.0, "overhead": 1.0, "hetero": 1.0})
    monkeypatch.setattr(program_of, "TOTAL_S", 3.5)
    monkeypatch.setattr(program_of, "perform", perform)
    arguments = ["--device", "fake", "--small", "--out", str(tmp_path / "gpu")]
    assert main(arguments) == 1
    assert len(limits) < 3 and all(limit <= 3.5 for limit in limits)
    assert "not begun in 3.5 s; call again" in list(pd.read_csv(tmp_path / "gpu" / "parts.csv")["state"])
    assert main(arguments) == 0


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
