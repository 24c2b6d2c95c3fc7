"""The picture of a plan's devices: one square per device, one group of every axis marked in every tile."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from command_line import TINY, Command, commands
from matrix import read_plan

from regista.analysis.answer import answer
from regista.views.pictures.device_grid import draw_device_grid


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return commands(capsys)


def test_every_device_has_a_square_and_the_groups_are_named(tmp_path: Path) -> None:
    found = answer(read_plan("gpt", "pipeline2_data2_tensor2", "fp32"))
    draw_device_grid(found, tmp_path / "grid.svg")
    text = (tmp_path / "grid.svg").read_text()
    comments = re.findall(r"<!-- (.*?) -->", text)
    assert {str(rank) for rank in range(8)} <= set(comments)
    assert [c.split(":")[0] for c in comments if "is marked" in c] == [f"{role.value} 2" for role in next(iter(found.roles.values()))]
    assert any(c.startswith("pipeline 2: a tile per stage") for c in comments) and found.split_text in comments


def test_plan_draws_its_devices(command: Command, tmp_path: Path) -> None:
    ran = command("plan", TINY, "--cluster", "local:2", "-o", tmp_path / "p.json", "--picture", tmp_path / "p.png")
    assert ran.code == 0 and (tmp_path / "p.png").stat().st_size > 1000 and "p.png" in ran.out


def test_a_picture_that_cannot_be_drawn_is_refused_before_the_search(command: Command, tmp_path: Path) -> None:
    ran = command("plan", TINY, "--cluster", "local:2", "-o", tmp_path / "p.json", "--picture", tmp_path / "p.txt")
    assert ran.code == 2 and "name it .png or .svg" in ran.err and not list(tmp_path.iterdir())
