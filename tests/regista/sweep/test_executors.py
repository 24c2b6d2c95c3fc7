"""Sweeps beyond this process: whoever performs the points, the rows are the same, also when a worker is lost."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import sweep_work
from command_line import Command, commands

from planner.ir.errors import RegistaError, Unsupported
from regista.sweep import Manifest, load_manifest, load_rows, sweep
from regista.sweep.executors import LOCAL, Kind, Where, parse_where, results
from regista.sweep.point import Performer, Point

CHEAP = """
claim = "larger batches take longer"
source = "tests"
axes = ["batch"]
[model]
name = "zoo:mlp"
batch = {batches}
width = 8
hidden = 8
depth = 1
[cluster]
name = "dgx-a100:1"
[plan]
stages = 1
mesh = "8"
"""

POINTS = 24
"""Of the sweeps that are compared; with 200 points all four had the same rows, too (2026-11-23, 2 cores)."""

CLOCKS = ("run_plan_s", "written_at")
"""Columns that are times of the machine itself."""


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return commands(capsys)


def cheap(folder: Path, points: int) -> Manifest:
    path = folder / "cheap.toml"
    path.write_text(CHEAP.format(batches=[8 * number for number in range(1, points + 1)]))
    return load_manifest(path)


def point(label: str, folder: Path = Path()) -> Point:
    return Point(label=label, model="zoo:mlp", cluster="local:2", performer=Performer.SIM, plan={"folder": str(folder)})


def rows_of(path: Path) -> Mapping[str, Mapping[str, object]]:
    return {
        str(row["point_id"]): {key: value for key, value in row.items() if key not in CLOCKS} for row in sorted(load_rows(path), key=str)
    }


def kill_later(pids: Callable[[], list[int]], path: Path, rows: int) -> threading.Thread:
    """One of the workers, once so many rows are written."""

    def watch() -> None:
        while not path.exists() or path.read_text().count("\n") < rows:
            time.sleep(0.02)
        os.kill(pids()[0], signal.SIGKILL)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def children() -> list[int]:
    """Spawned workers of this process."""
    found = subprocess.run(["pgrep", "-P", str(os.getpid()), "-f", "spawn_main"], capture_output=True, text=True, check=True).stdout
    return list(map(int, found.split()))


# --- what --on names --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("local", LOCAL),
        ("dask://head:8786", Where(kind=Kind.DASK, address="head:8786")),
        ("dask://[::1]:8786", Where(kind=Kind.DASK, address="[::1]:8786")),
        ("ray://10.0.0.1:10001", Where(kind=Kind.RAY, address="10.0.0.1:10001")),
        ("slurm:gpu-long", Where(kind=Kind.SLURM, address="gpu-long")),
    ],
)
def test_an_executor_is_named_by_what_it_is_and_where(text: str, where: Where) -> None:
    assert parse_where(text) == where


@pytest.mark.parametrize(
    "text", ["", "dask", "dask://", "dask://head", "slurm:", "slurm:a b", "slurm:$(x)", "ray://x:y", "http://a:1", "Local"]
)
def test_anything_else_is_refused_with_what_there_is(text: str) -> None:
    with pytest.raises(Unsupported, match="dask://HOST:PORT, slurm:PARTITION or ray://HOST:PORT"):
        parse_where(text)


def test_runs_stay_on_this_machine(tmp_path: Path) -> None:
    path = tmp_path / "cheap.toml"
    path.write_text('performer = "run"\n' + CHEAP.format(batches=[8]))
    with pytest.raises(Unsupported, match="run on this machine"):
        sweep(load_manifest(path), tmp_path / "rows.csv", where=parse_where("dask://head:8786"))
    assert not (tmp_path / "rows.csv").exists()


def test_the_number_of_a_clusters_workers_is_not_ours_to_say(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="leave --jobs out"):
        sweep(cheap(tmp_path, 2), tmp_path / "rows.csv", jobs=2, where=parse_where("dask://head:8786"))


def test_a_bad_executor_is_one_message_and_nothing_is_written(command: Command, tmp_path: Path) -> None:
    cheap(tmp_path, 2)
    ran = command("sweep", tmp_path / "cheap.toml", "--on", "cloud", "--out", tmp_path / "out")
    assert ran.code == 2 and ran.err.startswith("regista sweep: --on 'cloud'") and not (tmp_path / "out").exists()


@pytest.mark.parametrize(("package", "on"), [("distributed", "dask://h:1"), ("submitit", "slurm:p"), ("ray", "ray://h:1")])
def test_a_package_that_is_missing_is_named_with_how_to_get_it(
    package: str, on: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(RegistaError, match=rf"'{package}', which is not installed; pip install 'regista\["):
        list(results([point("a")], sweep_work.at_once, parse_where(on), jobs=1, folder=tmp_path))


# --- processes of this machine ----------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.processes
def test_a_point_whose_process_ends_is_done_again(tmp_path: Path) -> None:
    points = [point("fatal", tmp_path), *(point(f"point {number}", tmp_path) for number in range(5))]
    with pytest.warns(UserWarning, match="done again"):
        done = list(results(points, sweep_work.ends_its_process_once, LOCAL, jobs=2, folder=tmp_path))
    assert sorted(columns["says"] for _, columns in done) == sorted(p.label for p in points)


@pytest.mark.thorough
@pytest.mark.processes
def test_points_that_no_process_survives_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="done again"), pytest.raises(RegistaError, match=r"3 times without a row.*deadly"):
        list(results([point("deadly"), point("deadly")], sweep_work.ends_its_process, LOCAL, jobs=2, folder=tmp_path))


# --- Dask -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def dask(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Where, Callable[[], list[int]]]]:
    """A cluster of two processes, and their pids."""
    distributed = pytest.importorskip("distributed", reason="Dask's workers need the package 'distributed'")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, processes=True) as cluster:
        address = cluster.scheduler_address.removeprefix("tcp://")
        yield Where(kind=Kind.DASK, address=address), lambda: [nanny.pid for nanny in cluster.workers.values()]


@pytest.mark.thorough
@pytest.mark.processes
def test_dask_processes_and_both_with_a_killed_worker_write_the_same_rows(
    dask: tuple[Where, Callable[[], list[int]]], tmp_path: Path
) -> None:
    where, pids = dask
    manifest = cheap(tmp_path, POINTS)
    paths = {name: tmp_path / f"{name}.csv" for name in ("dask", "dask_killed", "processes", "processes_killed")}
    sweep(manifest, paths["dask"], where=where)
    thread = kill_later(pids, paths["dask_killed"], POINTS // 4)
    sweep(manifest, paths["dask_killed"], where=where)
    thread.join()
    sweep(manifest, paths["processes"], jobs=2)
    before = children()
    thread = kill_later(lambda: [pid for pid in children() if pid not in before], paths["processes_killed"], POINTS // 4)
    with pytest.warns(UserWarning, match="done again"):
        sweep(manifest, paths["processes_killed"], jobs=2)
    thread.join()
    rows = {name: rows_of(path) for name, path in paths.items()}
    assert len(rows["dask"]) == POINTS and {row["status"] for row in rows["dask"].values()} == {"ok"}
    assert rows["dask"] == rows["dask_killed"] == rows["processes"] == rows["processes_killed"]


@pytest.mark.thorough
@pytest.mark.processes
def test_a_point_costs_at_most_ten_milliseconds_beside_its_work(dask: tuple[Where, Callable[[], list[int]]], tmp_path: Path) -> None:
    points = [point(f"point {number}") for number in range(200)]
    list(results(points, sweep_work.at_once, dask[0], jobs=1, folder=tmp_path))  # workers import regista
    began = time.perf_counter()
    assert len(list(results(points, sweep_work.at_once, dask[0], jobs=1, folder=tmp_path))) == 200
    assert (time.perf_counter() - began) / 200 <= 0.010


@pytest.mark.thorough
@pytest.mark.processes
def test_a_sweep_on_dask_goes_on_where_it_stopped(dask: tuple[Where, Callable[[], list[int]]], tmp_path: Path) -> None:
    manifest, path = cheap(tmp_path, 6), tmp_path / "rows.csv"
    sweep(manifest, path, only=manifest.points[:2])
    performed: list[str] = []
    sweep(manifest, path, where=dask[0], on_row=lambda p, phase, columns: performed.append(phase))
    assert sorted(performed) == ["known"] * 2 + ["predicted"] * 4
    assert len(load_rows(path)) == 6


def test_a_scheduler_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason="Dask's workers need the package 'distributed'")
    monkeypatch.setattr("regista.sweep.executors.dask._ANSWER_S", 0.5)
    with pytest.raises(Unsupported, match=r"no Dask scheduler answers at 127\.0\.0\.1:9"):
        list(results([point("a")], sweep_work.at_once, parse_where("dask://127.0.0.1:9"), jobs=1, folder=tmp_path))


# --- Slurm, by programs that stand for its own -------------------------------------------------------------------------

SBATCH = """#!{python}
# Runs every task of an array by itself, on this machine, and says the array's number.
import os, re, subprocess, sys
script = open(sys.argv[1]).read()
first, last = map(int, re.search(r"--array=(\\d+)-(\\d+)", script).groups()) if "--array" in script else (0, 0)
number = str(1000 + len(os.listdir({folder!r})))
open(os.path.join({folder!r}, number), "w").close()
for task in range(first, last + 1):
    told = dict(SLURM_JOB_ID=number, SLURM_ARRAY_JOB_ID=number, SLURM_ARRAY_TASK_ID=str(task), SLURM_NTASKS="1", SLURM_PROCID="0")
    told |= dict(SLURM_LOCALID="0", SLURM_NODEID="0", SLURM_JOB_NODELIST="here", SLURM_JOB_NUM_NODES="1", SLURM_TASKS_PER_NODE="1")
    subprocess.Popen(["bash", sys.argv[1]], env=os.environ | told, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print("Submitted batch job", number)
"""

SRUN = """#!/bin/bash
# Drops srun's own options and performs the rest.
while [[ "$1" == --* ]]; do if [[ "$1" == *=* || "$1" == --unbuffered ]]; then shift; else shift 2; fi; done
exec "$@"
"""

SACCT = """#!/bin/bash
echo 'JobID|State|NodeList'
for file in {folder}/*; do for task in 0 1 2 3 4 5 6 7; do echo "$(basename $file)_$task|{state}|here"; done; done
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts stubs of sbatch, srun, sacct and scancel first in the path; sacct says the state that it is given of every job."""
    pytest.importorskip("submitit", reason="Slurm's jobs need the package 'submitit'")
    programs, submitted = tmp_path / "bin", tmp_path / "submitted"
    programs.mkdir()
    submitted.mkdir()

    def put(state: str) -> None:
        texts = {"sbatch": SBATCH.format(python=sys.executable, folder=str(submitted)), "srun": SRUN, "scancel": "#!/bin/bash\n"}
        for name, text in (texts | {"sacct": SACCT.format(folder=submitted, state=state)}).items():
            (programs / name).write_text(text)
            (programs / name).chmod((programs / name).stat().st_mode | stat.S_IEXEC)

    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    return put


@pytest.mark.thorough
@pytest.mark.processes
def test_a_sweep_on_slurm_has_the_rows_of_one_on_this_machine(slurm: Callable[[str], None], tmp_path: Path) -> None:
    slurm("RUNNING")
    manifest = cheap(tmp_path, 6)
    sweep(manifest, tmp_path / "slurm.csv", jobs=1, where=parse_where("slurm:batch"))
    sweep(manifest, tmp_path / "here.csv")
    assert rows_of(tmp_path / "slurm.csv") == rows_of(tmp_path / "here.csv")


def test_without_slurm_a_sweep_on_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit", reason="Slurm's jobs need the package 'submitit'")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unsupported, match="run this where Slurm's commands are"):
        list(results([point("a")], sweep_work.at_once, parse_where("slurm:batch"), jobs=1, folder=tmp_path))
