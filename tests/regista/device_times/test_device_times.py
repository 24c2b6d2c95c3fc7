"""What a device costs: its kernels timed one by one, the table and the cluster that follow, and Plans priced from them."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from backend.devices import facts
from backend.devices.device import CpuDevice
from backend.devices.fake import FakeStreamDevice
from backend.measure.stopwatch import Stopwatch
from planner.cost import AnalyticCost, load_prices
from planner.cost.kernels.table import CopyTime, KernelTable, KernelTime, load_kernels, save_kernels
from planner.cost.table_cost import TableCost
from planner.ir.cluster import Cluster, load_cluster, save_cluster
from planner.ir.errors import InvalidFile, Mismatch, Unsupported
from planner.ir.files import save_plan
from planner.ir.graph import KernelKind, KernelWork
from planner.ir.plan import Fragment, Plan
from planner.ir.tensor import DType
from planner.parallelism.make import PlanOptions, make_plan
from regista.cli import main
from regista.clusters import resolve_cluster
from regista.device_times import Size, calibrate_device, cluster_of, measuring
from regista.device_times.measuring import LeftOut, kernel_times
from regista.device_times.programs import KernelCase, cases
from tests.backend.devices.cuda_stub import CudaStub, stub_device, stubbed
from zoo import ZOO

PRODUCT = KernelWork(kind=KernelKind.PRODUCT, dtype=DType.FLOAT32, shape=(1, 64, 64, 64), flop=2 * 64**3, size_bytes=3 * 4 * 64**2)
PASS = KernelWork(kind=KernelKind.PASS, dtype=DType.FLOAT32, shape=(), flop=0, size_bytes=1 << 20)


def _time(work: KernelWork, seconds: float, target: str = "aten.mm.default") -> KernelTime:
    return KernelTime(target=target, work=work, seconds=seconds, low_s=seconds, high_s=seconds, rounds=3)


def _product(side: int) -> KernelWork:
    return replace(PRODUCT, shape=(1, side, side, side), flop=2 * side**3, size_bytes=12 * side**2)


TABLE = KernelTable(
    device="cuda:0",
    launch_s=4e-6,
    times=(
        *(_time(_product(side), 2e-6 + 2 * side**3 / 20e12) for side in (64, 256, 1024, 4096)),
        _time(PASS, 3e-6),
        _time(PASS, 5e-6),
        _time(replace(PASS, size_bytes=1 << 28), 1e-4),
    ),
    copies=tuple(
        CopyTime(to_device=there, size_bytes=size, seconds=1e-5 + size / 2e10) for there in (True, False) for size in (1 << 12, 1 << 24)
    ),
    about={"gpu": "NVIDIA H100 80GB HBM3", "torch": "2.13.0", "driver_version": "570.1"},
)


def test_a_kernel_that_was_measured_costs_its_median_and_another_lies_between_its_neighbours() -> None:
    assert TABLE.work_s(replace(PASS, times=7)) == pytest.approx(4e-6)
    assert TABLE.work_s(_product(256)) == 2e-6 + 2 * 256**3 / 20e12
    assert TABLE.work_s(_product(256)) < TABLE.work_s(_product(600)) < TABLE.work_s(_product(1024))
    assert TABLE.work_s(_product(8192)) > 4 * TABLE.work_s(_product(4096))
    assert TABLE.work_s(PASS) < TABLE.work_s(replace(PASS, size_bytes=1 << 25)) < TABLE.work_s(replace(PASS, size_bytes=1 << 28))
    assert TABLE.copy_s(1 << 25, to_device=True) == 2 * TABLE.copy_s(1 << 24, to_device=True)
    assert 1e-5 < TABLE.copy_s(1 << 20, to_device=False) < TABLE.copy_s(1 << 24, to_device=False)


def test_what_was_not_measured_is_refused_with_the_command_that_measures_it(tmp_path: Path) -> None:
    with pytest.raises(Mismatch, match="no product in bfloat16; measure one with 'regista calibrate --device cuda:0"):
        TABLE.work_s(replace(PRODUCT, dtype=DType.BFLOAT16))
    with pytest.raises(Mismatch, match="has no copies"):
        replace(TABLE, copies=()).copy_s(8, to_device=True)
    save_kernels(replace(TABLE, launch_s=-1.0), str(tmp_path / "t"))
    with pytest.raises(InvalidFile, match="measured times are above 0"):
        load_kernels(str(tmp_path / "t"))
    with pytest.raises(InvalidFile, match="no such file; 'regista calibrate PLAN"):
        load_prices(str(tmp_path / "no"), resolve_cluster("local:1"))


def test_the_cluster_of_a_table_names_the_device_of_the_catalogue_and_how_it_compares(tmp_path: Path) -> None:
    cluster = cluster_of(TABLE, devices=2, memory_bytes=80 * 10**9)
    assert (cluster.device.kernels, cluster.devices_per_node) == ("h100-sxm", 2)
    assert 0.1 < cluster.device.product_times < 20 and 0.1 < cluster.device.pass_times < 20
    save_cluster(cluster, tmp_path / "c.toml")
    assert load_cluster(tmp_path / "c.toml") == cluster
    other = cluster_of(replace(TABLE, about={}), devices=1, memory_bytes=10**9)
    assert other.device.kernels == "" and other.device.rate_flop_per_s == TABLE.rate_flop_per_s(DType.FLOAT32)


@pytest.fixture(scope="module")
def listed() -> tuple[Cluster, Plan]:
    """A Plan whose fragments list their kernels."""
    cluster, program = replace(resolve_cluster("h100-sxm:1"), devices_per_node=1), ZOO["mlp"](batch=8)
    return cluster, make_plan(program.graph(2), model="mlp", batch_size=8, cluster=cluster, options=PlanOptions(micro_batches=2))


def test_a_fragment_costs_the_sum_of_its_kernels_or_of_their_launches(listed: tuple[Cluster, Plan]) -> None:
    _, plan = listed
    for launch_s in (1e-9, 1e-2):
        table = replace(TABLE, launch_s=launch_s)
        cost = TableCost(table, AnalyticCost(plan.cluster))
        for task in plan.tasks:
            if isinstance(task.body, Fragment) and task.body.kernels:
                device_s = sum(work.times * table.work_s(work) for work in task.body.kernels)
                launches = sum(work.times for work in task.body.kernels)
                wanted = plan.cluster.device.act_overhead_s + max(device_s, launch_s * launches)
                assert cost.act_s(plan, task, 0) == pytest.approx(wanted)


def test_simulate_takes_a_kernel_table_for_prices(listed: tuple[Cluster, Plan], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_plan(listed[1], str(tmp_path / "p.json"))
    save_kernels(TABLE, str(tmp_path / "k.json"))
    assert main(["simulate", str(tmp_path / "p.json"), "--cost", str(tmp_path / "k.json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step_time_s"] > 0
    bare = make_plan(
        ZOO["mlp"](batch=8).graph(1), model="mlp", batch_size=8, cluster=resolve_cluster("local:1"), options=PlanOptions(micro_batches=1)
    )
    save_plan(bare, str(tmp_path / "b.json"))
    assert main(["simulate", str(tmp_path / "b.json"), "--cost", str(tmp_path / "k.json")]) == 2
    assert "lists no kernels" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--small"], "--small belong to --device"),
        (["--device", "tpu"], "device 'tpu' is not known"),
        (["--device", "cpu", "--cluster", "local:2"], "--cluster local:2 has no meaning beside --device"),
    ],
)
def test_options_without_meaning_are_refused(arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", *arguments, "-o", str(tmp_path / "c.toml")]) == 2
    assert says in capsys.readouterr().err and not list(tmp_path.iterdir())


def _few(size: Size) -> list[KernelCase]:
    return list(islice((case for case in cases(size) if case.source == "grid"), 3))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three products instead of all kernels."""
    from regista.device_times import programs

    monkeypatch.setattr(programs, "programs", lambda size: iter(()))
    monkeypatch.setattr(measuring, "cases", _few)


@pytest.mark.parametrize("name", ["cpu", "fake:0"])
def test_the_same_code_times_kernels_on_every_device(name: str, quick: None) -> None:
    table = calibrate_device(name, Size.SMALL)
    assert len(table.times) == 3 and all(0 < time.low_s <= time.seconds <= time.high_s for time in table.times)
    assert table.launch_s > 0 and {copy.to_device for copy in table.copies} == {True, False}
    assert table.about["device"] == name


def test_the_code_of_a_gpu_times_kernels_in_graphs_on_a_stub_of_torch_cuda(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    stub = CudaStub()
    stubbed(monkeypatch, stub)
    properties = SimpleNamespace(name="NVIDIA H100 80GB HBM3", total_memory=2**36, multi_processor_count=132, major=9, minor=0, uuid="7-7")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(measuring, "open_device", lambda name: stub_device())
    asked: list[Sequence[str]] = []
    monkeypatch.setattr(
        facts,
        "_printed",
        lambda command: (asked.append(command), "570.1, 1980 MHz, 2619 MHz, 1980 MHz, 700.00 W, 31, Enabled, Default, Disabled\n")[1],
    )
    real = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *shape, device=None, dtype=None: real(*shape, dtype=dtype))
    table = calibrate_device("cuda:0", Size.SMALL)
    assert stub.calls.count("capture") == len(table.times) + len(table.copies) and stub.calls.count("replay") > stub.calls.count("capture")
    assert (table.about["driver_version"], table.about["clocks_sm"], table.about["mig_mode_current"]) == ("570.1", "1980 MHz", "Disabled")
    assert asked[0][1] == "--id=GPU-7-7"
    assert cluster_of(table, devices=1, memory_bytes=2**36).device.kernels == "h100-sxm"


def test_facts_say_where_clocks_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda device: SimpleNamespace(name="x", total_memory=1, multi_processor_count=1, major=9, minor=0),
    )

    def missing(command: Sequence[str]) -> str:
        raise FileNotFoundError(command[0])

    device = SimpleNamespace(name="cuda:0")
    assert "nvidia-smi could not be asked (FileNotFoundError)" in facts.device_facts(device, missing)["clocks"]  # type: ignore[arg-type]
    assert "gave 1 fields" in facts.device_facts(device, lambda command: "odd\n")["clocks"]  # type: ignore[arg-type]
    with pytest.raises(subprocess.CalledProcessError):
        facts._printed(["false"])


def test_kernels_that_fail_or_come_too_late_are_left_out_and_said_once() -> None:
    device, (case, *_) = CpuDevice(), _few(Size.SMALL)
    wrong = replace(
        case, op=replace(case.op, args=(case.op.args[0], case.op.args[0])), types=case.types | {"a": replace(case.types["a"], shape=(3, 5))}
    )
    watch = Stopwatch(device, rounds=1, least_s=1e-6)
    with pytest.warns(LeftOut, match="1 that failed: aten.mm.default"):
        assert len(kernel_times(device, watch, [wrong, case], until=time.monotonic() + 60)) == 1
    with pytest.warns(LeftOut, match="2 kernels, as the time was over"):
        assert kernel_times(device, watch, [case, case], until=0.0) == []


def test_a_budget_that_lets_nothing_be_timed_is_refused(quick: None) -> None:
    with pytest.warns(LeftOut), pytest.raises(Unsupported, match="no kernel of cpu was timed in 0 s"):
        calibrate_device("cpu", Size.SMALL, budget_s=0)


def test_work_that_cannot_be_recorded_is_timed_as_it_is() -> None:
    from backend.devices.fake import FakeRuntime

    runtime = FakeRuntime(captures=False)
    watch = Stopwatch(FakeStreamDevice(runtime=runtime), rounds=1, least_s=1e-6)
    assert watch.times(lambda: None).seconds > 0 and watch.eager == 1
    runtime.close()


@pytest.mark.thorough
def test_every_kernel_of_the_small_programs_is_timed_on_a_cpu_and_the_verb_writes_both_files(tmp_path: Path) -> None:
    wanted = list(cases(Size.SMALL))
    assert {case.work.kind for case in wanted} == set(KernelKind)
    assert {"regista.adamw", "aten.convolution_backward.default", "aten.embedding_dense_backward.default"} & {c.op.target for c in wanted}
    assert main(["calibrate", "--device", "cpu", "--small", "-o", str(tmp_path / "c.toml")]) == 0
    table = load_kernels(str(tmp_path / "c.kernels.json"))
    assert [(t.target, t.work) for t in table.times] == [(c.op.target, c.work) for c in wanted]
    assert load_cluster(tmp_path / "c.toml").device.rate_flop_per_s == pytest.approx(table.rate_flop_per_s(DType.FLOAT32))
