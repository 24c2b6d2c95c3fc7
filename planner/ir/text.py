"""Values <-> canonical JSON: one codec, driven by the type annotations of frozen dataclasses.

Canonical means: sorted keys, no spaces, shortest round-trip floats, no NaN.  Equal values have equal text, so the SHA-256 of the text is a
content id.  Decoding (planner.ir.reading.values) validates every field and says where a file breaks the schema; nothing is guessed, nothing
unknown is passed over.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import os
import tempfile
import typing
import uuid
from collections.abc import Container, Mapping
from enum import Enum
from pathlib import Path

from planner.ir.errors import InvalidFile
from planner.ir.graph import Dt, Ref
from planner.ir.reading import decode, field_types, read_json
from planner.ir.sbp import NdSbp

__all__ = ["canonical", "check_target", "content_id", "decode", "encode", "load_json", "number_or_text", "save_text"]

_ALWAYS = object()
"""Equal to no field's value: the field is always written."""

_PLAIN = frozenset({type(None), bool, int, str})

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


def encode(value: object) -> Json:
    """A frozen value as plain JSON data.  Members of a union of dataclasses carry their class name under ``is``."""
    # Records, tuples and plain data are what large values are made of, so they do not go through the match.
    kind = type(value)
    if kind in _PLAIN:
        return value  # type: ignore[return-value]
    if kind is tuple:
        return [item if type(item) in _PLAIN else encode(item) for item in value]  # type: ignore[attr-defined]
    if (fields := _record_fields(kind)) is not None:  # type: ignore[arg-type]
        data: dict[str, Json] = {"is": kind.__name__}
        for name, is_float, omitted in fields:
            item = getattr(value, name)
            if omitted is not _ALWAYS and item == omitted:
                continue
            # An int in a float field is the same value, so it must have the same text.
            data[name] = item if type(item) in _PLAIN and not is_float else encode(float(item) if is_float and type(item) is int else item)
        return data
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else {"float": repr(value)}
        case Enum():
            return typing.cast(str, value.value)
        case NdSbp():
            return str(value)
        case Ref():
            return {"ref": value.value}
        case Dt():
            return {"dtype": value.dtype.value}
        case tuple() | list():
            return [encode(item) for item in value]
        case Mapping():
            return {str(key): encode(item) for key, item in value.items()}
    raise TypeError(f"{kind.__name__} has no text form")


def canonical(value: object) -> str:
    """Canonical JSON text of a frozen value or of plain JSON data."""
    return json.dumps(encode(value), sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def content_id(value: object) -> str:
    """First 16 hex digits of the SHA-256 of the canonical text."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:16]


@functools.cache
def _record_fields(kind: type) -> tuple[tuple[str, bool, object], ...] | None:
    """The names of a dataclass' fields, whether they are floats, and which value is left out; None for what has a text of its own."""
    if not dataclasses.is_dataclass(kind) or issubclass(kind, int | str | float | Enum | NdSbp | Ref | Dt | tuple | list | Mapping):
        return None
    hints = field_types(kind)
    return tuple((f.name, hints[f.name] is float, f.default if "omitted" in f.metadata else _ALWAYS) for f in dataclasses.fields(kind))


def check_target(path: str | Path) -> Path:
    """The file that ``path`` means, if it can be written: asked before long work, not after it.

    Raises:
        InvalidFile: it is a folder or a device, or its folder does not exist or takes no file.
    """
    target = Path(path)
    try:
        if target.is_symlink():
            target = Path(os.path.realpath(target))  # else the rename would replace the link
        if target.is_dir():
            raise InvalidFile(f"cannot write {str(path) or repr('')}: it is a folder; give the name of a file")
        if target.exists() and not target.is_file():
            raise InvalidFile(f"cannot write {str(path) or repr('')}: it is not a regular file; give the name of a file")
        with tempfile.NamedTemporaryFile(dir=target.absolute().parent, prefix=".regista-"):
            return target
    except OSError as error:
        raise InvalidFile(f"cannot write {str(path) or repr('')}: {error.strerror}; give a path in an existing, writable folder") from error


def save_text(path: str | Path, text: str) -> None:
    """Write a file whole or not at all: a temporary neighbour, then an atomic rename.

    Raises:
        InvalidFile: see check_target; or the disk is full.
    """
    target = check_target(path)
    neighbour = target.with_name(f".regista-{uuid.uuid4().hex[:12]}.tmp")
    try:
        neighbour.write_text(text, encoding="utf-8")
        os.replace(neighbour, target)
    except OSError as error:
        raise InvalidFile(f"cannot write {str(path) or repr('')}: {error.strerror}; give a path in an existing, writable folder") from error
    finally:
        neighbour.unlink(missing_ok=True)


def load_json(path: str | Path, kind: str, version: int, *, older: Container[object] = ()) -> dict[str, object]:
    """Read one of our files and check its ``kind`` and ``version``.

    Args:
        older: versions that the caller brings up to date.

    Raises:
        InvalidFile: the file is missing, truncated, of another kind, or of another schema version.
    """
    source = Path(path)
    data = read_json(source, f"{_WRITTEN_BY.get(kind, 'regista')} writes one")
    if not isinstance(data, dict) or data.get("kind") != kind:
        actual_kind = _kind_of(data)
        raise InvalidFile(f"{source}: expected a regista {kind} file, found {actual_kind}; check the order of the arguments")
    if data.get("version") != version and data.get("version") not in older:
        raise InvalidFile(
            f"{source}: schema version {data.get('version')!r}, but this regista reads {kind} version {version}; write the file anew with this regista"
        )
    return data


_WRITTEN_BY = {
    "plan": "'regista plan MODEL --cluster C -o FILE'",
    "trace": "'regista simulate PLAN -o FILE' or 'regista run PLAN -o FILE'",
    "cost": "'regista calibrate PLAN -o FILE'",
    "kernels": "'regista calibrate --device D -o FILE'",
}


def kind_of_file(path: str | Path) -> str:
    """What kind of file of ours it is, as far as can be told; ``load_json`` then says what is wrong with it."""
    try:
        data = read_json(Path(path), "")
    except InvalidFile:
        return ""
    return str(data.get("kind", "")) if isinstance(data, dict) else ""


def _kind_of(data: object) -> str:
    kind = data.get("kind") if isinstance(data, dict) else None
    return repr(kind) if kind in ("plan", "trace", "cost", "kernels") else "JSON of another program"


def number_or_text(text: str) -> int | float | str:
    """A whole number, a number, or else the text itself."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
