"""Points from a table of published numbers: one per row that [paper] selects."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

from planner.ir.errors import InvalidFile
from planner.ir.reading import read_csv
from planner.ir.text import number_or_text
from regista.sweep.keys import known_keys, nearest

__all__ = ["paper_points"]

_KEYS = ("file", "where", "except", "label", "points", "columns")


def paper_points(about: Mapping[str, Any], folder: Path) -> list[dict[str, Any]]:
    """The rows of ``about['file']`` that ``where`` selects and ``except`` does not, as sections like those of [[points]].

    ``points``: "section.key" -> a text with {column} of the row, or {column*2}, {a/b}.   ``columns``: name with unit -> column, or {column, scale}.
    A cell that is no number ('OOM', '-') gives no number.

    Raises:
        InvalidFile: no such file or column, or nothing is selected.
    """
    known_keys(about, _KEYS, "[paper]")
    path = folder / str(about.get("file", ""))
    names, *lines = read_csv(path, "name in [paper].file a table with a header (CSV)") or [[]]
    rows = [dict(zip_longest(names, line[: len(names)], fillvalue="")) for line in lines if line]

    def cell(row: Mapping[str, str], column: str) -> str:
        if column not in row:
            raise InvalidFile(f"[paper]: {path.name} has no column {column!r}{nearest(column, names)}")
        return row[column]

    def filled(row: Mapping[str, str], text: str) -> str:
        return re.sub(r"\{(\w+)(?:([*/])(\w+))?\}", lambda match: _combined(match[1], match[2], match[3], partial(cell, row)), text)

    wanted, unwanted = _listed(about.get("where", {})), _listed(about.get("except", {}))
    overrides = []
    for row in rows:
        if not all(cell(row, column) in values for column, values in wanted.items()):
            continue
        if any(cell(row, column) in values for column, values in unwanted.items()):
            continue
        override: dict[str, Any] = {"label": filled(row, str(about.get("label", ""))), "paper": {}}
        for key, text in about.get("points", {}).items():
            section, dot, name = key.partition(".")
            if not dot:
                raise InvalidFile(f"[paper].points: {key!r}: write 'section.key', for example 'plan.mesh'")
            value = number_or_text(filled(row, str(text)))
            if section == "cluster" and name.startswith("set."):
                override.setdefault(section, {}).setdefault("set", {})[name.removeprefix("set.")] = value
            else:
                override.setdefault(section, {})[name] = value
        for name, rule in about.get("columns", {}).items():
            column, scale = (rule["column"], float(rule.get("scale", 1))) if isinstance(rule, Mapping) else (rule, 1.0)
            number = number_or_text(cell(row, column))
            if isinstance(number, int | float):
                override["paper"][name] = number * scale
        overrides.append(override)
    if not overrides:
        raise InvalidFile(f"[paper]: no row of {path.name} has {', '.join(f'{c} = {v}' for c, v in wanted.items())}")
    return overrides


def _listed(where: Mapping[str, Any]) -> dict[str, list[str]]:
    return {column: [str(v) for v in (value if isinstance(value, list) else [value])] for column, value in where.items()}


def _combined(first: str, sign: str | None, second: str | None, cell: Callable[[str], str]) -> str:
    """A cell, or two whole numbers multiplied or divided without rest; the second may be written out."""
    left = cell(first)
    if sign is None or second is None:
        return left
    right = second if second.isdecimal() else cell(second)
    if not left.isdecimal() or not right.isdecimal() or (sign == "/" and (int(right) == 0 or int(left) % int(right))):
        raise InvalidFile(f"[paper]: {{{first}{sign}{second}}} is {left} {sign} {right}, which is no whole number")
    return str(int(left) * int(right) if sign == "*" else int(left) // int(right))
