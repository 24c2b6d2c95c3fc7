"""Claims: records with figures that are computed from rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.ir.errors import InvalidFile
from regista.report import load_claims
from tests.regista.report.report_cases import CLAIMS


def test_a_record_is_a_claim_with_its_figures_computed_from_rows(folder: Path):
    claims = load_claims(folder / "claims.toml")
    first, second = claims.records
    assert (first.section, first.what, second.what) == ("Pipelines", "a second block <helps>", "another")
    assert list(first.fields) == ["claim", "command", "status"]
    assert first.fields["status"].endswith(": 50.0 % more")
    assert (first.pictures, first.tables) == ((folder / "figures/f.png",), (folder / "results/r.csv",))
    assert (second.pictures, second.fields["command"]) == ((), "`python -m experiments.x`")
    assert claims.paragraphs == {"said": "1.5 s"}


def test_a_figure_of_several_points_is_their_values_in_order(folder: Path):
    (folder / "results/r.csv").write_text("model,sim_step_s,run_step_s\na,1.5,1.0\nb,2,4\n")
    first, _ = load_claims(folder / "claims.toml").records
    assert first.fields["status"].endswith(": 50.0 %, -50.0 % more")


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("figures/f.png", "figures/g.png", r"links to .*g\.png, which is not there"),
        ("{r: sim", "{q: sim", r"a figure is asked of .*q\.csv"),
        ("sim_step_s /", "sim_stop_s /", "did you mean sim_step_s"),
        ("model == 'a'", "model == 'b'", "no point has model == b"),
        ('module = "x"', 'modul = "x"', "did you mean module"),
        ('module = "x"', "", "give it a claim, and a manifest, a module or a command"),
        ("[[table]]", "[[table]", "not a readable TOML file"),
        ("| .1f}", "| .q}", "cannot be written as '.q'"),
    ],
)
def test_claims_that_cannot_be_are_refused_with_the_way_out(folder: Path, before: str, after: str, says: str):
    assert before in CLAIMS
    (folder / "claims.toml").write_text(CLAIMS.replace(before, after, 1))
    with pytest.raises(InvalidFile, match=says):
        load_claims(folder / "claims.toml")
