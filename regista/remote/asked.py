"""What was typed as a request: files of the arguments are named by their content, and names that lead elsewhere get a plain one on the server."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from planner.ir.errors import InvalidFile, Unsupported
from planner.ir.text import check_target
from regista.targets import check_targets
from regista.verbs.parsing import typed_of
from regista.wire import SERVED, Request, Role, parse_request
from regista.wire.roles import PROGRAMS, is_file

__all__ = ["Asked", "asked_of"]

_MOST_JOB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """sent: SHA-256 -> the file here.   left: name on the server -> the name here, for those that differ."""

    request: Request
    sent: Mapping[str, Path]
    left: Mapping[str, str]

    def local_name(self, name: str) -> str:
        """What a file that the verb has left is called here.

        Raises:
            InvalidFile: the request writes no such file, so the server would choose where to write on this machine.
        """
        written = [text for role, text in self.request.texts() if role is Role.OUTPUT]
        if ".." in name.split("/") or not any(name == text or name.startswith(f"{text}/") for text in written):
            raise InvalidFile(
                f"the server sends a file {name[:80]!r}, which '{self.request.verb}' was not asked to write; nothing is written"
            )
        for theirs, ours in self.left.items():
            if name == theirs or name.startswith(f"{theirs}/"):
                return ours + name[len(theirs) :]
        return name

    def local_text(self, text: str) -> str:
        """What the verb printed, with the names that were typed."""
        for theirs, ours in self.left.items():
            text = text.replace(theirs, ours)
        return text


def asked_of(verb: str, argv: Sequence[str], columns: int | None = None) -> Asked:
    """The request for what was typed.

    Raises:
        Unsupported: a verb that servers do not perform.   Usage: arguments that the verb does not understand.
        InvalidFile: a file that is not there, or a name that cannot be written.   Untrusted: code by its path.
    """
    if verb not in SERVED:
        raise Unsupported(f"a server does not perform '{verb}'; it performs {', '.join(SERVED)}; leave --server out")
    typed, roles = typed_of(verb, argv), SERVED[verb]
    gathering = _Gathering()
    arguments: dict[str, object] = {}
    for name, value in typed.items():
        role = roles.get(name, Role.REFUSED)
        if isinstance(value, bool):
            arguments[name] = value
        else:
            texts = [gathering.renamed(role, text) for text in ([value] if isinstance(value, str) else value)]
            arguments[name] = texts[0] if isinstance(value, str) else texts
    check_targets(gathering.outputs, [str(path) for path in gathering.sent.values()])
    data = {"wire": 1, "verb": verb, "arguments": arguments, "files": gathering.files, "columns": columns}
    return Asked(request=parse_request(data), sent=gathering.sent, left=gathering.left)


class _Gathering:
    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.sent: dict[str, Path] = {}
        self.left: dict[str, str] = {}
        self.outputs: list[str] = []

    def renamed(self, role: Role, text: str) -> str:
        """The name on the server of what an argument names, which is noted down."""
        if role is Role.OUTPUT:
            check_target(text)
            self.outputs.append(text)
            return self._plain(text, "left")
        source = Path(text)
        if not is_file(role, text) and not (role is Role.JOB and len(text) < 4096 and source.is_file()):
            return text
        if source.is_dir():
            raise InvalidFile(f"{text} is a folder, which is not sent to a server; give files, or leave --server out")
        if not source.is_file():
            raise InvalidFile(f"{text} does not exist or is no regular file; give the name of a file")
        name = text if text.endswith(PROGRAMS) else self._plain(text, "given")
        self._add(name, source)
        if role is Role.INPUT and (model := _model_of(source)) is not None and Path(model).is_file():
            self._add(model, Path(model))
        if role is Role.INPUT and (cluster := _cluster_of(source)) is not None and Path(cluster).is_file():
            self._add(cluster, Path(cluster))
        return name

    def _plain(self, text: str, folder: str) -> str:
        parts = text.split("/")
        if not text.startswith("/") and not {"", ".", ".."} & set(parts) and not any(part.startswith("-") for part in parts):
            return text
        known = next((theirs for theirs, ours in self.left.items() if ours == text), None)
        name = known or f"{folder}/{len(self.left)}/{os.path.basename(os.path.normpath(text)).lstrip('-') or 'file'}"
        self.left[name] = text
        return name

    def _add(self, name: str, source: Path) -> None:
        from hashlib import file_digest

        with source.open("rb") as file:
            digest = file_digest(file, "sha256").hexdigest()
        self.files[name], self.sent[digest] = digest, source


def _model_of(source: Path) -> str | None:
    """The exported program that a Plan or a trace names, which the server needs besides; None: it names none."""
    import json
    import re

    text = source.read_bytes()
    found = re.search(rb'"model":("(?:[^"\\]|\\.){1,4000}\.(?:pt2|mlir)")', text)
    return None if found is None else str(json.loads(found[1]))


def _cluster_of(source: Path) -> str | None:
    """The file of a cluster that a job's TOML names; None: it names none, or is no TOML, which the verb will say."""
    import tomllib

    if source.suffix != ".toml" or source.stat().st_size > _MOST_JOB:
        return None
    try:
        cluster = tomllib.loads(source.read_text(encoding="utf-8")).get("cluster")
    except ValueError:
        return None
    name = cluster.get("name") if isinstance(cluster, dict) else None
    return name if isinstance(name, str) and name.endswith(".toml") else None
