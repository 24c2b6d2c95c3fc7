"""Every experiment of the repository at its small size, and a newcomer's first experiment."""

from __future__ import annotations

import csv
import importlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from command_line import commands

from experiments import claims, reproduce
from regista.sweep import load_manifest

ROOT = Path(__file__).parents[2]
MANIFESTS = sorted((ROOT / "experiments/manifests").glob("*.toml"))
README = (ROOT / "experiments/README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_every_manifest_is_one_at_full_size_and_has_a_small_one(path: Path) -> None:
    full, small = load_manifest(path), load_manifest(path, smoke=True)
    assert full.expect and len(small.points) <= 4


def committed() -> Mapping[Path, tuple[int, int]]:
    """Size and time of every result and figure of the repository."""
    files = [path for folder in ("results", "figures") for path in (ROOT / "experiments" / folder).iterdir()]
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def smoked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything simulated, at its small size."""
    folder, before = tmp_path_factory.mktemp("smoke"), committed()
    outcomes = reproduce.smoke(folder)
    assert {done.name for done in outcomes} == {e.name for e in reproduce.experiments() if e.simulated}
    assert [done for done in outcomes if done.state not in ("held", "done")] == []
    assert committed() == before
    return folder


def test_every_simulated_experiment_works_at_its_small_size_and_touches_no_committed_file(smoked: Path) -> None:
    simulated = [e for e in reproduce.experiments() if e.simulated]
    written = {path.stem for path in (smoked / "results").iterdir()}
    assert {e.name for e in simulated if not any(stem.startswith(e.name) for stem in written)} == set()
    drawn = {path.name for path in (smoked / "figures").iterdir()}
    full = [p for e in simulated if e.is_manifest for p in load_manifest(ROOT / f"experiments/manifests/{e.name}.toml").figures]
    assert {figure.output for figure in full} <= drawn
    assert {path.name for path in (ROOT / "experiments/figures").glob("*.png")} - drawn == NOT_SIMULATED


OF_A_BROWSER = {"server_compare.png", "server_compare_dark.png", "server_narrow.png", "server_predict.png", "server_search.png"}
"""Pictures of the page of ``regista serve``: no rows draw them."""

OF_A_GPU = {"gpu_gantt-1.png", "gpu_gantt-2.png", "gpu_steps.png"}
"""Pictures that a run on a GPU left, of its traces and rows (experiments.gpu --publish)."""

NOT_SIMULATED = {
    "compiled.png", "context_parallel.png", "corpus.png", "eager.png",
    "fidelity.png", "fidelity_residuals.png", "jobs.png", "kernel_models.png", "kernel_residuals.png", "mixed_clusters.png", "nccl_score.png",
    "optimality.png", "overlap.png", "quota_boundary.png", "quota_boundary_gantt_1.png", "quota_boundary_gantt_2.png", "quotas_run.png",
    "recompute.png", "rivals.png", "search_curves.png", "slow_process.png", "transparency.png", "trust.png", "validation_time.png",
} | OF_A_BROWSER | OF_A_GPU  # fmt: skip
"""Pictures of modules that run processes, prove for hours, or are not performed here."""


def test_every_figure_is_drawn_from_the_committed_rows_alone(tmp_path: Path) -> None:
    before = committed()
    assert reproduce.main(["--figures", "--out", str(tmp_path)]) == 0
    assert committed() == before
    of_traces = {"quota_boundary_gantt_1.png", "quota_boundary_gantt_2.png"}
    drawn = {path.name for path in (tmp_path / "figures").iterdir()}
    assert {path.name for path in (ROOT / "experiments/figures").iterdir()} - of_traces - OF_A_BROWSER - OF_A_GPU == drawn


WITH_A_SMALL_SIZE = [experiment for experiment in reproduce.MODULES if experiment.small == ("--smoke",)]


@pytest.mark.parametrize("experiment", WITH_A_SMALL_SIZE, ids=lambda experiment: experiment.name)
def test_a_small_size_is_never_written_over_committed_rows(
    experiment: reproduce.Experiment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = committed()
    monkeypatch.setattr(sys, "argv", ["experiment", "--smoke"])
    with pytest.raises(SystemExit, match="2"):
        importlib.import_module(experiment.path).main()
    assert f"experiments.reproduce --smoke --only {experiment.name} --out" in capsys.readouterr().err
    assert committed() == before


def test_every_manifest_and_every_module_stands_in_the_table() -> None:
    for path in MANIFESTS:
        assert f"manifests/{path.name}" in README, path.name
    modules = {path.stem for path in (ROOT / "experiments").glob("*.py")} - {"__init__"}
    assert {name for name in modules if f"experiments.{name}" not in README} == set()


def test_the_readmes_say_what_the_records_and_the_committed_rows_say(capsys: pytest.CaptureFixture[str]) -> None:
    assert claims.main([]) == 0, f"{capsys.readouterr().out}; mend experiments/claims.toml, then: python -m experiments.claims --write"
    places = re.findall(r"<!-- from claims\.toml: (.+?) -->", "".join(path.read_text(encoding="utf-8") for path in claims.READMES))
    assert sorted(places) == sorted(claims.texts())


def test_a_readme_that_quotes_another_figure_is_told_and_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (readme,) = readmes = (tmp_path / "README.md",)
    readme.write_text("before\n<!-- from claims.toml: predictions -->\nwrong by 3.2 %\n<!-- end -->\nafter\n")
    monkeypatch.setattr(claims, "READMES", readmes)
    monkeypatch.setattr(claims, "texts", lambda: {"predictions": "wrong by 2.1 %"})
    assert claims.main([]) == 1 and "3.2 %" in readme.read_text() and str(readme) in capsys.readouterr().out
    assert claims.main(["--write"]) == 0
    assert readme.read_text() == "before\n<!-- from claims.toml: predictions -->\nwrong by 2.1 %\n<!-- end -->\nafter\n"
    readme.write_text("<!-- from claims.toml: prediction -->\n<!-- end -->\n")
    assert claims.main([]) == 2 and "no section or paragraph 'prediction'" in capsys.readouterr().err


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
    assert {row["status"] for row in read(tmp_path / "experiments/results/tensor_or_data.csv")} == {"ok"}
    assert (tmp_path / "experiments/figures/tensor_or_data.svg").exists()


def test_the_actors_of_the_articles_keep_the_pace_that_theory_gives(smoked: Path) -> None:
    rows = read(smoked / "results/actor_timeline.csv")
    assert {(row["case"], float(row["sim_period_s"])) for row in rows} == {(row["case"], float(row["theory_period_s"])) for row in rows}
    at_2 = {row["actor"]: row["act_number"] for row in rows if row["case"] == "three actors, 2 blocks" and float(row["sim_start_s"]) == 2.0}
    assert at_2 == {"a": "2", "b": "1", "c": "0"}, "at time 2 all three act, each on its own batch (figure 2)"


def test_every_picture_of_sbp_puts_together_what_one_device_has(smoked: Path) -> None:
    rows = {row["case"]: row for row in read(smoked / "results/sbp_pictures.csv")}
    assert all(float(row["run_max_error"]) < 1e-12 for row in rows.values())
    assert {"S(0) x B", "B x S(1)"} <= set(rows), "the article's two signatures of matmul"
    assert rows["row (RowParallelLinear)"]["boxing"].startswith("all_reduce")
    assert rows["column (ColumnParallelLinear)"]["boxing"].startswith("all_gather")
    assert rows["2-D: data x row, 4 machines of 8"]["boxing"] == "all_reduce along axis 1 (S(0),P -> S(0),B)"
    assert rows["data"]["boxing"] == "none"


def test_simulated_periods_of_quotas_are_those_of_theory(smoked: Path) -> None:
    rows = [row for row in read(smoked / "results/quotas.csv") if row["period_s"]]
    period_s = {kind: {row["quotas"]: float(row["period_s"]) for row in rows if row["kind"] == kind} for kind in ("sim", "theory")}
    assert len(period_s["sim"]) >= 8
    assert period_s["sim"] == pytest.approx(period_s["theory"], rel=1e-6)


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


REPRODUCE = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from experiments import claims, reproduce
reproduce.MODULES = (reproduce.Experiment(name="first"), reproduce.Experiment(name="second"))
reproduce.MANIFESTS = Path("manifests")
sys.exit(reproduce.main(["--jobs", "1"]))
"""
EXPERIMENT = """
import time
from pathlib import Path
with Path("performed").open("a") as file:
    file.write("{name} ")
while Path("hold-{name}").exists():
    time.sleep(0.01)
"""


def test_a_killed_reproduction_performs_only_what_had_not_ended(tmp_path: Path) -> None:
    """Two tiny experiments in processes of their own; the second is at work when everything is killed."""
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments/__init__.py").touch()
    for name in ("first", "second"):
        (tmp_path / f"experiments/{name}.py").write_text(EXPERIMENT.format(name=name))
    performed, hold = tmp_path / "performed", tmp_path / "hold-second"
    hold.touch()
    command = [sys.executable, "-c", REPRODUCE, str(ROOT)]
    with (tmp_path / "said").open("w") as said:
        killed = subprocess.Popen(command, cwd=tmp_path, start_new_session=True, stdout=said, stderr=said)
        while not (performed.exists() and "second" in performed.read_text()):
            assert killed.poll() is None, (tmp_path / "said").read_text()
            time.sleep(0.01)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    hold.unlink()
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert performed.read_text().split() == ["first", "second", "second"]
