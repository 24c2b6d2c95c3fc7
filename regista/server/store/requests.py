"""Requests on disk: what was asked is written before it is answered with an id, so a server that starts again goes on with what has not ended.

requests/ID/request.json   as it was sent           requests/ID/outcome.json   once it has ended
requests/ID/work/          while it is performed    requests/ID/files/         links to the files of the store that it uses
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

from planner.ir.errors import InvalidFile
from planner.ir.reading import read_json
from planner.ir.text import canonical
from regista.server.store.files import FileStore
from regista.verbs.screen import finite
from regista.wire import Outcome, Request, parse_request
from regista.wire.result import outcome_of

__all__ = ["RequestStore", "is_id"]

_OURS = "the server writes them; remove the request's folder"


def is_id(text: str) -> bool:
    """Whether this is an id of a request: 32 hexadecimal digits."""
    return re.fullmatch(r"[0-9a-f]{32}", text) is not None


class RequestStore:
    """The requests of a folder.  Raises OSError where the disk does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def work(self, request_id: str) -> Path:
        """Where the request is performed."""
        return self.folder / request_id / "work"

    def add(self, request_id: str, request: Request, files: FileStore) -> None:
        folder = self.folder / request_id
        folder.mkdir(mode=0o700)
        try:
            self._hold(request_id, request.files.values(), files)
            _write(folder / "request.json", request.text())
        except Exception:
            shutil.rmtree(folder, ignore_errors=True)  # half a request would be listed for ever
            raise

    def _hold(self, request_id: str, digests: Iterable[str], files: FileStore) -> None:
        folder = self.folder / request_id / "files"
        folder.mkdir(mode=0o700, exist_ok=True)
        for digest in set(digests):
            if not (folder / digest).exists():
                os.link(files.path(digest), folder / digest)

    def end(self, request_id: str, outcome: Outcome, files: FileStore) -> None:
        self._hold(request_id, outcome.files.values(), files)
        _write(self.folder / request_id / "outcome.json", canonical(finite(outcome.data())))
        shutil.rmtree(self.work(request_id), ignore_errors=True)

    def request(self, request_id: str) -> Request | None:
        """None: there is no such request."""
        path = self.folder / request_id / "request.json"
        return parse_request(read_json(path, _OURS)) if is_id(request_id) and path.is_file() else None

    def outcome(self, request_id: str) -> Outcome | None:
        """None: it has not ended."""
        path = self.folder / request_id / "outcome.json"
        if not is_id(request_id) or not path.is_file():
            return None
        data = read_json(path, _OURS)
        if not isinstance(data, dict):
            raise InvalidFile(f"{path} is no outcome of a request; {_OURS}")
        return outcome_of(data)

    def newest(self) -> list[str]:
        """All ids, the newest first."""
        entries = [(entry.stat().st_mtime_ns, entry.name) for entry in os.scandir(self.folder) if is_id(entry.name)]
        return [name for _, name in sorted(entries, reverse=True)]

    def open_ones(self) -> Iterator[tuple[str, Request]]:
        """Those that have not ended, the oldest first; what a crash has left unreadable is removed."""
        for request_id in reversed(self.newest()):
            if (self.folder / request_id / "outcome.json").is_file():
                continue
            try:
                request = self.request(request_id)
            except ValueError:
                request = None
            if request is None:
                self.remove(request_id)
            else:
                yield request_id, request

    def remove(self, request_id: str) -> None:
        shutil.rmtree(self.folder / request_id, ignore_errors=True)


def _write(path: Path, text: str) -> None:
    neighbour = path.with_name(f".{uuid.uuid4().hex}.tmp")
    with neighbour.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(neighbour, path)
