"""regista quotas: the plan file is rewritten, stays verified, and the figures are those of the file."""

from __future__ import annotations

import json
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from handmade import pipeline

import regista
from planner.cost import AnalyticCost
from planner.ir.actors.verify import device_bytes
from planner.ir.errors import Unsupported
from planner.ir.files import load_plan, save_plan
from planner.ir.plan import RegstKind
from planner.ir.units import GIB, MIB
from planner.parallelism.asked_quotas import with_quotas_asked
from planner.parallelism.make import make_plan
from regista.analysis.planned import options_of
from regista.api import program_of
from regista.cli import main
from regista.verbs.planning.quotas import parse_bytes
from simulator.quotas.plans import register_bytes
from simulator.steady import steady_state


@pytest.fixture
def plan_file(tmp_path: Path) -> str:
    path = str(tmp_path / "plan.json")
    save_plan(pipeline(micro_batches=4, quota=4), path)
    return path


def test_full_throughput_writes_a_verified_plan_whose_bytes_and_period_are_those_reported(
    plan_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = str(tmp_path / "plan2.json")
    assert main(["quotas", plan_file, "--full-throughput", "--out", target, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    written = load_plan(target)
    assert document["plan_id"] == written.plan_id and document["out"] == target
    assert document["after"]["register_bytes"] == register_bytes(written)
    assert document["after"]["step_time_s"] == pytest.approx(steady_state(written, AnalyticCost(written.cluster)).period_s, rel=1e-9)
    assert document["after"]["step_time_s"] <= document["before"]["step_time_s"] * (1 + 1e-6)
    assert document["certified"] is True and document["certificate"].startswith("certified")
    assert document["quotas"] == {r.id: r.quota for r in written.regsts if r.quota != load_plan(plan_file).regst[r.id].quota}


def test_planning_again_from_the_options_of_a_rewritten_plan_gives_its_quotas(tmp_path: Path) -> None:
    first, second = str(tmp_path / "plan.json"), str(tmp_path / "plan2.json")
    program = program_of("zoo:mlp?depth=4&width=32&hidden=32&batch=16")
    asked = regista.plan(program, "dgx-a100:1", stages=2, mesh=(4,), micro_batches=8, quotas={"*": 3})
    save_plan(asked, first)
    assert main(["quotas", first, "--full-throughput", "--out", second]) == 0
    written = load_plan(second)
    data = [r.id for r in written.regsts if r.kind is RegstKind.DATA]
    assert any(written.regst[name].quota != asked.regst[name].quota for name in data)
    again = make_plan(program.graph(8), model=asked.model, batch_size=asked.batch_size, cluster=asked.cluster, options=options_of(written))
    assert {name: again.regst[name].quota for name in data} == {name: written.regst[name].quota for name in data}


def test_recorded_wishes_name_one_regst_each_and_stand_once(plan_file: str) -> None:
    before = load_plan(plan_file)
    odd, other, *_ = [r.id for r in before.regsts if r.kind is RegstKind.DATA]
    named = replace(
        before,
        options={**before.options, "quotas": "*=4"},
        regsts=tuple(replace(r, id="x[1]*") if r.id == odd else r for r in before.regsts),
    )
    once = with_quotas_asked(named.with_quotas({"x[1]*": 2, other: 3}), named)
    twice = with_quotas_asked(once.with_quotas({"x[1]*": 5}), once)
    wishes = [entry.rpartition("=") for entry in twice.options["quotas"].split(";")]
    assert [(pattern, blocks) for pattern, _, blocks in wishes] == [("*", "4"), (other, "3"), (wishes[-1][0], "5")]
    assert fnmatchcase("x[1]*", wishes[-1][0]) and not fnmatchcase("x1", wishes[-1][0]) and not fnmatchcase("x[1]y", wishes[-1][0])


def test_budget_is_kept_by_the_plan_that_is_written(plan_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = str(tmp_path / "plan2.json")
    budget = max(device_bytes(load_plan(plan_file)).values()) - 100
    assert main(["quotas", plan_file, "--budget", str(budget), "-o", target]) == 0
    assert "certified" in capsys.readouterr().out
    assert max(device_bytes(load_plan(target)).values()) <= budget


def test_budget_that_nothing_fits_is_refused(plan_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quotas", plan_file, "--budget", "10B"]) == 2
    assert "with the fewest blocks" in capsys.readouterr().err


def test_pareto_points_fall_in_bytes_and_grow_in_time(plan_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quotas", plan_file, "--pareto", "--seconds", "5", "--json"]) == 0
    points = [point["after"] for point in json.loads(capsys.readouterr().out)["points"]]
    assert len(points) >= 2
    for fast, slow in zip(points, points[1:], strict=False):
        assert fast["step_time_s"] < slow["step_time_s"] and fast["register_bytes"] > slow["register_bytes"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pareto", "-o", "x.json"], "no one to write"),
        (["--budget", "8 cows"], "no number of bytes"),
        (["--full-throughput", "--out", "SAME"], "the same command reads or writes that file"),
        (["--full-throughput", "--pareto"], "not allowed with"),
        ([], "one of the arguments"),
    ],
)
def test_wishes_that_make_no_sense_are_refused(
    plan_file: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quotas", plan_file, *(plan_file if a == "SAME" else a for a in arguments)]) == 2
    assert message in capsys.readouterr().err


def test_sizes_are_read_in_binary_and_decimal_units() -> None:
    assert [parse_bytes(t) for t in ("8GiB", "1.5 MiB", "2kb", "77")] == [8 * GIB, 3 * MIB // 2, 2000, 77]


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1e9", "0", "8 XB", "999999999999999999GiB"])
def test_sizes_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(Unsupported, match="no number of bytes"):
        parse_bytes(text)
