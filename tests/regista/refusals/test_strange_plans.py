"""The code that a plan names as its model runs for plans that this user made here, and otherwise only with --trust."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from command_line import TINY, Command

from planner.ir.files import load_plan, save_plan
from planner.ir.plan import Plan
from regista.api import run
from regista.origin import is_recorded, record

MODEL = """
from pathlib import Path
Path(__file__).with_name("ran").touch()
import regista, torch
from torch import nn
def make():
    torch.manual_seed(0)
    data = (torch.randn(8, 4), torch.randint(0, 4, (8,)))
    return regista.Program(nn.Linear(4, 4), data, loss=nn.functional.cross_entropy, optimizer=regista.SGD(lr=0.1))
"""


@pytest.fixture
def strange(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The plan of a model.py, made by somebody else; model.py leaves a file ``ran`` when its code runs."""
    (tmp_path / "model.py").write_text(MODEL)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "theirs"))
    assert command("plan", f"{tmp_path}/model.py:make", "--cluster", "local:1", "-o", tmp_path / "plan.json").code == 0
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "ours"))
    (tmp_path / "ran").unlink()
    return tmp_path / "plan.json"


@pytest.mark.parametrize(
    "verb",
    [
        ("run", "PLAN", "--steps", "1", "--performer", "reference"),
        ("whatif", "PLAN", "--set", "cluster.device.memory_GB=4"),
        ("sensitivity", "PLAN", "--replan"),
        ("deploy", "PLAN", "--kind", "slurm"),
    ],
)
def test_code_that_a_strangers_plan_names_does_not_run(command: Command, strange: Path, verb: tuple[str, ...]) -> None:
    ran = command(*(str(strange) if word == "PLAN" else word for word in verb))
    assert ran.code == 2
    assert "a file whose code would run as you, and it was not planned on this machine by you" in ran.err and "--trust" in ran.err
    assert not strange.with_name("ran").exists()


@pytest.mark.parametrize("verb", [("explain", "PLAN"), ("diff", "PLAN", "PLAN")])
def test_what_the_plan_alone_tells_is_told_and_the_rest_is_said_to_be_missing(
    command: Command, strange: Path, verb: tuple[str, ...]
) -> None:
    ran = command(*(str(strange) if word == "PLAN" else word for word in verb))
    assert ran.code == 0
    assert not strange.with_name("ran").exists()


def test_it_does_not_run_from_python_either_unless_the_program_is_handed_over(strange: Path) -> None:
    with pytest.raises(ValueError, match="hand the program over"):
        run(load_plan(str(strange)), steps=1)
    assert not strange.with_name("ran").exists()


def test_verify_says_what_it_has_not_checked_and_why(command: Command, strange: Path) -> None:
    ran = command("verify", strange)
    assert ran.code == 0 and "not checked: that it computes its program" in ran.out and "give MODEL" in ran.out
    assert not strange.with_name("ran").exists()
    assert command("verify", strange, f"{strange.parent}/model.py:make", "--json").json["computes_program"] is True


def test_trust_lets_it_run(command: Command, strange: Path) -> None:
    assert command("run", strange, "--steps", "1", "--performer", "reference", "--trust").code == 0
    assert strange.with_name("ran").exists()
    assert "--trust" in command("deploy", strange, "--kind", "slurm", "--trust").out


def test_a_plan_that_was_made_here_runs_unasked_and_so_does_what_is_made_from_it(command: Command, strange: Path) -> None:
    folder = strange.parent
    assert command("plan", f"{folder}/model.py:make", "--cluster", "local:1", "-o", folder / "own.json").code == 0
    assert command("run", folder / "own.json", "--steps", "1", "--performer", "reference").code == 0
    assert command("whatif", folder / "own.json", "--set", "cluster.device.memory_GB=4", "-o", folder / "less.json").code == 0
    assert is_recorded(load_plan(str(folder / "less.json")))


def test_a_plan_that_was_edited_is_nobodys(strange: Path) -> None:
    plan = load_plan(str(strange))
    assert record(plan) == "" and is_recorded(plan)
    assert not is_recorded(Plan(**{**_fields(plan), "micro_batches": plan.micro_batches + 1}))


def test_a_record_that_others_can_write_or_that_is_a_link_says_nothing(strange: Path, tmp_path: Path) -> None:
    plan = load_plan(str(strange))
    assert record(plan) == ""
    file = tmp_path / "ours/regista/plans"
    file.chmod(0o666)
    assert not is_recorded(plan)
    file.chmod(0o600)
    assert is_recorded(plan)
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert not is_recorded(plan) and "cannot be written" in record(plan)


def test_where_nothing_can_be_recorded_plan_says_so(command: Command, strange: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (strange.parent / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(strange.parent / "file"))
    ran = command("plan", f"{strange.parent}/model.py:make", "--cluster", "local:1", "-o", strange.parent / "own.json")
    assert ran.code == 0 and "will ask for --trust" in ran.out


def test_a_plan_of_the_zoo_asks_nothing_and_leaves_no_record(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert command("plan", TINY, "--cluster", "local:1", "-o", tmp_path / "plan.json").code == 0
    save_plan(load_plan(str(tmp_path / "plan.json")), str(tmp_path / "copy.json"))
    assert command("run", tmp_path / "copy.json", "--steps", "1", "--performer", "reference").code == 0
    assert not os.path.exists(tmp_path / "state")


def _fields(plan: Plan) -> dict[str, object]:
    return {name: getattr(plan, name) for name in plan.__dataclass_fields__}
