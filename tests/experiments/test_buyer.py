"""The cluster buyer's table: its units, its formulas, its check, and the whole at its small size."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from experiments import buyer
from planner.ir.graph import Role
from planner.opset import flop
from planner.parallelism.make import PlanOptions, make_plan
from regista.api import program_of
from regista.clusters import resolve_cluster

SMALL = "zoo:gpt?layers=2&width=64&heads=4&vocab=96&seq=16&batch=8"


@pytest.fixture(scope="module")
def smoked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("buyer")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buyer, "CSV", folder / "results/buyer.csv")
        patch.setattr(buyer, "PICTURE", folder / "figures/buyer.png")
        patch.setattr("sys.argv", ["buyer", "--smoke"])
        buyer.main()
    return folder


def test_the_small_table_holds_and_a_second_call_plans_nothing(smoked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = smoked / "results/buyer.csv"
    table = buyer.load(path)
    assert list(table.status) == ["ok", "ok"] and buyer.broken(table) == []
    assert (smoked / "figures/buyer.png").stat().st_size > 10_000
    for row in table.to_dict("records"):
        assert row["theory_bound_s"] <= min(row["theory_objective_s"], row["theory_second_s"])
        assert row["theory_least_other_s"] <= max(row["theory_objective_s"], row["theory_second_s"])
        assert row["sim_step_s"] <= row["sim_second_step_s"], "the quicker in the simulator is the best"
        assert 0 < row["sim_mfu"] < 1 and row["sim_peak_GB"] <= row["memory_GB"]
        one = tuple(row[name] for name in ("stages", "mesh", "micro_batches", "recompute"))
        assert one != tuple(row[f"second_{name}"] for name in ("stages", "mesh", "micro_batches", "recompute"))
    before = path.read_bytes()
    monkeypatch.setattr(buyer, "measure", lambda *_: pytest.fail("a known point is planned again"))
    buyer.compute(buyer.SMALL, path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(("gpu", "sold"), [("a100", 200), ("h100", 400)])
def test_a_nic_of_the_presets_rate_and_memory_is_the_preset(gpu: str, sold: int) -> None:
    preset, made = resolve_cluster(f"dgx-{gpu}:16"), buyer.Point(gpu=gpu, nic_Gbit_per_s=sold, memory_GB=80).cluster()
    assert (made.device, made.nic, made.node) == (preset.device, preset.nic, preset.node)
    half = buyer.Point(gpu=gpu, nic_Gbit_per_s=sold // 2, memory_GB=40).cluster()
    assert preset.nic is not None and half.nic is not None
    assert half.nic.bandwidth_bytes_per_s == pytest.approx(preset.nic.bandwidth_bytes_per_s / 2)
    assert half.device.memory_bytes == preset.device.memory_bytes // 2


def test_the_formulas_flop_are_those_of_the_matrix_products_of_the_traced_step() -> None:
    layers, width, vocab, sequences, tokens = 3, 128, 640, 4, 64
    graph = program_of(f"zoo:gpt?layers={layers}&width={width}&heads=4&vocab={vocab}&seq={tokens}&batch={sequences}").graph(1)
    traced = 0
    for op in graph.ops:
        if op.role in (Role.FORWARD, Role.BACKWARD) and op.target.split(".")[1] in ("mm", "matmul"):
            traced += flop(op, {v: graph.values[v] for v in (*op.inputs, *(o for o in op.outputs if o))})
    assert buyer.model_flop(layers, width, vocab, sequences, tokens) == pytest.approx(traced, rel=1e-9)


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_the_level_of_zero_is_the_one_that_was_asked_for(level: int) -> None:
    # Data parallelism by pins, so that nothing is split but by ZeRO.
    options = PlanOptions(mesh=(4,), micro_batches=2, zero=level, pins=("input.0=S(0)",))
    plan = make_plan(program_of(SMALL).graph(2), model="gpt", batch_size=8, cluster=resolve_cluster("local:4"), options=options)
    assert buyer.zero_level(plan)[0] == level


def row(gpu: str, nic: int, memory: int, objective_s: float, bound_s: float, status: str = "ok") -> dict[str, object]:
    return {
        "gpu": gpu,
        "nic_Gbit_per_s": nic,
        "memory_GB": memory,
        "model": "m",
        "status": status,
        "says": "",
        "theory_objective_s": objective_s,
        "theory_bound_s": bound_s,
    }


GOOD = (row("a100", 100, 40, 10.0, 9.0), row("a100", 200, 40, 10.4, 9.9), row("h100", 100, 40, 5.0, 4.9), row("a100", 100, 80, 8.0, 8.0))


@pytest.mark.parametrize(
    ("planted", "says"),
    [
        ((), ""),
        ((row("a100", 400, 40, 10.8, 10.6),), "takes at least 10.6 s"),
        ((row("a100", 200, 80, 8.3, 8.2),), "takes at least 8.2 s"),
        ((row("h100", 200, 40, 10.5, 4.0),), "takes 10.5 s"),
        ((row("a100", 400, 80, 0.0, 0.0, "OutOfMemory"),), "does not"),
    ],
)
def test_the_check_finds_a_configuration_that_is_worse_for_being_better(planted: tuple[dict[str, object], ...], says: str) -> None:
    contradictions = buyer.broken(pd.DataFrame([*GOOD, *planted]))
    assert bool(contradictions) == bool(planted)
    assert not planted or says in contradictions[0]


def test_a_model_that_does_not_fit_is_a_row_that_says_what_it_would_need() -> None:
    point = buyer.Point(gpu="a100", nic_Gbit_per_s=100, memory_GB=1, num_nodes=1, model="zoo:gpt3?size=6.7B&layers=8&batch=8&dtype=bf16")
    row = buyer.measure(point, program_of(point.model))
    assert row["status"] == "OutOfMemory" and "needs at least" in str(row["says"]) and "would fit on" in str(row["says"])
    assert "sim_step_s" not in row


def test_the_committed_rows_are_those_of_points_and_the_check_holds() -> None:
    table = buyer.load(buyer.CSV)
    assert set(table.point_id) == {point.point_id for point in buyer.points()}
    assert buyer.broken(table) == []
