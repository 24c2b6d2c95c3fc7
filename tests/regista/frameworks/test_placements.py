"""``regista export PLAN --to dtensor``: layouts as DTensor writes them, or a layout is refused by name."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

import regista
from planner.ir.errors import Unsupported
from planner.ir.files import save_plan
from planner.ir.plan import Plan
from planner.ir.sbp import NdSbp, Split
from regista.api import program_of
from regista.cli import main
from regista.frameworks import dtensor_rows

MLP = "zoo:mlp?batch=16&width=32&hidden=64"


@pytest.fixture(scope="module")
def plan() -> Plan:
    pins = ("input.0=S(0),B", "*.up.weight=B,S(0)", "*.down.weight=B,S(1)")
    return regista.plan(program_of(MLP), "local:4", model=MLP, mesh=(2, 2), pins=pins)


def test_each_tensor_of_the_plan_has_its_placement_per_axis(plan: Plan) -> None:
    rows = {row.name: row for row in dtensor_rows(plan)}
    assert rows["blocks.0.up.weight"].placements == ("Replicate()", "Shard(0)")
    assert rows["blocks.0.down.weight"].placements == ("Replicate()", "Shard(1)")
    assert rows["blocks.0.down.weight"].mesh == (2, 2)
    assert any("Partial(sum)" in row.placements for row in rows.values())
    assert {row.kind for row in rows.values()} >= {"parameter", "input", "value"}


@pytest.mark.parametrize("ending", [".csv", ".json", ".txt"])
def test_the_name_of_the_file_says_its_form(plan: Plan, ending: str, tmp_path: Path) -> None:
    save_plan(plan, str(tmp_path / "plan.json"))
    out = tmp_path / f"layouts{ending}"
    assert main(["export", str(tmp_path / "plan.json"), "--to", "dtensor", "-o", str(out)]) == 0
    text, count = out.read_text(), len(dtensor_rows(plan))
    if ending == ".csv":
        assert len(list(csv.reader(text.splitlines()))) == count + 1
    elif ending == ".json":
        assert len(json.loads(text)) == count
    else:
        assert len(text.splitlines()) == count


def _with_layout(plan: Plan, shape: tuple[int, ...], sbp: NdSbp) -> Plan:
    first = next(regst for regst in plan.regsts if regst.tensors)
    tensor = replace(first.tensors[0], shape=shape, sbp=sbp)
    regsts = tuple(replace(r, tensors=(tensor, *r.tensors[1:])) if r is first else r for r in plan.regsts)
    return replace(plan, regsts=regsts)


def test_a_layout_without_a_placement_is_refused_by_name(plan: Plan) -> None:
    with pytest.raises(Unsupported, match=r"S\(0\)\+1.*no parts that are moved"):
        dtensor_rows(_with_layout(plan, (16, 4), NdSbp((Split(0, 1), Split(1)))))
    line = regista.plan(program_of(MLP), "local:4", model=MLP, mesh=(4,))
    with pytest.raises(Unsupported, match=r"lies as S\(0\): DTensor cuts 10 into \[3, 3, 3, 1\]"):
        dtensor_rows(_with_layout(line, (10, 4), NdSbp((Split(0),))))


def test_a_refused_table_writes_nothing_and_exits_with_2(plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_plan(plan, str(tmp_path / "plan.json"))
    for out, extra in (("layouts.xls", []), ("layouts.csv", ["--model", MLP])):
        assert main(["export", str(tmp_path / "plan.json"), "--to", "dtensor", *extra, "-o", str(tmp_path / out)]) == 2
        assert len(capsys.readouterr().err.strip()) > 20
        assert not (tmp_path / out).exists()
