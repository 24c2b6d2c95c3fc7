"""DLPerf's rows of Wide & Deep: which are fitted to, the layout of OneFlow's script, and that the fit finds a constant that is there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from experiments.fidelity.dlperf import predicted_s
from experiments.oneflow.wide_deep import RESULT, Run, draw, fit_latency_us, runs

SMALL = Run(gpus=8, batch=64, vocab=1020, embedding=16, layers=1, paper_s=1.0)


def test_the_constant_is_fitted_to_the_four_rows_with_the_least_work_for_eight_devices() -> None:
    every = list(runs())
    assert len(every) == 45
    assert [(run.gpus, run.layers, run.batch) for run in every if run.fitted] == [(8, 2, batch) for batch in (512, 1024, 2048, 4096)]


def test_the_deep_table_is_split_by_columns_and_its_rows_change_hands_twice() -> None:
    plan = replace(SMALL, batch=4096, layers=2).plan(81.0)
    tables = {tensor.name: (tensor.shape, str(tensor.sbp)) for regst in plan.regsts for tensor in regst.tensors if "weight" in tensor.name}
    assert tables["parameter:wide.weight"] == ((1024, 1), "S(0)"), "1,020 rows are 1,024 here"
    assert tables["parameter:deep.weight"] == ((1024, 16), "S(1)")
    assert [task.id for task in plan.tasks if "all_to_all" in task.id] == ["s0.all_to_all.fwd.0", "s0.all_to_all.grad.0"]


def test_a_collective_takes_the_constant_beside_its_bytes() -> None:
    short, long = (predicted_s(SMALL.plan(latency_us)) for latency_us in (100.0, 600.0))
    assert (long - short) / 500e-6 == pytest.approx(round((long - short) / 500e-6), abs=0.02), "a whole number of collectives in a row"
    assert long - short >= 3 * 500e-6


def test_the_fit_finds_a_constant_that_is_there() -> None:
    made = [
        replace(SMALL, layers=2, batch=batch, paper_s=predicted_s(replace(SMALL, layers=2, batch=batch).plan(333.0))) for batch in (64, 128)
    ]
    assert fit_latency_us(made) == pytest.approx(333.0, rel=0.01)


def test_the_committed_rows_are_the_tables_and_those_that_no_fit_saw_are_within_15_percent_in_the_mean(tmp_path: Path) -> None:
    rows = pd.read_csv(RESULT)
    assert rows["paper_s"].tolist() == pytest.approx([run.paper_s for run in runs()], rel=1e-4)
    assert rows["error"].tolist() == pytest.approx((rows["sim_s"] / rows["paper_s"] - 1).tolist(), abs=1e-4)
    assert rows.loc[rows["fitted"] == 0, "error"].abs().mean() <= 0.15
    draw(rows).savefig(tmp_path / "wide_deep.png")


def test_a_committed_row_is_what_is_predicted_today() -> None:
    rows = pd.read_csv(RESULT)
    number = next(n for n, run in enumerate(runs()) if (run.gpus, run.layers, run.batch) == (8, 7, 16384))
    row = rows.iloc[number]
    assert predicted_s(list(runs())[number].plan(row["latency_us"])) == pytest.approx(row["sim_s"], rel=1e-3)
