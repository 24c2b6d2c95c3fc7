"""How large a worker's process is, from acts that were performed one by one."""

from __future__ import annotations

import json
import mmap
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matrix import plan_for

import regista
from backend.comm.collectives import scratch_bytes
from backend.worker.registers import RUNTIME_BYTES, resident_bytes
from planner.cost import AnalyticCost, Beside, MeasuredCost, load_cost, save_cost
from regista.api import program_of
from regista.calibrate import beside_of, calibrate_plan
from regista.clusters import resolve_cluster
from regista.sweep.manifest import parse_manifest
from regista.sweep.measure import kept_bytes, perform, predict

MIB = 1 << 20
BYTES = st.integers(0, 1 << 33)


def cost_with(beside: dict[str, Beside]) -> MeasuredCost:
    return MeasuredCost(plan_id="p", acts={}, message_latency_s=0.0, act_overhead_s=0.0, beside=beside)


@given(st.fixed_dictionaries(dict.fromkeys(("base_bytes", "device_bytes", "mapped_bytes", "scratch_bytes", "batches_bytes"), BYTES)), BYTES)
def test_what_is_kept_and_what_is_planned_make_up_the_peak_of_isolated_acts(memory: dict[str, int], peak_bytes: int) -> None:
    beside = beside_of(memory | {"isolated_peak_bytes": peak_bytes}, 1)
    assert beside.kept_bytes + beside.batch_bytes + sum(memory.values()) - memory["batches_bytes"] == peak_bytes


def test_a_run_of_twice_the_steps_maps_twice_the_batches_and_keeps_the_same() -> None:
    plan = plan_for("mlp", "data2")
    cost = cost_with({"0": Beside(kept_bytes=30 * MIB, batch_bytes=MIB), "1": Beside(kept_bytes=20 * MIB, batch_bytes=0)})
    assert kept_bytes(plan, cost, 10) == {0: 40 * MIB, 1: 20 * MIB}
    assert kept_bytes(plan, cost, 20) == {0: 50 * MIB, 1: 20 * MIB}


def test_what_was_not_measured_counts_as_the_stated_constant() -> None:
    plan = plan_for("mlp", "data2")
    assert kept_bytes(plan, AnalyticCost(plan.cluster), 10) == {0: RUNTIME_BYTES, 1: RUNTIME_BYTES}
    assert kept_bytes(plan, cost_with({"1": Beside(kept_bytes=5, batch_bytes=0)}), 10) == {0: RUNTIME_BYTES, 1: 5}


def test_memory_reads_back_as_it_was_written_and_is_part_of_the_tables_id(tmp_path: Path) -> None:
    cost = cost_with({"0": Beside(kept_bytes=-3, batch_bytes=7)})
    save_cost(cost, str(tmp_path / "cost.json"))
    assert load_cost(str(tmp_path / "cost.json")) == cost
    assert cost.id != replace(cost, beside={}).id


def test_a_table_that_says_nothing_of_memory_is_read_as_one_that_did_not_measure_it(tmp_path: Path) -> None:
    path, cost = tmp_path / "cost.json", cost_with({})
    save_cost(cost, str(path))
    data = json.loads(path.read_text())
    del data["cost"]["beside"]
    path.write_text(json.dumps(data))
    assert load_cost(str(path)) == cost


def test_resident_bytes_of_a_file_are_those_of_its_pages_that_were_touched(tmp_path: Path) -> None:
    size_bytes = 64 * mmap.PAGESIZE
    file = tmp_path / "batches.pt"
    file.write_bytes(bytes(size_bytes))
    assert resident_bytes("batches.pt") == 0
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), size_bytes) as mapped:
        assert sum(mapped[:: mmap.PAGESIZE]) == 0
        if not Path("/proc/self/smaps").exists():
            pytest.skip("this kernel does not tell what is resident")
        assert resident_bytes("batches.pt") == size_bytes
        assert resident_bytes("tches.pt") == 0
    assert resident_bytes("batches.pt") == 0


@pytest.mark.processes
def test_the_error_of_a_process_is_what_was_predicted_of_it_over_its_peak() -> None:
    model = {"name": "zoo:mlp", "batch": 8, "width": 16, "hidden": 16, "depth": 2}
    data = {"claim": "c", "source": "s", "performer": "run", "cluster": {"name": "local:2"}, "run": {"steps": 3, "rounds": 2, "runs": 1}}
    (point,) = parse_manifest(data | {"model": model, "plan": {"stages": 2, "mesh": "1", "micro_batches": 2}}, "m", Path()).points
    prediction = predict(point)
    assert not isinstance(prediction, dict), prediction
    known = perform(point, prediction)
    if "run_process_peak_bytes" not in known:
        pytest.skip("this kernel does not tell a process's peak")
    names = ("run_process_base_bytes", "theory_process_bytes", "run_isolated_kept_bytes", "run_process_peak_bytes")
    base, planned, kept, peak = (float(str(known[name])) for name in names)
    assert known["error_process_peak_share"] == pytest.approx((base + planned + kept) / peak - 1, abs=1e-12)
    assert kept in kept_bytes(prediction.plan, prediction.cost, 3).values() and kept != RUNTIME_BYTES


@pytest.mark.thorough
@pytest.mark.processes
@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("zoo:convnet?batch=512", {"mesh": (2,)}),
        ("zoo:resnet50?layers=26&image=64&classes=100&batch=8&statistics=2", {"stages": 2, "mesh": (1,), "micro_batches": 2}),
    ],
    ids=["convnet", "resnet pipeline"],
)
def test_a_process_with_convolutions_is_within_5_percent_of_what_isolated_acts_say(model: str, options: dict[str, object]) -> None:
    """With a constant for what kernels take, these were 6 to 9 % larger than predicted: code pages of the convolutions, layouts of their own, and
    20 batches of a mapped file [measured 2026-11-21].  Means of two calibrations and two runs: one of either differs by up to 3 %, as the heap's holes
    lie otherwise each time [measured 2026-11-28]."""
    source, steps = program_of(model), 12
    plan = regista.plan(source, resolve_cluster("local:2"), zero=0, recompute=False, **options)  # type: ignore[arg-type]
    kept = [kept_bytes(plan, calibrate_plan(plan, source, rounds=4), steps) for _ in range(2)]
    runs = [regista.run(plan, source, steps=steps, timeout_s=120.0).memory for _ in range(2)]
    for rank in range(2):
        memory = {
            name: fmean(run[rank][name] for run in runs) for name in ("base_bytes", "mapped_bytes", "device_bytes", "process_peak_bytes")
        }
        peak_bytes = memory.pop("process_peak_bytes")
        if not peak_bytes:
            pytest.skip("this kernel does not tell a process's peak")
        predicted = sum(memory.values()) + scratch_bytes(plan, rank) + fmean(one[rank] for one in kept)
        assert predicted == pytest.approx(peak_bytes, rel=0.05)
