"""A request: a verb of the command line, its arguments, and the files that come along by the SHA-256 of their bytes.

{"wire": 1, "verb": "plan", "arguments": {"model": "zoo:gpt", "cluster": "local:2", "out": "plan.json"}, "files": {}, "columns": 120}

Nothing of it is a path of the server's host: names of files are relative and stay in the request's own folder, models are of the zoo or come along.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from planner.ir.errors import InvalidFile, Unsupported, Untrusted
from planner.ir.text import canonical, content_id
from regista.wire.roles import PROGRAMS, SERVED, Role, is_arguments, is_file

__all__ = ["WIRE_VERSION", "Argument", "Request", "parse_request", "with_folder"]

WIRE_VERSION = 1

_MOST_ARGUMENTS, _MOST_VALUES, _MOST_CHARACTERS, _MOST_FILES = 64, 256, 20_000, 64
_FIELDS = {"wire", "verb", "arguments", "files", "columns"}

Argument = str | bool | tuple[str, ...]
"""What was typed: a text, a flag, or several texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """arguments: by the name that the verb's parser gives them.   files: name in the arguments -> SHA-256 of the content, 64 hexadecimal digits.
    columns: width of the client's terminal; None: it has none.
    """

    verb: str
    arguments: Mapping[str, Argument] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    columns: int | None = None

    @property
    def content_id(self) -> str:
        return content_id(self.data())

    def data(self) -> dict[str, object]:
        """As it is sent."""
        arguments = {name: list(value) if isinstance(value, tuple) else value for name, value in self.arguments.items()}
        return {
            "wire": WIRE_VERSION,
            "verb": self.verb,
            "arguments": arguments,
            "files": dict(self.files),
            "columns": self.columns,
        }

    def text(self) -> str:
        return canonical(self.data())

    def texts(self) -> list[tuple[Role, str]]:
        """Every text of an argument with its role."""
        roles = SERVED[self.verb]
        pairs = ((roles[name], value) for name, value in self.arguments.items() if not isinstance(value, bool))
        return [(role, text) for role, value in pairs for text in ((value,) if isinstance(value, str) else value)]


def parse_request(data: object) -> Request:
    """A request from JSON data, checked field by field.

    Raises:
        Unsupported: another version, a verb or an argument that no server takes, or more than the limits.
        InvalidFile: a field of another type, or the name of a file that leads out of the request's folder.
        Untrusted: code by its path.
    """
    if not isinstance(data, dict) or not set(data) <= _FIELDS:
        raise InvalidFile(f"a request is one JSON object with the fields {', '.join(sorted(_FIELDS))}; see /openapi.json")
    if data.get("wire") != WIRE_VERSION:
        raise Unsupported(
            f"the client speaks version {str(data.get('wire'))[:20]!r} of the requests, this server version {WIRE_VERSION}; "
            "use the same regista on both sides"
        )
    verb = data.get("verb")
    if not isinstance(verb, str) or verb not in SERVED:
        raise Unsupported(f"a server performs no verb {str(verb)[:40]!r}; it performs {', '.join(SERVED)}")
    columns = data.get("columns")
    if columns is not None and (type(columns) is not int or not 20 <= columns <= 1000):
        raise InvalidFile(f"columns: a whole number from 20 to 1000, or null, is needed, not {str(columns)[:20]!r}")
    request = Request(
        verb=verb, arguments=_arguments(verb, data.get("arguments", {})), files=_files(data.get("files", {})), columns=columns
    )
    for role, text in request.texts():
        _check_text(request, role, text)
    return request


def _arguments(verb: str, data: object) -> dict[str, Argument]:
    if not isinstance(data, dict) or len(data) > _MOST_ARGUMENTS:
        raise InvalidFile(f"arguments: an object of at most {_MOST_ARGUMENTS} arguments is needed")
    arguments: dict[str, Argument] = {}
    for name, value in data.items():
        role = SERVED[verb].get(name)
        if role is None:
            raise Unsupported(f"'{verb}' of a server has no argument {name[:40]!r}; it has {', '.join(SERVED[verb])}")
        if role is Role.REFUSED:
            if value is False:
                continue
            raise Untrusted(
                f"{name} is not taken from a client: a server runs no code of files; leave it out, or run the verb without --server"
            )
        arguments[name] = _value(name, value)
    return arguments


def _value(name: str, value: object) -> Argument:
    values = value if isinstance(value, list) else [value]
    if isinstance(value, bool):
        return value
    if len(values) > _MOST_VALUES or not all(isinstance(one, str | int | float) and not isinstance(one, bool) for one in values):
        raise InvalidFile(f"arguments.{name}: a text, a number, true or false, or a list of at most {_MOST_VALUES} texts is needed")
    texts = tuple(str(one) for one in values)
    if any(len(text) > _MOST_CHARACTERS or "\0" in text for text in texts):
        raise InvalidFile(f"arguments.{name}: a text of at most {_MOST_CHARACTERS} characters without NUL is needed")
    return texts if isinstance(value, list) else texts[0]


def _files(data: object) -> dict[str, str]:
    if not isinstance(data, dict) or len(data) > _MOST_FILES:
        raise InvalidFile(f"files: an object of at most {_MOST_FILES} names and digests is needed")
    for name, digest in data.items():
        if not isinstance(digest, str) or not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise InvalidFile(f"files[{name[:60]!r}]: the SHA-256 of the file is needed, 64 hexadecimal digits, not {str(digest)[:20]!r}")
        if not name.endswith(PROGRAMS):
            _check_name(name)
        elif not name.isprintable() or len(name) > 1000 or len(name.rpartition("/")[2].encode()) > 200:
            raise InvalidFile(
                f"{name[:80]!r} is no name of a program's file: printable, at most 1000 characters; give the file a plain name"
            )
    return dict(data)


def _check_name(name: str) -> None:
    parts = name.split("/")
    odd = not name or len(name) > 400 or "\\" in name or not name.isprintable()
    if odd or any(part in ("", ".", "..") or part.startswith("-") or len(part) > 200 for part in parts) or len(parts) > 8:
        raise InvalidFile(
            f"{name[:80]!r} is no name of a request's file: it has to be relative, without '.', '..' or a '-' in front, at most 8 folders deep; "
            "give the file a plain name"
        )


def _check_text(request: Request, role: Role, text: str) -> None:
    if role is Role.OUTPUT:
        _check_name(text)
    elif role is Role.MODEL and not text.startswith("zoo:") and not text.endswith(PROGRAMS):
        raise Untrusted(
            f"the model {text[:80]!r} is no model that a server takes: it loads zoo:NAME, or a .pt2 or .mlir that is sent, and runs no code of files; "
            "export the module with torch.export"
        )
    elif role is Role.RATES and ".py" in text:
        raise Untrusted(
            f"the schedule {text[:80]!r} is code of a file, which a server does not run; write it as cosine:, linear:, step: or constant:"
        )
    elif role is Role.DATA and not text.startswith("synthetic:"):
        raise Unsupported(f"the data {text[:80]!r} are files of the client, which a server does not read; add the loading without --server")
    elif role is Role.JOB and text not in request.files and not is_arguments(text):
        raise InvalidFile(
            f"{text[:80]!r} is a file that has not come with the request, and no arguments (--flag value); name it under 'files' with its SHA-256"
        )
    elif role in (Role.VARIABLES, Role.INIT):
        _check_variables(role, text)
    if is_file(role, text) and text not in request.files:
        raise InvalidFile(f"{text[:80]!r} is a file that has not come with the request; name it under 'files' with its SHA-256")


def _check_variables(role: Role, text: str) -> None:
    name = text.removeprefix("checkpoint:") if role is Role.INIT else text
    if role is Role.INIT and not text.startswith("checkpoint:"):
        if text != "module" and not re.fullmatch(r"philox:[0-9]{1,18}", text):
            raise Unsupported(
                f"first values {text[:80]!r} are not taken by a server; it takes module, philox:SEED, or checkpoint:NAME of its own variables"
            )
    elif not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}(/step-[0-9]{1,12})?", name):
        raise InvalidFile(
            f"{name[:80]!r} is no name of variables that a server keeps: letters, digits, - and _, at most 64, and /step-N for one of their checkpoints"
        )


def with_folder(request: Request, folder: str) -> Request:
    """The request with paths in place of the names of variables, which lie in this folder of the server."""
    roles = SERVED[request.verb]

    def path(name: str, value: Argument) -> Argument:
        if not isinstance(value, str):
            return value
        match roles[name]:
            case Role.VARIABLES:
                return f"{folder}/{value}"
            case Role.INIT if value.startswith("checkpoint:"):
                return f"checkpoint:{folder}/{value.removeprefix('checkpoint:')}"
            case _:
                return value

    return replace(request, arguments={name: path(name, value) for name, value in request.arguments.items()})
