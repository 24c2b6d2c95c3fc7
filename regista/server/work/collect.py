"""What a verb has left in its folder: the outcome that its process wrote, and its files, which go to the store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from planner.ir.errors import InvalidFile
from planner.ir.reading import read_json
from regista.server.store import FileStore
from regista.server.store.files import digest_of
from regista.wire import Outcome, Request, State
from regista.wire.result import outcome_of

__all__ = ["collected"]

_MOST_FILES = 4096


def collected(request: Request, work: Path, files: FileStore) -> Outcome:
    """The outcome of a request that has ended, with its files in the store; regular files alone, no links, none of those that came along."""
    try:
        data = read_json(work / "outcome.json", "the process of a request writes one")
        assert isinstance(data, dict)
        outcome, left, folder = outcome_of(data), {}, work / "cwd"
        for path in sorted(folder.rglob("*"))[:_MOST_FILES]:
            name = path.relative_to(folder).as_posix()
            if path.is_symlink() or not path.is_file() or (name in request.files and digest_of(path) == request.files[name]):
                continue
            left[name] = files.take(path)
        return replace(outcome, files=left)
    except (OSError, InvalidFile) as error:
        return Outcome(state=State.FAILED, code=1, error="InvalidFile", message=f"what '{request.verb}' has left cannot be read: {error}")
