"""The verb 'sweep': perform the points of manifests, check the relations they expect, draw their figures."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from planner.ir.errors import InvalidFile
from regista.verbs.arguments import count
from regista.verbs.screen import Json, show

if TYPE_CHECKING:
    from regista.sweep import Checked, Manifest
    from regista.sweep.check import Row, Verdict
    from regista.sweep.executors import Where
    from regista.sweep.measure import Columns
    from regista.sweep.point import Point

__all__ = ["add_arguments", "folder_of", "perform", "relations_table"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("manifest", metavar="MANIFEST", help="the experiment (TOML); experiments/README.md explains it")
    parser.add_argument("--jobs", type=count, default=1, metavar="N", help="processes that plan and simulate (default 1; runs take 1)")
    parser.add_argument(
        "--on",
        default="local",
        metavar="WHERE",
        help="who plans and simulates the points: local (default), dask://HOST:PORT, slurm:PARTITION or ray://HOST:PORT; rows are written here",
    )
    parser.add_argument("--out", metavar="DIR", help="where results/ and figures/ go (default: beside the manifest's folder)")
    parser.add_argument(
        "--only", action="append", default=[], metavar="WHICH", help="points whose label matches, or a condition: stages=2; may be repeated"
    )
    parser.add_argument("--fresh", action="store_true", help="begin anew instead of going on with the CSV")
    parser.add_argument("--smoke", action="store_true", help="the manifest's small size: that it works, not what it claims")
    parser.add_argument("--redraw", action="store_true", help="check and draw from the CSV, perform nothing")


def perform(args: argparse.Namespace) -> Json:
    """Read args.manifest, perform what its CSV lacks, check, draw; returns the figures for --json.

    ``failed`` counts what makes the exit code 1: relations that broke, points that were refused, and known failures that are none.

    Raises:
        InvalidFile: the manifest or the CSV, with the way out.   Unsupported: --jobs for runs.
    """
    from regista.sweep import check, draw_all, load_manifest
    from regista.sweep.executors import parse_where

    where = parse_where(args.on)
    manifest = load_manifest(args.manifest, smoke=args.smoke)
    folder = Path(args.out) if args.out else folder_of(Path(args.manifest))
    path = folder / "results" / f"{manifest.name}.csv"
    only = _only(manifest, args.only) if args.only else None
    if args.fresh and not args.redraw:
        path.unlink(missing_ok=True)
    if not args.redraw:
        _perform(manifest, path, only, where, args)
    checked = check(manifest, path)
    # A part of the points says nothing about relations between all of them.
    whole = checked.pending == 0
    figures = draw_all(manifest, checked.rows, folder / "figures") if any("status" in row for row in checked.rows) and whole else []
    show(args, *_answer(manifest, checked, path, figures, whole))
    return _figures(manifest, checked, path, figures, whole)


def folder_of(manifest: Path) -> Path:
    """Where results/ and figures/ of a manifest go: beside a folder called manifests, else beside the manifest.

    >>> str(folder_of(Path("experiments/manifests/zero.toml")))
    'experiments'
    """
    return manifest.parent.parent if manifest.parent.name == "manifests" else manifest.parent


def _only(manifest: Manifest, texts: Sequence[str]) -> list[Point]:
    """Points that meet all: a pattern of labels, or a condition such as stages=2.   Raises InvalidFile: none does."""
    from regista.sweep.check import select
    from regista.sweep.columns import all_columns
    from regista.sweep.relation import parse_plain_condition
    from regista.sweep.rows import points_rows

    columns = all_columns(manifest.points)
    chosen = list(manifest.points)
    for text in texts:
        if any(sign in text for sign in "=<>"):
            rows = points_rows([], chosen)
            selected = {row["point_id"] for row in select(rows, [parse_plain_condition(text)], columns)}
            chosen = [point for point in chosen if point.point_id in selected]
        else:
            chosen = [point for point in chosen if fnmatchcase(point.label, text)]
    if not chosen:
        raise InvalidFile(
            f"--only {' '.join(texts)}: no point is like that; labels are {', '.join(p.label for p in manifest.points[:6])} ..."
        )
    return chosen


def _perform(manifest: Manifest, path: Path, only: Sequence[Point] | None, where: Where, args: argparse.Namespace) -> None:
    from regista.sweep import sweep

    console = Console(stderr=True, quiet=args.json)
    total = len(only) if only is not None else len(manifest.points)
    shown = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*shown, console=console, transient=True) as progress:
        bar = progress.add_task(manifest.name, total=total)

        def on_row(point: Point, phase: str, columns: Columns) -> None:
            last = phase in ("known", "performed") or point.performer.value == "sim" or columns.get("status") != "ok"
            progress.update(bar, description=f"{manifest.name}: {escape(point.label[:60])} {phase}", advance=1 if last else 0)

        sweep(manifest, path, jobs=args.jobs, where=where, only=only, on_row=on_row)


def _answer(manifest: Manifest, checked: Checked, path: Path, figures: Sequence[Path], whole: bool) -> Iterator[RenderableType]:
    """The claim, whether its relations hold, what was refused, and the files."""
    yield f"{manifest.name}: {manifest.claim}"
    if not whole:
        done = len(manifest.points) - checked.pending
        yield f"{done} of {len(manifest.points)} points are performed; relations are checked when all are"
    elif checked.expect or checked.broken:
        yield relations_table(checked.expect, checked.broken)
    if checked.refused:
        table = Table("refused", "status", "says")
        for row in checked.refused:
            table.add_row(*(escape(str(row.get(column))) for column in ("label", "status", "says")))
        yield table
    for file in (path, *figures):
        yield f"wrote {file}"


def relations_table(expect: Sequence[Verdict], broken: Sequence[tuple[Verdict, str]]) -> Table:
    """Held or broken, with the numbers of the point that decides."""
    table = Table("relation", "", "left", "right", "at", "points")
    for verdict in expect:
        state = "[green]held[/]" if verdict.held else "[red]broken[/]"
        _row(table, verdict, state, verdict.says)
    for verdict, why in broken:
        state = "[red]holds now[/]" if verdict.held else "[red]unchecked[/]" if verdict.says else "[yellow]broken, known[/]"
        _row(table, verdict, state, verdict.says or why)
    return table


def _row(table: Table, verdict: Verdict, state: str, says: str) -> None:
    text = escape(verdict.relation) + (f"\n[dim]{escape(says)}[/]" if says else "")
    table.add_row(text, state, *map(escape, (verdict.left, verdict.right, verdict.where)), str(verdict.points))


def _figures(manifest: Manifest, checked: Checked, path: Path, figures: Sequence[Path], whole: bool) -> Json:
    def verdict(v: Verdict) -> Json:
        return {"relation": v.relation, "held": v.held, "left": v.left, "right": v.right, "at": v.where, "points": v.points, "says": v.says}

    def refused(row: Row) -> Json:
        return {key: row.get(key) for key in ("label", "point_id", "status", "says")}

    return {
        "manifest": manifest.name,
        "claim": manifest.claim,
        "csv": str(path),
        "figures": [str(file) for file in figures],
        "points": len(manifest.points),
        "pending": checked.pending,
        "relations": [verdict(v) for v in checked.expect] if whole else [],
        "known_broken": [verdict(v) | {"why": why} for v, why in checked.broken] if whole else [],
        "refused": [refused(row) for row in checked.refused],
        "failed": checked.failed if whole else len(checked.refused),
    }
