"""The law of refusal as a check: exit code 2, one message that says what, where and the way out, no traceback, no half-written file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from command_line import Command, files_of


def assert_refused(command: Command, folder: Path, *arguments: object, says: str = "") -> str:
    """Run twice, with and without --json, prove the law, and return the message."""
    before = files_of(folder)
    plain, machine = command(*arguments), command(*arguments, "--json")
    for ran in (plain, machine):
        assert ran.code == 2, ran
        # Warnings come first, then the one message.
        message = re.sub(r"^(warning: .*\n)*", "", ran.err)
        assert message.startswith("regista"), ran.err
        assert "Traceback" not in ran.err and 'File "' not in ran.err
    assert plain.out == ""
    assert set(machine.json) == {"error"}
    assert set(machine.json["error"]) == {"type", "message"}
    assert machine.json["error"]["message"] in machine.err
    assert files_of(folder) == before
    assert re.search(says, plain.err), plain.err
    return plain.err


def edited(path: Path, target: Path, edit: Any) -> Path:
    """A copy of a JSON file after ``edit(data)``."""
    data = json.loads(path.read_text())
    edit(data)
    target.write_text(json.dumps(data))
    return target
