"""The three examples at their small size: the plan's training is the one of plain PyTorch."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import examples.__main__ as main

ROOT = Path(__file__).parents[2]


@pytest.mark.processes
@pytest.mark.parametrize("name", [example.name for example in main.EXAMPLES])
def test_an_example_trains_as_plain_pytorch_on_one_device(name: str, tmp_path: Path) -> None:
    committed = {path: path.read_bytes() for path in (ROOT / "examples").rglob("*.csv")}
    assert main.main([name, "--smoke", "--out", str(tmp_path)]) == 0
    (row,) = csv.DictReader((tmp_path / "results/examples.csv").open())
    assert float(row["apart"]) < 1e-4
    assert float(row["loss"]) == pytest.approx(float(row["one_device_loss"]), rel=1e-4)
    assert (tmp_path / f"pictures/{name}.png").stat().st_size > 1000
    assert {path: path.read_bytes() for path in (ROOT / "examples").rglob("*.csv")} == committed


def test_a_small_size_is_not_written_over_committed_rows(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main.main(["--smoke"])
    assert "give --out DIR" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main.main(["other", "--out", "x"])


@pytest.mark.parametrize("example", main.EXAMPLES, ids=lambda example: example.name)
def test_the_committed_trainings_end_with_the_quality_of_one_device(example: main.Example) -> None:
    (row,) = (row for row in csv.DictReader(main.SUMMARY.open()) if row["example"] == example.name)
    # Batch norm and large steps amplify rounding: plain PyTorch with other last bits is the measure.
    assert float(row["first_steps_apart"]) < max(1e-4, 10 * float(row["nudged_first_steps_apart"]))
    assert abs(float(row["accuracy"]) - float(row["one_device_accuracy"])) < 0.02
    table = list(csv.DictReader((ROOT / f"examples/results/{example.name}.csv").open()))
    assert len(table) == int(row["steps"]) and table[-1]["eval_accuracy"] == row["accuracy"]
