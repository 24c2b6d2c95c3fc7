"""``regista verify``: what is proven of a plan, of which program, and what is said not to be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from command_line import TINY, Command, commands

from planner.ir.files import load_plan, save_plan


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return commands(capsys)


@pytest.fixture
def file(command: Command, tmp_path: Path) -> Path:
    assert command("plan", TINY, "--cluster", "local:2", "--micro-batches", "2", "-o", tmp_path / "p.json").code == 0
    return tmp_path / "p.json"


def test_a_plan_is_proven_to_compute_the_program_that_it_names(command: Command, file: Path) -> None:
    ran = command("verify", file, "--json")
    assert ran.code == 0
    assert ran.json["computes_program"] is True
    assert ran.json["micro_batches"] == 2
    assert ran.json["not_checked"] == []
    assert ran.json["tasks"] == len(load_plan(str(file)).tasks)


def test_another_program_is_not_what_the_plan_computes(command: Command, file: Path) -> None:
    assert command("verify", file, TINY).code == 0
    ran = command("verify", file, TINY.replace("hidden=16", "hidden=32"))
    assert ran.code == 2
    assert "does not compute its program" in ran.err
    assert ran.out == ""


def test_without_a_program_it_says_what_it_could_not_check(command: Command, file: Path, tmp_path: Path) -> None:
    save_plan(replace(load_plan(str(file)), model="mine"), str(tmp_path / "mine.json"))
    ran = command("verify", tmp_path / "mine.json")
    assert ran.code == 0
    assert "not checked: that it computes its program" in ran.out
    assert command("verify", tmp_path / "mine.json", "--json").json["computes_program"] is None
    assert command("verify", tmp_path / "mine.json", TINY, "--json").json["computes_program"] is True
