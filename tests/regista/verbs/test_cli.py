"""The command line from end to end: every verb, the JSON it promises, its help, and what becomes of its processes."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import CLUSTER, TINY, Command, commands

from planner.ir.files import load_plan, load_trace
from regista.cli import build_parser, main

VERBS = {
    *("demo", "doctor", "calibrate", "plan", "explain", "simulate", "run", "compare", "gantt", "export", "ops", "clusters", "timeline"),
    *("report", "checkpoint", "deploy", "loading", "sweep"),
    *("quotas", "iopddl", "diff", "whatif", "search-time", "train", "predict", "advise", "verify", "sensitivity", "serve"),
}
PAIR = {"predicted", "measured", "relative_error"}
TRACE_KEYS = {"plan_id", "source", "performer", "steps", "step_time_s", "throughput_per_s", "peak_bytes", "about"}


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return commands(capsys)


def test_every_verb_from_plan_to_picture_hands_its_file_to_the_next(command: Command, tmp_path: Path):
    plan, sim, run = tmp_path / "plan.json", tmp_path / "sim.json", tmp_path / "run.json"
    chain = (
        ["plan", TINY, "--cluster", "local:2", "--stages", "2", "--micro-batches", "4", "--cut", "blocks.1", "-o", plan],
        ["explain", plan],
        ["simulate", plan, "--steps", "3", "-o", sim],
        ["run", plan, "--performer", "reference", "--steps", "5", "-o", run],
        ["compare", sim, run, "--gantt", tmp_path / "both.png", "-o", tmp_path / "compare.json"],
        ["gantt", sim, run, "--steps", "1", "--memory", "--links", "-o", tmp_path / "both.svg"],
        ["timeline", sim, run, "-o", tmp_path / "both.html"],
        ["export", sim, run, "-o", tmp_path / "timeline.json"],
    )
    for arguments in chain:
        ran = command(*arguments)
        assert ran.code == 0, ran.err
        assert ran.out
        assert ran.err == ""
    for name, head in (("both.png", b"\x89PNG"), ("both.svg", b"<?xml")):
        assert (tmp_path / name).read_bytes().startswith(head)
    assert json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]
    assert load_trace(str(sim))[0] == load_trace(str(run))[0] == load_plan(str(plan))
    # Nothing half-written and no temporary neighbour.
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        *("both.html", "both.png", "both.svg", "compare.json", "plan.json", "run.json", "sim.json", "timeline.json")
    ]


def test_with_json_stdout_is_one_document_with_the_promised_keys(command: Command, tmp_path: Path):
    plan, sim, run = tmp_path / "plan.json", tmp_path / "sim.json", tmp_path / "run.json"
    planned = command("plan", TINY, "--cluster", "local:2", "-o", plan, "--json").json
    assert set(planned) == {
        *("plan_id", "model", "cluster", "num_ranks", "micro_batches", "batch_size", "placements", "tasks", "regsts", "layouts"),
        *("search", "planned_bytes", "mode", "state_bytes_per_parameter", "schedules", "interval", "next_shape", "answer"),
    }
    assert set(planned["search"]) == {"method", "cost_model", "objective_s", "lower_bound_s", "covers"}
    assert set(planned["planned_bytes"]) == {"0", "1"}
    assert planned.pop("next_shape") == []
    assert planned.pop("answer")["fits"] is True
    explained = command("explain", plan, "--json").json
    assert set(explained) == {*planned, "gap", "best_s", "decisions", "left_out", "balance", "time", "communication", "memory", "note"}
    assert {key: explained[key] for key in planned} == planned
    simulated = command("simulate", plan, "-o", sim, "--json").json
    assert set(simulated) >= TRACE_KEYS
    assert simulated["source"] == "sim"
    assert simulated["plan_id"] == planned["plan_id"]
    assert simulated["throughput_per_s"] == pytest.approx(8 / simulated["step_time_s"])
    assert set(simulated["peak_bytes"]) == {"0", "1"}
    assert all(0 < peak <= planned["planned_bytes"][rank] for rank, peak in simulated["peak_bytes"].items())
    ran = command("run", plan, "--performer", "reference", "--steps", "4", "-o", run, "--json").json
    assert set(ran) == TRACE_KEYS | {"losses", "first_step"}
    assert (ran["source"], ran["performer"], ran["steps"], len(ran["losses"])) == ("run", "reference", 4, 4)
    goal = ("compare", sim, run, "--gantt", tmp_path / "g.png", "-o", tmp_path / "c.json", "--json")
    compared = command(*goal).json
    assert compared == json.loads((tmp_path / "c.json").read_text())
    assert set(compared["step_time_s"]) == PAIR | {"p10", "p90", "measured_steps"}
    assert set(compared["throughput_per_s"]) == PAIR
    assert {"forward", "backward", "update"} <= set(compared["kinds"])
    for table in ("kinds", "actors", "register_bytes"):
        assert all(set(entry) == PAIR for entry in compared[table].values())
    step = compared["step_time_s"]
    assert step["predicted"] == pytest.approx(simulated["step_time_s"])
    assert step["relative_error"] == pytest.approx(step["predicted"] / step["measured"] - 1)
    assert command("gantt", sim, "-o", tmp_path / "g.svg", "--json").json == {"out": f"{tmp_path}/g.svg", "plan_id": planned["plan_id"]}
    exported = command("export", sim, "-o", tmp_path / "e.json", "--json").json
    assert exported == {"out": f"{tmp_path}/e.json", "plan_id": planned["plan_id"], "format": "perfetto"}
    checked = command("doctor", "--json").json
    assert set(checked) == {"good", "checks"}
    assert all(set(check) == {"what", "found", "good"} for check in checked["checks"])


def test_the_same_command_gives_the_same_bytes(command: Command, tmp_path: Path):
    for name in ("a", "b"):
        assert command("plan", TINY, "--cluster", "local:2", "-o", tmp_path / f"{name}.json").code == 0
        assert command("simulate", tmp_path / f"{name}.json", "-o", tmp_path / f"{name}-sim.json").code == 0
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert (tmp_path / "a-sim.json").read_bytes() == (tmp_path / "b-sim.json").read_bytes()


def test_all_options_of_plan_reach_the_plan(command: Command, tmp_path: Path):
    (tmp_path / "c.toml").write_text(CLUSTER.replace("devices_per_node = 2", "devices_per_node = 8"))
    plan = tmp_path / "p.json"
    ran = command(
        *("plan", TINY, "--cluster", tmp_path / "c.toml", "-o", plan, "--stages", "2", "--mesh", "2,2", "--micro-batches", "2"),
        *("--cut", "blocks.1", "--pin", "blocks.0.up.weight=S(0),B", "--schedule", "gpipe", "--quota", "s0-s1.*=3", "--bucket-mb", "0.5"),
        "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    planned = load_plan(str(plan))
    assert [p.mesh for p in planned.placements] == [(2, 2), (2, 2)]
    assert ran.json["layouts"]["blocks.0.up.weight"] == "S(0),B"
    assert (ran.json["micro_batches"], ran.json["cluster"], ran.json["num_ranks"]) == (2, "small", 8)
    crossing = {name: quota for name, quota in ran.json["regsts"].items() if name.startswith("s0-s1.")}
    assert crossing
    assert set(crossing.values()) == {3}
    assert (planned.options["schedule"], planned.options["cuts"], planned.options["bucket_bytes"]) == ("gpipe", "blocks.1", "500000")


MINE = """
from __future__ import annotations
from dataclasses import dataclass
import torch
from torch import nn
from neighbour import WIDTH
from regista import Program

@dataclass
class Sizes:
    width: int = WIDTH

class Mine(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(Sizes().width, WIDTH)

    def forward(self, x, y):
        return (self.inner(x).tanh() - y).square().mean()

def program():
    torch.manual_seed(0)
    return Program(Mine(), (torch.randn(8, WIDTH), torch.randn(8, WIDTH)))
"""


def test_a_file_with_its_neighbours_is_a_model(command: Command, tmp_path: Path):
    (tmp_path / "neighbour.py").write_text("WIDTH = 16\n")
    (tmp_path / "mine.py").write_text(MINE)
    modules, path = set(sys.modules), list(sys.path)
    model = f"{tmp_path}/mine.py:program"
    assert command("plan", model, "--cluster", "local:2", "--micro-batches", "2", "-o", tmp_path / "p.json").code == 0
    ran = command("run", tmp_path / "p.json", "--performer", "reference", "--steps", "3", "--json").json
    assert ran["losses"][2] < ran["losses"][0]
    assert sys.path == path
    of_the_user = {name for name in set(sys.modules) - modules if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path))}
    assert of_the_user <= {"neighbour", "regista_model_mine"}
    # Another activation is another step: the plan is not run with it.
    (tmp_path / "mine.py").write_text(MINE.replace(".tanh()", ".sigmoid()"))
    ran = command("run", tmp_path / "p.json", "--performer", "reference")
    assert ran.code == 2
    assert "the ops, the optimizer's numbers or torch's version have changed; plan this program anew" in ran.err


def test_an_exported_program_is_a_model(command: Command, tmp_path: Path):
    import torch
    from torch import nn

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return (self.inner(x) - y).square().mean()

    torch.export.save(torch.export.export(Loss(), (torch.randn(8, 8), torch.randn(8, 8))), tmp_path / "m.pt2")
    assert command("plan", tmp_path / "m.pt2", "--cluster", "local:2", "-o", tmp_path / "p.json").code == 0
    ran = command("run", tmp_path / "p.json", "--performer", "reference", "--steps", "3", "--json").json
    assert ran["losses"][2] < ran["losses"][0]


# Help.


def verbs() -> dict[str, argparse.ArgumentParser]:
    (table,) = [a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction)]
    return dict(table.choices)


def test_help_names_every_verb(capsys: pytest.CaptureFixture[str]):
    assert set(verbs()) == VERBS
    with pytest.raises(SystemExit) as exit_:
        main(["--help"])
    assert exit_.value.code == 0
    shown = capsys.readouterr().out
    assert all(re.search(rf"^ +{name}\b", shown, re.MULTILINE) for name in VERBS)


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_help_of_a_verb_explains_every_argument(capsys: pytest.CaptureFixture[str], verb: str):
    with pytest.raises(SystemExit) as exit_:
        main([verb, "--help"])
    assert exit_.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    for action in verbs()[verb]._actions:
        assert action.help, f"{verb}: {action.dest} is not explained"
        assert all(option in shown for option in action.option_strings)
        # Wrapped at hyphens too, so compare without blanks.
        assert action.help.replace("%%", "%").replace(" ", "") in shown.replace(" ", "")


def test_tables_keep_their_ids_whole_when_nobody_looks_at_a_terminal(command: Command, tmp_path: Path):
    path = tmp_path / ("[bold]" + "x" * 120 + ".json")
    ran = command("plan", TINY, "--cluster", "local:2", "-o", path)
    assert f"wrote {path}\n" in ran.out
    shown = command("explain", path, "--actors").out
    assert all(task.id in shown for task in load_plan(str(path)).tasks)


# Real processes.


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def long_run(tmp_path: Path):
    """A run of many steps as a process of its own, its two workers known and past their start."""
    plan = tmp_path / "plan.json"
    assert main(["plan", TINY, "--cluster", "local:2", "-o", str(plan), "--json"]) == 0
    arguments = [sys.executable, "-m", "regista.cli", "run", str(plan), "--steps", "6000", "--json", "-o", str(tmp_path / "run.json")]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        until = time.monotonic() + 60
        # The first step's loss in the progress file says that both ranks are at work.
        while not any(p.stat().st_size for p in tmp_path.glob("regista-*/progress")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < until, "the run did not start"
            time.sleep(0.05)
        pids = sorted(tmp_path.glob("regista-*/rank*.a0.pid"))
        workers = [int(path.read_text()) for path in pids]
        assert [path.name for path in pids] == ["rank0.a0.pid", "rank1.a0.pid"]
        assert all(map(alive, workers))
        yield process, workers, tmp_path
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


@pytest.mark.processes
def test_a_run_on_gloo_is_compared_with_its_simulation(command: Command, tmp_path: Path):
    plan, sim, run = tmp_path / "plan.json", tmp_path / "sim.json", tmp_path / "run.json"
    assert command("plan", TINY, "--cluster", "local:2", "-o", plan).code == 0
    assert command("simulate", plan, "-o", sim).code == 0
    ran = command("run", plan, "--steps", "4", "-o", run, "--json")
    assert ran.code == 0, ran.err
    assert (ran.json["performer"], len(ran.json["losses"])) == ("gloo", 4)
    same = command("run", plan, "--performer", "reference", "--steps", "4", "--json").json
    assert ran.json["losses"] == pytest.approx(same["losses"], rel=1e-5)
    assert command("compare", sim, run, "--json").json["step_time_s"]["measured"] > 0


@pytest.mark.thorough
@pytest.mark.processes
def test_a_killed_worker_ends_the_run_with_its_rank_and_no_process_left(long_run: tuple[subprocess.Popen[str], list[int], Path]):
    process, workers, folder = long_run
    os.kill(workers[1], signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert err.rstrip().splitlines()[-1] == "regista run: rank 1 was killed by SIGKILL; the other ranks were ended"
    assert json.loads(out)["error"]["type"] == "WorkerFailed"
    assert not any(map(alive, workers))
    assert sorted(p.name for p in folder.iterdir()) == ["plan.json"]


@pytest.mark.thorough
@pytest.mark.processes
def test_an_interrupt_ends_the_run_with_130_and_no_process_left(long_run: tuple[subprocess.Popen[str], list[int], Path]):
    process, workers, folder = long_run
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.rstrip().splitlines()[-1] == "regista run: interrupted"
    assert json.loads(out)["error"] == {"type": "Interrupted", "message": "interrupted"}
    assert not any(map(alive, workers))
    assert sorted(p.name for p in folder.iterdir()) == ["plan.json"]
