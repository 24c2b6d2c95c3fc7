"""DLPerf's GPT in the default engine: constants are found from the rows that they are fitted to, and the committed rows hold what is said of them."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest

import experiments
import regista
from experiments.common.bisection import where_reached
from experiments.network import contention_engine
from experiments.network.contention_engine import Constants, step_s
from planner.cost import AnalyticCost
from planner.ir.plan import Fragment
from simulator import simulate

CSV = Path(experiments.__path__[0]) / "results/contention_engine.csv"


@pytest.mark.parametrize("wanted", [0.5, 3.0, 700.0])
def test_a_growing_function_is_inverted(wanted: float) -> None:
    assert where_reached(lambda x: x**3, wanted, 1e-6, 1e6) == pytest.approx(math.cbrt(wanted), rel=1e-9)


def test_a_value_out_of_reach_gives_the_nearer_end() -> None:
    assert where_reached(lambda x: x, 10.0, 1.0, 2.0) == pytest.approx(2.0)
    assert where_reached(lambda x: x, 0.1, 1.0, 2.0) == pytest.approx(1.0)


def test_slower_kernels_make_acts_that_compute_as_much_slower_and_no_others() -> None:
    plan = regista.plan("zoo:mlp?batch=4&width=8&hidden=8&depth=2", "local:1", stages=1, micro_batches=1)
    cost = AnalyticCost(plan.cluster)
    computing_s = sum(cost.act_s(plan, task, 0) for task in plan.tasks if isinstance(task.body, Fragment))
    own_s = simulate(plan, cost, steps=1).step_ends_s(plan)[0]
    assert 0 < computing_s <= own_s == step_s(plan, Constants())
    assert step_s(plan, Constants(kernels=3.0)) - own_s == pytest.approx(2 * computing_s)


def test_the_small_size_fits_its_three_rows_and_predicts_the_fourth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contention_engine, "CSV", tmp_path / "rows.csv")
    contention_engine.measure((contention_engine.System.ONEFLOW,), contention_engine.SMALL)
    rows = pd.read_csv(tmp_path / "rows.csv").set_index("role")
    assert set(rows.index) == {*contention_engine.ROLES.values(), "predicted"}
    assert (rows.drop("predicted").error.abs() < 1e-3).all()
    committed = pd.read_csv(CSV)
    same = committed[(committed.system == "oneflow") & (committed.case == rows.loc["predicted", "case"])]
    assert rows.loc["predicted", "sim_step_s"] == pytest.approx(float(same.sim_step_s.iloc[0]), rel=1e-3)


def test_rows_whose_rings_share_each_nodes_nic_are_within_ten_percent() -> None:
    table = pd.read_csv(CSV)
    shared = table[table.shared]
    assert sorted(shared.case.unique()) == ["2D_2x8x1_16_2304x24", "2D_4x8x1_32_2304x24"] and len(shared) == 4
    assert (shared.role == "predicted").all() and shared.error.abs().max() < 0.1
