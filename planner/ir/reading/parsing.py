"""Texts -> data, within limits: nesting, the size of numbers, of cells."""

from __future__ import annotations

import csv
import io
import json
import math
import typing

from planner.ir.errors import InvalidFile

__all__ = ["MAX_DEPTH", "check_data", "parse_csv", "parse_json"]

MAX_DEPTH = 64
"""Levels of nesting that a file may have.  Ours have about 10; a thousand would end in Python's recursion limit instead of a message."""

MAX_CELL = 2**24
"""Characters of one cell of a CSV: csv's own limit (131,072) is met by texts of errors."""


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
