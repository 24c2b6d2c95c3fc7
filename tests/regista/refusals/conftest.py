"""Fixtures of the refusals: the command line, and files that it wrote once."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import TINY, Command, commands

from regista import cli


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return commands(capsys)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One small plan, a pipeline, and traces of both, made once."""
    folder = tmp_path_factory.mktemp("made")
    paths = {name: folder / f"{name}.json" for name in ("plan", "pipe", "sim", "run", "pipesim")}
    for arguments in (
        ["plan", TINY, "--cluster", "local:2", "-o", paths["plan"]],
        ["plan", TINY, "--cluster", "local:2", "--stages", "2", "--micro-batches", "4", "-o", paths["pipe"]],
        ["simulate", paths["plan"], "-o", paths["sim"]],
        ["simulate", paths["pipe"], "-o", paths["pipesim"]],
        ["run", paths["plan"], "--performer", "reference", "--steps", "3", "-o", paths["run"]],
    ):
        assert cli.main([*map(str, arguments), "--json"]) == 0
    return paths
