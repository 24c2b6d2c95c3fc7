"""Performs the points of a manifest that have no row yet, here or where an executor takes them, and checks the relations of all rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from planner.ir.errors import Unsupported
from regista.sweep.check import Row, Verdict, check_relation
from regista.sweep.columns import all_columns
from regista.sweep.executors import LOCAL, Where, results
from regista.sweep.manifest import Manifest
from regista.sweep.measure import Columns, Prediction, perform, predict
from regista.sweep.point import Performer, Point
from regista.sweep.rows import Table, load_rows, performed, points_rows

__all__ = ["Checked", "OnRow", "check", "sweep"]

OnRow = Callable[[Point, str, Columns], None]
"""Called with (point, phase, columns of the row) after each row; the phase is 'known' for a point that has its row already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """rows: one per point.   refused: points whose status is neither ok nor OutOfMemory.   pending: points without a row."""

    rows: tuple[Row, ...]
    expect: tuple[Verdict, ...]
    broken: tuple[tuple[Verdict, str], ...]
    refused: tuple[Row, ...]
    pending: int

    @property
    def failed(self) -> int:
        """Relations that broke unexpectedly, refused points, and relations that hold though they are said to be broken."""
        return sum(not v.held for v in self.expect) + len(self.refused) + sum(v.held or bool(v.says) for v, _ in self.broken)


def sweep(
    manifest: Manifest,
    path: Path,
    *,
    jobs: int = 1,
    where: Where = LOCAL,
    only: Sequence[Point] | None = None,
    on_row: OnRow | None = None,
) -> None:
    """Perform every point that the CSV at ``path`` does not have, and append its rows.

    Args:
        jobs: processes or jobs at a time; a sweep that runs on this machine takes 1, or its runs would slow each other.
        where: who performs the points; this process, where they are not run, writes all rows.
        only: these points alone.

    Raises:
        Unsupported: several jobs, or workers elsewhere, for runs; there is no such executor.   InvalidFile: the CSV cannot be written.
    """
    if manifest.performer is Performer.RUN and (jobs > 1 or where != LOCAL):
        given = f"--jobs {jobs}" if where == LOCAL else f"--on {where.kind.value}"
        raise Unsupported(f"{given}: points are run on this machine one after the other, or they would slow each other; leave it out")
    if where.has_workers and jobs > 1:
        raise Unsupported(f"--jobs {jobs} beside --on {where.kind.value}: the cluster has as many workers as it has; leave --jobs out")
    rows = load_rows(path)
    chosen = list(only) if only is not None else list(manifest.points)
    table = Table(path, all_columns(manifest.points))
    tell = on_row or (lambda point, phase, columns: None)
    try:
        waiting = []
        for point in chosen:
            if performed(rows, point):
                tell(point, "known", {})
            else:
                waiting.append(point)
        if waiting and (where != LOCAL or (jobs > 1 and len(waiting) > 1)):
            folder = path.with_name(f"{path.stem}.jobs")
            for point, columns in results(waiting, _predicted, where, jobs=jobs, folder=folder):
                _write(table, point, "predicted", columns, tell)
        else:
            for point in waiting:
                _one(table, point, tell)
    finally:
        table.close()


def _predicted(point: Point) -> Columns:
    prediction = predict(point)
    return prediction.columns if isinstance(prediction, Prediction) else prediction


def _one(table: Table, point: Point, on_row: OnRow) -> None:
    prediction = predict(point)
    _write(table, point, "predicted", prediction.columns if isinstance(prediction, Prediction) else prediction, on_row)
    if point.performer is Performer.RUN and isinstance(prediction, Prediction):
        _write(table, point, "performed", perform(point, prediction), on_row)


def _write(table: Table, point: Point, phase: str, columns: Columns, on_row: OnRow) -> None:
    about: Columns = {"point_id": point.point_id, "phase": phase, "label": point.label}
    about["written_at"] = datetime.now(UTC).isoformat(timespec="milliseconds")
    paper = {f"paper_{name}": number for name, number in point.paper.items()}
    table.append({**point.fields, **paper, **columns, **about})
    on_row(point, phase, columns)


def check(manifest: Manifest, path: Path) -> Checked:
    """The relations of the manifest against the CSV; nothing is performed."""
    rows = points_rows(load_rows(path), manifest.points)
    columns = all_columns(manifest.points)
    wanted = "performed" if manifest.performer is Performer.RUN else "predicted"
    pending = [row for row in rows if "status" not in row or (row["status"] == "ok" and row["phase"] != wanted)]
    refused = [row for row in rows if row.get("status") not in (None, "ok", "OutOfMemory")]
    about_refusals = {name for relation in manifest.expect for name in relation.names} & {"status", "says"}
    return Checked(
        rows=tuple(rows),
        expect=tuple(check_relation(relation, rows, manifest.axes, columns) for relation in manifest.expect),
        broken=tuple((check_relation(relation, rows, manifest.axes, columns), why) for relation, why in manifest.broken),
        refused=() if about_refusals else tuple(refused),
        pending=len(pending),
    )
