"""Rows of an experiment's CSV, and the quantities in it that are both predicted and measured or published.

wide    sim_step_s | run_step_s          or  bubble_sim | bubble_paper         a pair per row
long    kind | step_time_s  (kind: sim, run, theory, paper)                    a pair per group of rows that are alike but for kind and floats

A prediction is ``sim`` or, where there is none, ``theory``; it is compared with ``run`` or ``paper``.  Two kinds never share a column.
Where a column ``data`` tells sets of points apart, each set is compared by itself, too.
A column that is named by its kind and unit alone, ``sim_s``, is ``time_s``.
Rows whose column ``role`` begins with 'fitted' took part in a fit; they predict nothing and are left out.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from planner.ir.errors import InvalidFile
from planner.ir.reading import read_csv
from regista.analysis.statistics import rank_correlation

__all__ = ["PredictedQuantity", "Rows", "predicted_quantities", "noise_floor", "number", "read_rows"]

_NOT_HELD = ("min_s", "p10_s", "p90_s", "start_s", "end_s")
"""Columns of a measurement's spread or of a moment; a prediction without noise has neither, so they are not compared."""

PREDICTED, REFERENCE = ("sim", "theory"), ("run", "paper")

_PLANNED = "register_bytes"
"""Where a table has three kinds of it, the Plan's bytes (theory) are compared with the run's; the simulator's are those in use at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """A CSV as text cells."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[Mapping[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedQuantity:
    """One quantity, predicted and given: (predicted, given, name of the point) each.   predicted, given: kinds ('sim', 'run', ...)."""

    name: str
    predicted: str
    given: str
    points: tuple[tuple[float, float, str], ...]

    @property
    def errors(self) -> tuple[float, ...]:
        """predicted / given - 1 of every point; none of them is given as 0."""
        return tuple(sim / given - 1 for sim, given, _ in self.points)

    @property
    def rank_correlation(self) -> float | None:
        """Spearman's; None for fewer than 3 points or where one side is constant."""
        return rank_correlation([predicted for predicted, _, _ in self.points], [given for _, given, _ in self.points])


def read_rows(path: str | Path) -> Rows:
    """Raises InvalidFile: no CSV with a head and rows of the same length."""
    lines = read_csv(path, "give a table that an experiment wrote (CSV)")
    if not lines or len(set(lines[0])) != len(lines[0]):
        raise InvalidFile(f"{path}: the first line must name each column once; it is {lines[0] if lines else 'missing'}")
    wrong = [number for number, line in enumerate(lines[1:], 2) if line and len(line) != len(lines[0])]
    if wrong:
        raise InvalidFile(f"{path}: line {wrong[0]} has another number of cells than the head's {len(lines[0])}; run the experiment again")
    rows = tuple(dict(zip(lines[0], line, strict=True)) for line in lines[1:] if line)
    return Rows(name=Path(path).stem, columns=tuple(lines[0]), rows=rows)


def predicted_quantities(table: Rows) -> tuple[PredictedQuantity, ...]:
    """All quantities that the table holds as prediction and as reference; points with a side that is missing or not above 0 are left out."""
    merged = _points(replace(table, rows=tuple(row for row in table.rows if not row.get("role", "").startswith("fitted"))))
    sets = list(dict.fromkeys(row["data"] for row in merged.rows)) if "data" in merged.columns else []
    quantities = _wide(merged) + _long(merged)
    for name in sets if len(sets) > 1 else ():
        part = replace(merged, rows=tuple(row for row in merged.rows if row["data"] == name))
        quantities += [replace(quantity, name=f"{quantity.name} of {name}") for quantity in _wide(part) + _long(part)]
    return tuple(quantity for quantity in quantities if quantity.points)


def _points(table: Rows) -> Rows:
    """Rows of a sweep that belong to one point (it is predicted before it is run) as one row; a later cell replaces an earlier one."""
    if "point_id" not in table.columns:
        return table
    merged: dict[str, dict[str, str]] = {}
    for row in table.rows:
        merged.setdefault(row["point_id"], dict.fromkeys(table.columns, "")).update({c: cell for c, cell in row.items() if cell})
    return replace(table, rows=tuple(merged.values()))


def number(text: str | None) -> float | None:
    """The cell as a finite number; None where it is missing, empty, or no number."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _above_0(text: str | None) -> float | None:
    value = number(text)
    return value if value is not None and value > 0 else None


def _quantity(column: str, kind: str) -> str | None:
    """'step_s' of 'sim_step_s' and of 'step_s_sim'."""
    if column.startswith(kind + "_"):
        return "time_s" if column == f"{kind}_s" else column[len(kind) + 1 :]
    return column[: -len(kind) - 1] if column.endswith("_" + kind) else None


def _wide(table: Rows) -> list[PredictedQuantity]:
    quantities, done, telling = [], set(), _telling(table)
    for predicted in PREDICTED:
        for given in REFERENCE:
            for column in table.columns:
                quantity = _quantity(column, predicted)
                other = next((c for c in table.columns if quantity is not None and _quantity(c, given) == quantity), None)
                if quantity is None or other is None or (quantity, given) in done:
                    continue
                if (predicted, quantity) == ("sim", _PLANNED) and f"theory_{_PLANNED}" in table.columns:
                    continue
                done.add((quantity, given))
                points = [(_above_0(row[column]), _above_0(row[other]), _name(row, telling)) for row in table.rows]
                complete = tuple((p, g, name) for p, g, name in points if p is not None and g is not None)
                quantities.append(PredictedQuantity(name=quantity, predicted=predicted, given=given, points=complete))
    return quantities


def _long(table: Rows) -> list[PredictedQuantity]:
    kinds = {row.get("kind", "") for row in table.rows}
    predicted, given = (next((kind for kind in order if kind in kinds), None) for order in (PREDICTED, REFERENCE))
    if "kind" not in table.columns or predicted is None or given is None:
        return []
    keys = [column for column in table.columns if column != "kind" and not _is_measure(table, column)]
    measures = [
        column for column in table.columns if column.endswith(("_s", "_bytes")) and column not in _NOT_HELD and _is_measure(table, column)
    ]
    groups: dict[tuple[str, ...], dict[str, list[Mapping[str, str]]]] = defaultdict(lambda: defaultdict(list))
    for row in table.rows:
        groups[tuple(row[key] for key in keys)][row["kind"]].append(row)
    quantities, telling = [], _telling(table)
    for column in measures:
        points = []
        for group in groups.values():
            sides = [[v for v in (_above_0(row[column]) for row in group[kind]) if v is not None] for kind in (predicted, given)]
            if sides[0] and sides[1]:
                points.append((median(sides[0]), median(sides[1]), _name(group[predicted][0], telling)))
        quantities.append(PredictedQuantity(name=column, predicted=predicted, given=given, points=tuple(points)))
    return quantities


def _is_measure(table: Rows, column: str) -> bool:
    """Whether it holds numbers that are no counts, so that rows are not told apart by it."""
    values = [row[column] for row in table.rows]
    return any(value and not value.lstrip("-").isdigit() and _is_float(value) for value in values)


def _is_float(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _telling(table: Rows) -> list[str]:
    """The columns that say which point a row is."""
    return [column for column in table.columns if column not in ("kind", "plan_id") and not _is_measure(table, column)]


def _name(row: Mapping[str, str], telling: Sequence[str], most: int = 4) -> str:
    """Its label, or the first cells that say which point it is."""
    return row.get("label") or ", ".join([row[column] for column in telling if row[column]][:most])


def noise_floor(table: Rows) -> tuple[float, ...]:
    """|second / first - 1| of every point that was run twice (columns run_step_s and run_again_step_s): no prediction can be surer."""
    if not {"run_step_s", "run_again_step_s"} <= set(table.columns):
        return ()
    pairs = [(_above_0(row["run_step_s"]), _above_0(row["run_again_step_s"])) for row in _points(table).rows]
    return tuple(abs(again / first - 1) for first, again in pairs if first is not None and again is not None)
