"""The corpus' harness, on models that need none of its libraries: rows, counts, the picture, and what is measured again."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from experiments.corpus import __main__ as corpus
from experiments.corpus.case import BATCH, Case, Trained
from experiments.corpus.figure import commits, draw, summary
from experiments.corpus.models import CASES
from experiments.corpus.perform import Row, outcomes
from experiments.corpus.same_model import DEFAULT
from experiments.corpus.same_model import RESULT as SAME_MODEL
from planner.ir.errors import RegistaError


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.h = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Dropout(0.1)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.h:
            x = block(x).relu()
        return x.square().mean()


class ByValue(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x[x[:, 0] > 0]).square().mean()


def _case(name: str, module: type[nn.Module], *sizes: int, tensor: tuple[str, ...] = ()) -> Case:
    return Case(library="torch", name=name, make=lambda: Trained(module(*sizes), torch.randn(BATCH, 8)), tensor=tensor)


BLOCKS = _case("blocks", Blocks, tensor=("h.*.0.weight=S(0)", "h.*.2.weight=S(1)"))


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return [row for case in (BLOCKS, _case("by value", ByValue, 8, 8), _case("absent", nn.Conv2d)) for row in outcomes(case)]


def test_a_model_of_a_family_goes_six_ways_and_any_other_three(rows: list[Row]) -> None:
    of = {name: {row.way: row.status for row in rows if row.model == name} for name in ("blocks", "by value", "absent")}
    assert of["blocks"] == dict.fromkeys(("searched", "data", "pipeline", "tensor", "zero", "recompute"), "equal")
    assert of["by value"] == dict.fromkeys(("searched", "data", "pipeline"), "refused by value")
    assert set(of["absent"].values()) == {"unusable"}


def test_another_gradient_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    from experiments.corpus import perform

    trained = perform.train_eagerly

    def other(program: object, micro_batches: int) -> object:
        eager = trained(program, micro_batches)
        name = next(iter(eager.gradients))
        return perform.Eager(losses=eager.losses, gradients={**eager.gradients, name: eager.gradients[name] * 1.001}, states=eager.states)

    monkeypatch.setattr(perform, "train_eagerly", other)
    (row,) = outcomes(BLOCKS, ["data"])
    assert row.status == "wrong" and 5e-4 < row.gradient_error < 2e-3 and row.where == "h.0.0.weight"


def test_the_summary_counts_what_no_value_decides_and_the_picture_shows_every_row(rows: list[Row], tmp_path: Path) -> None:
    table = pd.DataFrame([asdict(row) for row in rows])
    assert summary(table) == (
        "2 models, 9 plans asked for: planned and performed 6, equal 6 (0 of them in float64), wrong 0, refused by value 3, refused 0, "
        "traceback 0, timeout 0; of the models in which no value decides, 1 of 1 (100.0%) are equal in every way"
    )
    draw(table, tmp_path / "corpus.png")
    assert (tmp_path / "corpus.png").stat().st_size > 0


def test_rows_say_which_commit_gave_them(rows: list[Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "CSV", tmp_path / "corpus.csv")
    monkeypatch.setattr(corpus, "versions", dict)
    for commit, told in (("12e4567", rows[:2]), ("abcdef0+", rows[2:])):
        corpus._write([asdict(row) for row in told], {"commit": commit})
    assert commits(corpus._read()) == f"abcdef0+ {len(rows) - 2}, 12e4567 2"
    assert commits(corpus._read().drop(columns="commit")) == f"unknown {len(rows)}"


def test_rows_that_are_there_are_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "CSV", tmp_path / "corpus.csv")
    kept = [Row(library="torch", model="blocks", way=way, status=status) for way, status in (("data", "equal"), ("zero", "refused"))]
    pd.DataFrame([asdict(row) for row in kept]).to_csv(corpus.CSV, index=False)
    assert corpus.missing([BLOCKS], (), "threads", ()) == {"torch/blocks": ["searched", "pipeline", "tensor", "recompute"]}
    assert corpus.missing([BLOCKS], ("data", "zero"), "threads", ("refused",)) == {"torch/blocks": ["zero"]}
    assert corpus.missing([BLOCKS], ("data",), "threads", ("all",)) == {"torch/blocks": ["data"]}


def test_every_case_has_a_name_of_its_own_and_twelve_stand_for_a_family() -> None:
    assert len({case.key for case in CASES}) == len(CASES) >= 150
    assert sum(bool(case.tensor) for case in CASES) == 12


def test_an_error_of_ours_is_a_refusal_and_any_other_a_traceback() -> None:
    def raising(error: Exception) -> Case:
        class Raises(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                raise error

        return _case("raises", Raises, 8, 8)

    (row,) = outcomes(raising(RegistaError("no")), ["data"])
    assert (row.status, row.error) == ("refused", "RegistaError")
    (row,) = outcomes(raising(KeyError("k")), ["data"])
    assert row.status == "unusable"  # on one device, too


def test_libraries_agree_on_a_model_in_float32_and_no_device_is_used_above_three_quarters() -> None:
    """Of the committed rows; the story: the same ViT-B/16 used a device by 51 % in one library and by 98.6 % in another."""
    rows = pd.read_csv(SAME_MODEL)
    alike = rows[(rows["library"] != DEFAULT) & (rows["precision"] == "fp32")].groupby(["model", "device"])["sim_step_s"]
    assert alike.count().ge(2).all()
    assert (alike.max() / alike.min()).max() <= 1.03
    assert rows["sim_utilisation"].max() <= 0.75
