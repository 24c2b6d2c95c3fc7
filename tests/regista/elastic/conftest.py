"""The command line, for refusals; and launchers of elastic runs, each a process as on a host of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Command, commands
from elastic_launchers import Launchers


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return commands(capsys)


@pytest.fixture
def launchers(tmp_path: Path) -> Iterator[Launchers]:
    started = Launchers(tmp_path)
    try:
        yield started
    finally:
        started.end()
