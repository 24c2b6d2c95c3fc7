"""The command line inside this process, and the small programs that its tests hand to it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from regista.cli import main

TINY = "zoo:mlp?batch=8&width=16&hidden=16&depth=2"

CLUSTER = """schema = 1
name = "small"
source = "tests"
[device]
kind = "cpu"
memory_GB = 8.0
compute_GFLOPs = 90.0
memory_bandwidth_GBps = 10.0
[topology]
nodes = 1
devices_per_node = 2
[links.node]
latency_us = 200.0
bandwidth_GBps = 1.2
"""


@dataclass(frozen=True)
class Ran:
    """What one command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """All of stdout is one JSON document."""
        return json.loads(self.out)


Command = Callable[..., Ran]


def commands(capsys: pytest.CaptureFixture[str]) -> Command:
    """``command("plan", model, "-o", path)`` runs one command line."""

    def command(*arguments: object) -> Ran:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return command


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file of the folder with its content, hidden ones too."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
