"""Exported programs from strangers: torch's loader runs what some of their fields say, so those fields are checked before it reads one.

targets of nodes      getattr from torch on, and called      -> ops of aten, prims, higher-order and regista; a few of ``operator``
symbolic extents      sympy's eval                           -> refused: steps that are planned have fixed extents
enums in treespecs    an import of any module                -> refused
guards                Python                                 -> comparisons of extents and types alone
pickled tensors       torch.load, unrestricted if need be    -> the names that tensors need; custom objects and older formats refused
other members         models by any name, pickles by any     -> refused: the names that torch.export writes, and no others
"""

from __future__ import annotations

import json
import pickletools
import re
import zipfile
import zlib
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

from planner.ir.errors import InvalidFile, Untrusted
from planner.ir.reading.parsing import parse_json
from planner.ir.units import GIB, MIB
from regista.server.store.archives import members_of

__all__ = ["check_exported"]

_MOST_MEMBERS, _MOST_BYTES, _MOST_JSON = 20_000, 8 * GIB, 64 * MIB
_TARGET = re.compile(
    r"torch\.ops\.(aten\.(?!save\b|from_file\b|_print\b|warn\b)|prims\.|regista\.|_c10d_functional\.|higher_order\.(wrap_with_(set_grad_enabled|autocast)|"
    r"cond|while_loop|scan|map_impl|flex_attention)$)(\w+(\.\w+)?)?|_operator\.(getitem|add|sub|mul|truediv|floordiv|mod|neg|pow|eq|ne|lt|le|gt|ge)"
)
_GUARD = re.compile(r"(?!.*__)(?!.*\blambda\b)[\w\s\[\]().'\"=<>!,%*+/-]*")
_GLOBALS = re.compile(
    r"collections OrderedDict|torch \w+Storage|torch\._utils _rebuild_(tensor_v2|parameter|parameter_with_state)|torch (Size|device|float16|"
    r"bfloat16|float32|float64|int8|int16|int32|int64|uint8|bool)|torch\.storage UntypedStorage|torch\.serialization _get_layout"
)
_CUSTOM = {"custom_obj", "opaque"}
_JSON = re.compile(r"models/\w+\.json|data/(weights|constants)/\w+_(weights|constants)_config\.json")
_TENSOR = re.compile(r"data/(weights/weight|constants/tensor)_\d+")
_INPUTS = re.compile(r"data/sample_inputs/\w+\.pt")
_ABOUT = re.compile(
    r"archive_format|archive_version|(\.data/)?version|byteorder|\.data/serialization_id|\.format_version|\.storage_alignment"
)


def check_exported(path: Path) -> None:
    """Refuse an archive that is no exported program, or one that is more than ops and tensors.

    Every member has to be of a form that torch.export writes: torch also loads members of other names, pickles of older formats among them.

    Raises:
        InvalidFile: no exported program, damaged, or beyond the limits.   Untrusted: it could run code.
    """
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            members = members_of(file, archive, "the .pt2", most=_MOST_MEMBERS, most_bytes=_MOST_BYTES)
            for member in members:
                if ".." in member.filename.split("/") or member.filename.startswith("/") or "\\" in member.filename:
                    raise InvalidFile(
                        f"the .pt2 holds a member {member.filename[:60]!r} whose name leads out of it; write it with torch.export.save"
                    )
            if not any(re.fullmatch(r"[^/]+/models/[^/]+\.json", member.filename) for member in members):
                raise InvalidFile("the upload is an archive without the models/*.json of a .pt2; write it with torch.export.save")
            for member in members:
                _check_member(archive, member)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, zlib.error) as error:
        raise InvalidFile(f"the .pt2 is damaged ({error}); send it again") from None


def _check_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    name = member.filename
    inner = name.partition("/")[2]
    if _TENSOR.fullmatch(inner):
        return
    if member.file_size > _MOST_JSON:
        raise InvalidFile(
            f"{name} of the .pt2 has {member.file_size} bytes, more than the {_MOST_JSON} that are read; send a smaller program"
        )
    if _JSON.fullmatch(inner):
        _check_json(name, parse_json(archive.read(member).decode("utf-8", "replace")))
    elif _INPUTS.fullmatch(inner):
        _check_saved(name, archive.read(member))
    elif not (_ABOUT.fullmatch(inner) and member.file_size <= 100):
        code = name.endswith((".py", ".so", ".pkl", ".cpp")) or "/aotinductor/" in name
        what = "which is code" if code else "which is no tensor" if "/constants/" in name else "which torch.export does not write"
        raise Untrusted(f"the .pt2 holds {name[:80]!r}, {what}; a server takes exported programs of ops and tensors alone")


def _check_json(name: str, data: object) -> None:
    for key, value in _fields(data):
        if key in ("target", "as_operator") and (not isinstance(value, str) or not _TARGET.fullmatch(value)):
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


def _check_saved(name: str, data: bytes) -> None:
    """What torch.save has written: an archive with one data.pkl and its storages.  Its older formats are bare pickles, which torch reads, too."""
    if data and not data.startswith(b"PK\3\4"):
        raise Untrusted(f"{name} of the .pt2 is no archive of torch.save, so what it pickles is no tensor; export it with this torch")
    if not data:
        return  # none were exported
    with BytesIO(data) as file, zipfile.ZipFile(file) as archive:
        for member in members_of(file, archive, f"{name} of the .pt2", most=_MOST_MEMBERS, most_bytes=_MOST_JSON):
            inner = member.filename.partition("/")[2]
            if inner == "data.pkl":
                _check_pickle(name, archive.read(member))
            elif not re.fullmatch(r"data/\d+", inner) and not _ABOUT.fullmatch(inner):
                raise Untrusted(f"{name} of the .pt2 holds {member.filename[:60]!r}, which is no tensor; export tensors alone")


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
