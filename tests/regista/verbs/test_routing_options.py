"""``--routing`` of the command line: a plan that is priced under it, played under it, and what does not go together."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Command, commands
from mixtures import load_of, plan_under

from planner.ir.files import load_trace, save_plan
from tests.regista.refusals.refusal import assert_refused

TINY = "zoo:moe?layers=2&width=16&heads=2&experts=4&hidden=32&vocab=32&batch=4&seq=8"


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return commands(capsys)


def test_a_plan_made_under_a_routing_says_so_and_is_played_under_another(command: Command, tmp_path: Path) -> None:
    made = command(
        "plan", TINY, "--cluster", "local:2", "--routing", "zipf:1.2", "--routing-quantile", 0.8, "-o", tmp_path / "plan.json", "--full"
    )
    assert made.code == 0, made.err
    assert "at quantile 0.8 of the busiest rank's load under routing zipf:1.2, top 2, dropless" in " ".join(made.out.split())
    save_plan(plan_under("uniform", ("h.1.mlp.w_*=S(0)",)), str(tmp_path / "apart.json"))
    given = ("simulate", tmp_path / "apart.json", "--routing", "zipf:1", "--capacity-factor", 1.5, "--runs", 10, "--steps", 2)
    played = command(*given, "--json", "-o", tmp_path / "trace.json").json["routed"]
    assert (
        played["kind"] == "sim"
        and played["median_s"] <= played["quantile_s"] <= max(played["step_s"])
        and 0 < played["dropped_share"] < 0.5
    )
    assert "of the tokens' choices dropped" in " ".join(command(*given).out.split())
    _, trace = load_trace(str(tmp_path / "trace.json"))
    assert trace.about["load"] == f"{load_of('zipf:1', capacity_factor=1.5)}, seed 0, run 0"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--top-k", 2), "--top-k without --routing; add it"),
        (("--routing", "zipf:-1"), "exponent -1; it is between 0"),
        (("--routing", "uniform", "--noise", 0.1), "--noise 0.1 with --routing uniform"),
        (("--routing", "uniform", "--runs", 2), "2 runs say nothing"),
        (("--routing", "histogram:1,2,3"), "histogram of 3 experts for a layer of 8"),
        (("--routing", "uniform", "--top-k", 9), "top 9 of 8 experts"),
        (("--seed", 1), "--runs and --seed belong to --noise"),
    ],
)
def test_a_routing_that_does_not_fit_is_refused(command: Command, tmp_path: Path, options: tuple[object, ...], says: str) -> None:
    save_plan(plan_under("uniform"), str(tmp_path / "plan.json"))
    assert_refused(command, tmp_path, "simulate", tmp_path / "plan.json", *options, "-o", tmp_path / "trace.json", says=says)


def test_plans_made_without_a_routing_are_not_played_under_one(command: Command, tmp_path: Path) -> None:
    save_plan(plan_under(None), str(tmp_path / "plan.json"))
    assert_refused(command, tmp_path, "simulate", tmp_path / "plan.json", "--routing", "uniform", says="was made without a routing")
