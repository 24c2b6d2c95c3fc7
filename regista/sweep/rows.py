"""The CSV of a sweep.  A row is appended whole as soon as a point is predicted or performed, so an interrupted sweep goes on where it stopped.

    phase = predicted     numbers of theory and of the simulator, written before anything is run
    phase = performed     the same, and the numbers of the run             (performer = "run" only)

A last line without its end was cut off by the interruption; it is dropped.
"""

from __future__ import annotations

import csv
import fcntl
import io
import os
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TextIO

from planner.ir.errors import InvalidFile
from planner.ir.reading import parse_csv, read_text
from planner.ir.text import check_target, save_text
from regista.sweep.check import Cell, Row
from regista.sweep.point import Performer, Point

__all__ = ["DONE", "Table", "load_rows", "performed", "points_rows"]

_WAY_OUT = "give the table of a sweep (CSV), or another --out"

DONE = ("ok", "OutOfMemory")
"""Statuses of a point that is not performed again: it was performed, or does not fit into memory."""


class Table:
    """The CSV of one sweep, open for appending; only one sweep at a time may hold it."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        """Open or begin it.  Rows of another set of columns stay, with the columns that both have.

        Raises:
            InvalidFile: another sweep holds it, or it is no CSV of a sweep.
        """
        self.path, self.columns = path, tuple(columns)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = _locked(path, self.columns)

    def append(self, row: Mapping[str, object]) -> None:
        """One line, on the disk when this returns."""
        self._file.write(_line([_text(row.get(column)) for column in self.columns]))
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _locked(path: Path, columns: Sequence[str]) -> TextIO:
    """The file, mended and open for appending, under this process's lock.

    A mended file takes the old one's place by a rename, and a lock belongs to a file, not to its name.  So the file is locked before it is
    mended, and opened again if the name leads to another file than the one that was locked.
    """
    while True:
        file = check_target(path).open("a", newline="", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_named(file, path) and not _mend(path, columns):
                return file
        except BlockingIOError:
            file.close()
            raise InvalidFile(f"{path} is being written by another sweep; wait for it, or give another --out") from None
        except BaseException:
            file.close()
            raise
        file.close()


def _is_named(file: TextIO, path: Path) -> bool:
    """Whether the name still leads to this open file."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _mend(path: Path, columns: Sequence[str]) -> bool:
    """Give the file the header of ``columns`` and drop a last line that was cut off; returns whether anything had to be written."""
    header = _line(columns)
    text = read_text(path, _WAY_OUT)
    whole = text[: text.rfind("\n") + 1]
    if not text.strip():
        mended = header
    elif whole.startswith(header):
        mended = whole
    else:
        rows = _records(path, whole)
        if rows and ("point_id" not in rows[0] or "phase" not in rows[0]):
            raise InvalidFile(f"{path} is no CSV of a sweep (it has no point_id); give another --out, or move it away")
        mended = header + "".join(_line([row.get(column) or "" for column in columns]) for row in rows)
    if mended == text:
        return False
    save_text(str(path), mended)
    return True


def load_rows(path: Path) -> list[Row]:
    """All whole lines, numbers as floats, empty cells as None."""
    if not path.exists():
        return []
    text = read_text(path, _WAY_OUT)
    whole = text[: text.rfind("\n") + 1]
    return [{key: _cell(key, value) for key, value in row.items()} for row in _records(path, whole)]


def _records(path: Path, text: str) -> list[dict[str, str]]:
    """The lines of a table by column; cells that a line lacks are empty, those that it has beyond the header are left out."""
    try:
        header, *lines = parse_csv(text) or [[]]
    except InvalidFile as error:
        raise InvalidFile(f"{path}: {error}; give another --out, or move it away") from None
    return [dict(zip_longest(header, line[: len(header)], fillvalue="")) for line in lines if line]


def points_rows(rows: Sequence[Row], points: Sequence[Point]) -> list[Row]:
    """One row per point in the points' order: the last that the file has.  A point without a row has its fields only."""
    last: dict[Cell, Row] = {}
    for row in rows:
        last[row.get("point_id")] = row
    merged: list[Row] = []
    for point in points:
        fields: dict[str, Cell] = {key: _cell(key, _text(value)) for key, value in point.fields.items()}
        paper: dict[str, Cell] = {f"paper_{key}": value for key, value in point.paper.items()}
        # What the manifest says of a point is the manifest's: a label or a paper's number may be mended without a new run.
        merged.append({**last.get(point.point_id, {}), **fields, **paper, "point_id": point.point_id, "label": point.label})
    return merged


def performed(rows: Sequence[Row], point: Point) -> bool:
    """Whether the point has its last row: nothing is left to do for it."""
    phase = "performed" if point.performer is Performer.RUN else "predicted"
    for row in reversed(rows):
        if row.get("point_id") == point.point_id:
            return row.get("status") in DONE and (row.get("phase") == phase or row.get("status") != "ok")
    return False


_TEXTS = ("point_id", "plan_id", "cost_id", "label", "phase", "written_at", "torch", "status", "says")


def _cell(column: str, text: str) -> Cell:
    if text == "":
        return None
    if column in _TEXTS:
        return text
    try:
        return float(text)
    except ValueError:
        return text


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.10g}"
    return " ".join(str(value).split())


def _line(cells: Sequence[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()
