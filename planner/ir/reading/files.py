"""Files -> data: what cannot be opened, is too large or no text is refused before it is parsed."""

from __future__ import annotations

import tomllib
import typing
from pathlib import Path

from planner.ir.errors import InvalidFile
from planner.ir.reading.parsing import MAX_DEPTH, check_data, parse_csv, parse_json

__all__ = ["MAX_BYTES", "read_bytes", "read_csv", "read_json", "read_text", "read_toml"]

MAX_BYTES = 2 * 1024**3
"""The largest file that is read whole.  The Plan of a thousand GPUs has some 20 MB; a device file such as /dev/zero has no end."""


def read_bytes(path: str | Path, way_out: str, *, max_bytes: int = MAX_BYTES) -> bytes:
    """What a file holds.

    Args:
        way_out: the end of the messages: "give a cluster (TOML)", or who writes one.

    Raises:
        InvalidFile: no such file, not readable, or larger than ``max_bytes``.
    """
    source = Path(path)
    try:
        if source.is_char_device() or source.is_block_device():
            raise InvalidFile(f"{source}: cannot be read as text (a device); {way_out}")
        with source.open("rb") as file:
            data = file.read(max_bytes + 1)
    except FileNotFoundError:
        raise InvalidFile(f"{source}: no such file; {way_out}") from None
    except (OSError, ValueError) as error:  # a NUL in the name is a ValueError
        raise InvalidFile(f"{source}: cannot be read ({getattr(error, 'strerror', None) or error}); {way_out}") from None
    if len(data) > max_bytes:
        raise InvalidFile(f"{source}: larger than the {max_bytes} bytes that are read; {way_out}")
    return data


def read_text(path: str | Path, way_out: str, *, max_bytes: int = MAX_BYTES) -> str:
    """The text of a file in UTF-8.

    Raises:
        InvalidFile: see read_bytes; or not UTF-8.
    """
    data = read_bytes(path, way_out, max_bytes=max_bytes)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidFile(f"{path}: cannot be read as text, {_place(data, error.start)} is no UTF-8; {way_out}") from None


def _place(data: bytes, at: int) -> str:
    """Where a byte of a text is, counted from 1 as editors do."""
    before = data[:at]
    begin = before.rfind(b"\n") + 1
    line, column = before.count(b"\n") + 1, len(before[begin:].decode("utf-8", errors="replace")) + 1
    return f"byte 0x{data[at]:02x} in line {line}, column {column}"


def read_json(path: str | Path, way_out: str) -> object:
    """The data of a JSON file.

    Raises:
        InvalidFile: see read_text and parse_json.
    """
    text = read_text(path, way_out)
    try:
        return parse_json(text)
    except InvalidFile as error:
        raise InvalidFile(f"{path}: {error}; the file is empty, truncated or damaged, write it anew") from None


def read_toml(path: str | Path, way_out: str) -> dict[str, typing.Any]:
    """The data of a TOML file.

    Raises:
        InvalidFile: see read_text; not TOML, nested too deep, or a number that fits neither 64 bits nor a float.
    """
    text = read_text(path, way_out)
    try:
        data = tomllib.loads(text)
        check_data(data, integers=True)
    except RecursionError:
        raise InvalidFile(f"{path}: not a readable TOML file (nested deeper than {MAX_DEPTH} levels); {way_out}") from None
    except InvalidFile as error:
        raise InvalidFile(f"{path}: {error}; {way_out}") from None
    except ValueError as error:  # numbers of 5,000 digits are a plain ValueError
        raise InvalidFile(f"{path}: not a readable TOML file ({error}); {way_out}") from None
    return data


def read_csv(path: str | Path, way_out: str, *, keep_damaged: bool = False) -> list[list[str]]:
    """The lines of a CSV file, each as its cells; empty lines as empty lists.

    Args:
        keep_damaged: a byte that is no UTF-8 stays in its cell as half a surrogate pair (PEP 383), for the caller to refuse that line alone.

    Raises:
        InvalidFile: see read_text and parse_csv.
    """
    text = read_bytes(path, way_out).decode("utf-8", errors="surrogateescape") if keep_damaged else read_text(path, way_out)
    try:
        return parse_csv(text)
    except InvalidFile as error:
        raise InvalidFile(f"{path}: {error}; {way_out}") from None
