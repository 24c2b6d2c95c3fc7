"""Cells of a row of text: numbers, truth and absence, with refusals that name the column."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

from planner.ir.errors import InvalidFile

__all__ = ["Row", "count", "given", "truth"]

Row = Mapping[str, str]
_ABSENT = ("", "na", "n/a", "none", "null")


def given(row: Row, name: str) -> bool:
    """Whether a cell says something.

    Raises:
        InvalidFile: it says nan, which is what a program writes whose number went wrong, and no word for a default.
    """
    text = (row.get(name) or "").strip().lower()
    if text == "nan":
        raise InvalidFile(f"{name} = nan; a number is needed, or an empty cell where the default is meant")
    return text not in _ABSENT


def count(row: Row, name: str, default: int | None = None) -> int:
    """A whole number, also written 8.0.

    Raises:
        InvalidFile: missing without a default, no number, not whole, or negative.
    """
    if not given(row, name):
        if default is None:
            raise InvalidFile(f"{name} is empty; this job needs it")
        return default
    text = row[name].strip()
    try:
        value = float(text)
    except ValueError:
        raise InvalidFile(f"{name} = {text!r}; a number is needed") from None
    if not isfinite(value) or value != int(value) or not 0 <= value < 2**53:
        raise InvalidFile(f"{name} = {text}; a whole number of at least 0 is needed")
    return int(value)


def truth(row: Row, name: str, default: bool = False) -> bool:
    """Whether a cell says yes.

    Raises:
        InvalidFile: it says neither yes nor no.
    """
    if not given(row, name):
        return default
    text = row[name].strip().lower()
    if text in ("true", "yes", "1", "1.0"):
        return True
    if text in ("false", "no", "0", "0.0"):
        return False
    raise InvalidFile(f"{name} = {text!r}; write true or false")
