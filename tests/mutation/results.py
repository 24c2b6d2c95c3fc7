"""The results, one row per fault in a CSV, so that an interrupted check goes on; and the score per room."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

__all__ = ["COLUMNS", "Row", "read_rows", "scores", "write_rows"]

Row = Mapping[str, str]
COLUMNS = ("commit", "room", "module", "line", "column", "kind", "before", "after", "caught_by", "tests", "of_tests", "seconds")


def read_rows(path: Path) -> dict[tuple[str, ...], Row]:
    """Rows by the key of their fault."""
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        return {tuple(row[name] for name in COLUMNS[2:8]): row for row in csv.DictReader(file)}


def write_rows(path: Path, rows: Mapping[tuple[str, ...], Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows.values())


def scores(rows: Mapping[tuple[str, ...], Row]) -> str:
    """Lines for the reader: caught of planted, per room and in all; then the survivors."""
    caught: dict[str, list[bool]] = defaultdict(list)
    for row in rows.values():
        caught[row["room"]].append(bool(row["caught_by"]))
        caught["all"].append(bool(row["caught_by"]))
    lines = [f"{room:20} {sum(of):4} of {len(of):4} caught  {sum(of) / len(of):6.1%}" for room, of in sorted(caught.items(), key=_all_last)]
    for row in rows.values():
        if not row["caught_by"]:
            ran = f"{row['tests']} of {row['of_tests']} tests"
            lines.append(f"survives {ran}: {row['module']}:{row['line']} {row['kind']}: {row['before']}  ->  {row['after']}")
    return "\n".join(lines)


def _all_last(item: tuple[str, list[bool]]) -> tuple[bool, str]:
    return item[0] == "all", item[0]
