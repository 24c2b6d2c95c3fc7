"""Readers of files that anybody may have written: text, JSON, TOML and CSV, each within limits, each refused in one sentence.

The limits are met before anything is built from a file: its size, its levels of nesting, the size of its numbers, its encoding.
"""

from __future__ import annotations

import csv
import io
import json
import math
import tomllib
import typing
from pathlib import Path

from planner.ir.errors import InvalidFile

__all__ = ["MAX_BYTES", "MAX_DEPTH", "check_data", "parse_csv", "parse_json", "read_csv", "read_json", "read_text", "read_toml"]

MAX_BYTES = 2 * 1024**3
"""The largest file that is read whole.  The Plan of a thousand GPUs has some 20 MB; a device file such as /dev/zero has no end."""

MAX_DEPTH = 64
"""Levels of nesting that a file may have.  Ours have about 10; a thousand would end in Python's recursion limit instead of a message."""

MAX_CELL = 2**24
"""Characters of one cell of a CSV: csv's own limit (131,072) is met by texts of errors."""


def read_text(path: str | Path, way_out: str, *, max_bytes: int = MAX_BYTES) -> str:
    """The text of a file in UTF-8.

    Args:
        way_out: the end of the messages: "give a cluster (TOML)", or who writes one.

    Raises:
        InvalidFile: no such file, not readable, larger than ``max_bytes``, or not UTF-8.
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
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidFile(f"{source}: cannot be read as text, byte {error.start} is no UTF-8; {way_out}") from None


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


def parse_json(text: str) -> object:
    """The data of a JSON text.

    Raises:
        InvalidFile: not JSON, nested too deep, a number that fits neither 64 bits nor a float, or half a surrogate pair.
    """
    try:
        data: object = json.loads(text, parse_int=_parse_int, parse_float=_parse_float, parse_constant=_parse_constant)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InvalidFile(f"not valid JSON ({error})") from None
    check_data(data, surrogates="\\ud" in text.lower())
    return data


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


def read_csv(path: str | Path, way_out: str) -> list[list[str]]:
    """The lines of a CSV file, each as its cells; empty lines as empty lists.

    Raises:
        InvalidFile: see read_text and parse_csv.
    """
    text = read_text(path, way_out)
    try:
        return parse_csv(text)
    except InvalidFile as error:
        raise InvalidFile(f"{path}: {error}; {way_out}") from None


def parse_csv(text: str) -> list[list[str]]:
    """The lines of a CSV text, each as its cells.

    Raises:
        InvalidFile: a NUL, a quote that does not end, or a cell beyond MAX_CELL.
    """
    before = csv.field_size_limit(MAX_CELL)
    try:
        if "\0" in text:
            raise csv.Error("it holds a NUL")
        return list(csv.reader(io.StringIO(text, newline="")))
    except csv.Error as error:
        raise InvalidFile(f"cannot be read as CSV ({error})") from None
    finally:
        csv.field_size_limit(before)


def check_data(data: object, *, integers: bool = False, surrogates: bool = False) -> None:
    """Refuse parsed data that is nested too deep.

    Raises:
        InvalidFile: see above; with ``integers`` also whole numbers beyond 64 bits, with ``surrogates`` half a surrogate pair, which no file
            and no hash can take.
    """
    level, depth = [data], 0
    while level:
        for item in level if integers else ():
            if isinstance(item, int) and not -(2**63) <= item < 2**63:
                raise InvalidFile(
                    f"the number {str(item)[:20] if abs(item) < 10**4000 else 'of thousands of digits'} does not fit into 64 bits"
                )
        level = [inner for item in level if isinstance(item, list | dict) for inner in (item if isinstance(item, list) else item.values())]
        depth += 1
        if depth > MAX_DEPTH + 1:
            raise InvalidFile(f"nested deeper than {MAX_DEPTH} levels")
    if surrogates:
        try:
            json.dumps(data, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise InvalidFile("cannot be read as text (a name holds half a surrogate pair)") from None


def _parse_int(digits: str) -> int:
    if len(digits) > 20 or not -(2**63) <= int(digits) < 2**63:
        raise InvalidFile(f"the number {digits[:20]}{'...' if len(digits) > 20 else ''} does not fit into 64 bits")
    return int(digits)


def _parse_float(digits: str) -> float:
    if not math.isfinite(float(digits)):
        raise InvalidFile(f"the number {digits[:20]} is too large for a float")
    return float(digits)


def _parse_constant(name: str) -> typing.NoReturn:
    raise InvalidFile(f"{name} is not JSON; regista's files have finite numbers")
