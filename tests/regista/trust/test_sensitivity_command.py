"""``regista sensitivity`` and ``regista plan --robust``: what they say of a small plan, and what they refuse."""

from __future__ import annotations

import csv
import tomllib
from pathlib import Path

import pytest
from command_line import CLUSTER, TINY, Command, commands

from planner.cost import AnalyticCost
from planner.ir.cluster import cluster_toml
from planner.ir.files import load_plan
from regista.trust.constants import constants_of, with_constants
from simulator.analysis.forecast import forecast
from tests.regista.refusals.refusal import assert_refused


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return commands(capsys)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from regista.cli import main

    folder = tmp_path_factory.mktemp("plan")
    (folder / "c.toml").write_text(CLUSTER)
    assert main(["plan", TINY, "--cluster", str(folder / "c.toml"), "--mesh", "2", "-o", str(folder / "p.json"), "--json"]) == 0
    return folder


def test_every_constant_is_simulated_at_both_ends_and_the_largest_swing_is_first(command: Command, home: Path, tmp_path: Path) -> None:
    ran = command(*("sensitivity", home / "p.json", "--spread", "20%", "-o", tmp_path / "s.csv", "--picture", tmp_path / "s.png", "--json"))
    assert ran.code == 0, ran.err
    plan, effects = load_plan(str(home / "p.json")), ran.json["effects"]
    assert {effect["constant"] for effect in effects} == {c.key for c in constants_of(plan.cluster)}
    swings = [effect["swing"] for effect in effects]
    assert swings == sorted(swings, reverse=True) and swings[0] > 0
    first = effects[0]
    slow = with_constants(plan.cluster, {first["constant"]: first["low"]})
    assert first["sim_low_s"] == pytest.approx(forecast(plan, AnalyticCost(slow), steps=4).step_s)
    with (tmp_path / "s.csv").open(newline="") as file:
        assert [row["constant"] for row in csv.DictReader(file)] == [effect["constant"] for effect in effects]
    assert (tmp_path / "s.png").stat().st_size > 5_000


@pytest.mark.thorough
def test_a_new_search_is_held_against_the_plan(command: Command, home: Path) -> None:
    ran = command("sensitivity", home / "p.json", "--spread", "10%", "--replan", "--json")
    assert ran.code == 0, ran.err
    choices = [choice for effect in ran.json["effects"] for choice in effect["choices"]]
    assert len(choices) == 2 * len(ran.json["effects"])
    assert all(choice["why_not"] or choice["same"] or choice["gained"] is None or choice["gained"] >= 0 for choice in choices)


def test_a_robust_plan_is_optimal_at_the_pessimistic_prices_and_says_so(command: Command, home: Path, tmp_path: Path) -> None:
    asked = ("plan", TINY, "--cluster", home / "c.toml", "--mesh", "2", "--robust", "--spread", "links.node.bandwidth_GBps=4")
    ran = command(*asked, "-o", tmp_path / "r.json")
    assert ran.code == 0, ran.err
    shown = " ".join(ran.out.split())
    assert "(theory, at the pessimistic prices)" in shown and "every constant at the bad end of its spread" in shown
    plan, robust = load_plan(str(home / "p.json")), load_plan(str(tmp_path / "r.json"))
    assert robust.cluster == plan.cluster
    assert robust.search.objective_s > plan.search.objective_s
    assert "links.node.bandwidth_GBps=4" in robust.options["robust"]
    assert robust.search.cost_model != plan.search.cost_model
    explained = command("explain", tmp_path / "r.json", "--json")
    assert explained.code == 0, explained.err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--spread", "x"], "spread 'x': write KEY=SHARE"),
        (["--spread", "device.compute_GFLOPs=0"], "a share above 0"),
        (
            ["--spread", "device.nope=0.1"],
            "has no such constant; its constants are device.act_overhead_us|its constants are device.compute",
        ),
        (["--cluster", "dgx-h100"], "is for 2 devices, cluster dgx-h100 has 8; give one of as many"),
        (["--picture", "t.txt"], "a picture is a .png or .svg file"),
        (["--cluster", "nowhere"], "no preset has that name"),
        (["-o", "none/s.csv"], "none"),
    ],
)
def test_what_cannot_be_answered_is_refused(command: Command, home: Path, tmp_path: Path, options: list[str], says: str) -> None:
    assert_refused(command, tmp_path, "sensitivity", home / "p.json", *options, says=says)


def test_spreads_belong_to_robust_plans(command: Command, home: Path, tmp_path: Path) -> None:
    asked = ("plan", TINY, "--cluster", home / "c.toml", "-o", tmp_path / "p.json")
    assert_refused(command, tmp_path, *asked, "--spread", "20%", says="belongs to --robust")
    assert_refused(command, tmp_path, *asked, "--robust", "--spread", "nic=20%", says="has no such constant")


@pytest.mark.thorough
def test_whatif_prices_a_robust_plan_as_its_search_did(command: Command, home: Path, tmp_path: Path) -> None:
    asked = ("plan", TINY, "--cluster", home / "c.toml", "--mesh", "2", "--robust", "-o", tmp_path / "r.json")
    assert command(*asked).code == 0
    ran = command(
        "whatif", tmp_path / "r.json", "--set", f"cluster.device.memory_GB={tomllib.loads(CLUSTER)['device']['memory_GB'] * 2}", "--json"
    )
    assert ran.code == 0, ran.err
    assert ran.json["objective_s"] == pytest.approx(load_plan(str(tmp_path / "r.json")).search.objective_s)
    assert "interval" in ran.json
    assert cluster_toml(load_plan(str(tmp_path / "r.json")).cluster)
