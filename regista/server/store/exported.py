"""Exported programs from strangers: torch's loader runs what some of their fields say, so those fields are checked before it reads one.

targets of nodes      getattr from torch on, and called      -> ops of aten, prims, higher-order and regista; a few of ``operator``
symbolic extents      sympy's eval                           -> refused: steps that are planned have fixed extents
enums in treespecs    an import of any module                -> refused
guards                Python                                 -> comparisons of extents and types alone
pickled tensors       torch.load, unrestricted if need be    -> the names that tensors need; custom objects refused
"""

from __future__ import annotations

import json
import pickletools
import re
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

from planner.ir.errors import InvalidFile, Untrusted
from planner.ir.reading.parsing import parse_json
from planner.ir.units import GIB, MIB

__all__ = ["check_exported"]

_MOST_MEMBERS, _MOST_BYTES, _MOST_JSON = 20_000, 8 * GIB, 256 * MIB
_TARGET = re.compile(
    r"torch\.ops\.(aten|prims|higher_order|regista|_c10d_functional)\.\w+(\.\w+)?|_operator\.(getitem|add|sub|mul|truediv|floordiv|mod|neg|pow|eq|ne|lt|le|gt|ge)"
)
_GUARD = re.compile(r"(?!.*__)(?!.*\blambda\b)[\w\s\[\]().'\"=<>!,%*+/-]*")
_GLOBALS = re.compile(
    r"collections OrderedDict|torch \w+Storage|torch\._utils _rebuild_(tensor_v2|parameter|parameter_with_state)|torch (Size|device|float16|"
    r"bfloat16|float32|float64|int8|int16|int32|int64|uint8|bool)|torch\.storage UntypedStorage|torch\.serialization _get_layout"
)
_CUSTOM = {"custom_obj", "opaque"}


def check_exported(path: Path) -> None:
    """Refuse an archive that is no exported program, or one that is more than ops and tensors.

    Raises:
        InvalidFile: no exported program, damaged, or beyond the limits.   Untrusted: it could run code.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            if len(members) > _MOST_MEMBERS or sum(member.file_size for member in members) > _MOST_BYTES:
                raise InvalidFile(
                    f"the .pt2 holds more than {_MOST_MEMBERS} members or unpacks to more than {_MOST_BYTES} bytes; send a smaller program"
                )
            if not any(re.fullmatch(r"[^/]+/models/[^/]+\.json", member.filename) for member in members):
                raise InvalidFile("the upload is an archive without the models/*.json of a .pt2; write it with torch.export.save")
            for member in members:
                _check_member(archive, member)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise InvalidFile(f"the .pt2 is damaged ({error}); send it again") from None


def _check_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    name = member.filename
    if ".." in name.split("/") or name.startswith("/") or "\\" in name:
        raise InvalidFile(f"the .pt2 holds a member {name[:60]!r} whose name leads out of it; write it with torch.export.save")
    if name.endswith(".json"):
        if member.file_size > _MOST_JSON:
            raise InvalidFile(f"{name} of the .pt2 has {member.file_size} bytes, more than the {_MOST_JSON} that are read")
        _check_json(name, parse_json(archive.read(member).decode("utf-8", "replace")))
    elif name.endswith((".py", ".so", ".pkl", ".cpp")) or "/aotinductor/" in name:
        raise Untrusted(f"the .pt2 holds {name[:80]!r}, which is code; a server takes exported programs of ops and tensors alone")
    elif not re.search(r"/data/(weights|constants)/(weight|tensor)_\d+$", name):
        _check_pickles(name, archive.read(member) if member.file_size <= _MOST_JSON else b"", member.file_size)


def _check_json(name: str, data: object) -> None:
    for key, value in _fields(data):
        if key == "target" and (not isinstance(value, str) or not _TARGET.fullmatch(value)):
            raise Untrusted(f"{name} of the .pt2 calls {str(value)[:60]!r}, which is no op of aten; a server takes ops and tensors alone")
        if key in ("expr_str", "as_expr"):
            raise InvalidFile(f"{name} of the .pt2 has symbolic extents ({str(value)[:40]}); export it with fixed shapes")
        if (key == "__enum__" or (isinstance(value, str) and "__enum__" in value)) or (key.startswith("as_") and key[3:] in _CUSTOM):
            raise Untrusted(f"{name} of the .pt2 holds an object of a class of its own ({key}), which is code; export tensors alone")
        if key == "use_pickle" and value is not False:
            raise Untrusted(f"{name} of the .pt2 pickles its tensors, which a server does not read; export plain dense tensors")
        if key == "guards_code" and not all(_GUARD.fullmatch(str(line)) for line in (value if isinstance(value, list) else [value])):
            raise Untrusted(f"{name} of the .pt2 has guards that are more than comparisons; export it anew with torch.export")


def _fields(data: object) -> Iterator[tuple[str, object]]:
    waiting = [data]
    while waiting:
        match waiting.pop():
            case dict() as entries:
                for key, value in entries.items():
                    yield str(key), value
                    waiting.append(value)
            case list() as entries:
                waiting += entries
            case _:
                pass


def _check_pickles(name: str, data: bytes, size_bytes: int) -> None:
    """What torch.save has written: an archive with a data.pkl, or a bare pickle; short texts of the archive itself pass."""
    if size_bytes > _MOST_JSON:
        raise InvalidFile(f"{name} of the .pt2 has {size_bytes} bytes, more than the {_MOST_JSON} that are read")
    if data.startswith(b"PK"):
        with zipfile.ZipFile(BytesIO(data)) as inner:
            if sum(member.file_size for member in inner.infolist()) > _MOST_JSON:
                raise InvalidFile(f"{name} of the .pt2 unpacks to more than {_MOST_JSON} bytes; export smaller example inputs")
            for member in inner.namelist():
                if member.endswith(".pkl"):
                    _check_pickle(name, inner.read(member))
    elif data[:1] == b"\x80":
        _check_pickle(name, data)
    elif size_bytes > 4096 or not data.isascii():
        raise Untrusted(f"the .pt2 holds {name[:80]!r}, which torch.export does not write; write it anew with torch.export.save")


def _check_pickle(name: str, data: bytes) -> None:
    try:
        for opcode, argument, _ in pickletools.genops(data):
            forbidden = opcode.name in ("STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4", "BYTEARRAY8")
            if forbidden or (opcode.name == "GLOBAL" and not _GLOBALS.fullmatch(str(argument))):
                raise Untrusted(
                    f"{name} of the .pt2 pickles {str(argument or opcode.name)[:60]!r}, which is no tensor; export tensors alone"
                )
    except (ValueError, IndexError, json.JSONDecodeError) as error:
        if isinstance(error, Untrusted):
            raise
        raise InvalidFile(f"{name} of the .pt2 is damaged ({error}); write it anew with torch.export.save") from None
