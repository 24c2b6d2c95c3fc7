"""Every experiment of the repository at its small size, and a newcomer's first experiment."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from command_line import commands

from experiments import actor_timeline, reproduce, sbp_pictures
from regista.sweep import load_manifest

ROOT = Path(__file__).parents[2]
MANIFESTS = sorted((ROOT / "experiments/manifests").glob("*.toml"))
README = (ROOT / "experiments/README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_every_manifest_is_one_at_full_size_and_has_a_small_one(path: Path) -> None:
    full, small = load_manifest(path), load_manifest(path, smoke=True)
    assert full.expect and len(small.points) <= 4


def test_every_simulated_manifest_works_at_its_small_size(tmp_path: Path) -> None:
    found = reproduce.smoke(tmp_path)
    assert {done.name for done in found} == {p.stem for p in MANIFESTS if load_manifest(p, smoke=True).performer.value == "sim"}
    assert [done for done in found if done.state != "held"] == []


def test_every_manifest_and_every_module_stands_in_the_table() -> None:
    for path in MANIFESTS:
        assert f"manifests/{path.name}" in README, path.name
    modules = {path.stem for path in (ROOT / "experiments").glob("*.py")} - {"__init__"}
    assert {name for name in modules if f"experiments.{name}" not in README} == set()


def test_every_file_that_the_table_names_exists() -> None:
    for target in re.findall(r"\]\(((?:manifests|results|figures)/[^)]+)\)", README):
        assert (ROOT / "experiments" / target).exists(), target


def test_a_newcomer_adds_an_experiment_with_one_manifest_and_one_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The walk-through of experiments/README.md, word for word."""
    walk = README[README.index("## Add an experiment") :]
    (toml,) = re.findall(r"```toml\n(.*?)```", walk, flags=re.DOTALL)
    (line,) = re.findall(r"^    regista (sweep .*)$", walk, flags=re.MULTILINE)
    path = tmp_path / "experiments/manifests/tensor_or_data.toml"
    path.parent.mkdir(parents=True)
    path.write_text(toml)
    words = [str(tmp_path / word) if word.endswith(".toml") else word for word in line.split()]
    ran = commands(capsys)(*words)
    assert ran.code == 0, ran.err + ran.out
    with (tmp_path / "experiments/results/tensor_or_data.csv").open(newline="") as file:
        assert {row["status"] for row in csv.DictReader(file)} == {"ok"}
    assert (tmp_path / "experiments/figures/tensor_or_data.svg").exists()


def test_the_actors_of_the_articles_keep_the_pace_that_theory_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor_timeline, "CSV", tmp_path / "a.csv")
    actor_timeline.measure()
    with (tmp_path / "a.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {(row["case"], float(row["sim_period_s"])) for row in rows} == {(row["case"], float(row["theory_period_s"])) for row in rows}
    at_2 = {row["actor"]: row["act_number"] for row in rows if row["case"] == "three actors, 2 blocks" and float(row["sim_start_s"]) == 2.0}
    assert at_2 == {"a": "2", "b": "1", "c": "0"}, "at time 2 all three act, each on its own batch (figure 2)"


def test_every_picture_of_sbp_puts_together_what_one_device_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sbp_pictures, "CSV", tmp_path / "s.csv")
    sbp_pictures.measure()
    with (tmp_path / "s.csv").open(newline="") as file:
        rows = {row["case"]: row for row in csv.DictReader(file)}
    assert all(float(row["run_max_error"]) < 1e-12 for row in rows.values())
    assert {"S(0) x B", "B x S(1)"} <= set(rows), "the article's two signatures of matmul"
    assert rows["row (RowParallelLinear)"]["boxing"].startswith("all_reduce")
    assert rows["column (ColumnParallelLinear)"]["boxing"].startswith("all_gather")
    assert rows["2-D: data x row, 4 machines of 8"]["boxing"] == "all_reduce along axis 1 (S(0),P -> S(0),B)"
    assert rows["data"]["boxing"] == "none"


def test_an_interrupted_reproduction_goes_on_and_a_finished_one_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    performed: list[str] = []
    broken = {"b"}

    def perform(experiment: reproduce.Experiment) -> reproduce.Done:
        performed.append(experiment.name)
        return reproduce.Done(name=experiment.name, state="failed" if experiment.name in broken else "done", seconds=0.0)

    monkeypatch.setattr(reproduce, "STATE", tmp_path / "state.json")
    monkeypatch.setattr(reproduce, "experiments", lambda: tuple(reproduce.Experiment(name=name) for name in "abc"))
    monkeypatch.setattr(reproduce, "perform", perform)
    assert reproduce.main(["--jobs", "1"]) == 1 and performed == ["a", "b", "c"]
    broken.clear()
    assert reproduce.main(["--jobs", "1"]) == 0 and performed[3:] == ["b"]
    assert reproduce.main(["--jobs", "1"]) == 0 and performed[4:] == ["a", "b", "c"]
