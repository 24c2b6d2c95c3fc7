"""Tables of a measured sweep's page, as HTML: its points, their registers, their processes, and kinds of tasks.

point | sim | run | p10 .. p90 | farthest other run | error | noise
point | device (theory) | register (theory) | register (run) | held (sim) | held (run) | ...
point | base (run) | planned (theory) | kept (run) | peak (run) | error           kind | points | share | errors
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from statistics import median

from planner.ir.units import show_bytes, show_s
from regista.report.html import error_cell, table
from regista.report.measured import Measured, by_kind
from regista.report.rows import number
from regista.statistics import quantile

__all__ = ["BAND", "kinds_table", "points_table", "processes_table", "registers_table"]

BAND = 0.05
"""Half the width of the band around equality, a relative error."""
_HELD = ("_device_bytes", "_peak_bytes", "_register_bytes", "_held_bytes")
"""Ends of the columns of bytes that are a device's, not a process's or a link's."""


def points_table(points: Sequence[Measured]) -> str:
    """Predicted and measured step times, errors and noise."""

    def time(point: Measured, column: str) -> str:
        value = number(point.cells.get(column))
        return "-" if value is None else show_s(value)

    rows = [
        (
            escape(point.label),
            show_s(point.sim_s),
            show_s(point.run_s),
            f"{time(point, 'run_p10_s')} .. {time(point, 'run_p90_s')}",
            time(point, "run_again_step_s"),
            error_cell(point.error, BAND),
            error_cell(point.noise, BAND),
        )
        for point in points
    ]
    heads = ("point", "step (sim)", "step (run)", "p10 .. p90 of steps (run)", "farthest other run (run)", "error", "noise")
    return "<h2>Points</h2>" + table(f"median step times; {BAND:.0%} and more is marked", heads, rows, words=(0,))


def registers_table(points: Sequence[Measured]) -> str:
    """Every column of bytes that is no process's: they differ by kind of number and by what they count."""
    names = dict.fromkeys(
        column
        for point in points
        for column, cell in point.cells.items()
        if cell and column.startswith(("theory_", "sim_", "run_")) and column.endswith(_HELD) and "_process_" not in column
        if column != "sim_register_bytes"
        or not point.cells.get("theory_register_bytes")  # the simulator's are held ones, see sim_held_bytes
    )
    errors = [number(point.cells.get("error_register_bytes")) for point in points]
    differences = [error for error in errors if error is not None]
    if not names:
        return ""
    rows = [
        (
            escape(point.label),
            *(_bytes(point, column) for column in names),
            "-" if error is None else f"{error:+,.0f} B",
        )
        for point, error in zip(points, errors, strict=True)
    ]
    heads = ("point", *map(_heading, names), "error_register_bytes")
    exact = f"{differences.count(0)} of {len(differences)} points"
    said = f" error_register_bytes, predicted less counted on the rank where they differ most, is 0 at {exact}." if differences else ""
    return (
        "<h2>Memory: registers</h2><p>Device: all blocks, state and the largest workspaces. Register: all blocks, planned (theory) and allocated "
        f"(run). Held: what blocks and state held at once, which depends on when acts end. Peak: held, and workspace.{said}</p>"
        + table("fullest rank", heads, rows, words=(0,))
    )


def _heading(column: str) -> str:
    kind, *words = column.removesuffix("_bytes").split("_")
    return f"{' '.join(words)} ({kind})"


def _bytes(point: Measured, column: str) -> str:
    value = number(point.cells.get(column))
    return "-" if value is None else show_bytes(value)


_PROCESS = ("run_process_base_bytes", "theory_process_bytes", "run_isolated_kept_bytes", "run_process_peak_bytes")


def processes_table(points: Sequence[Measured]) -> str:
    """What the system says a worker held against what was predicted; nothing for a sweep that did not look."""
    rows, errors = [], []
    for point in points:
        error = number(point.cells.get("error_process_peak_share"))
        if error is None:
            continue
        errors.append(abs(error))
        rows.append((escape(point.label), *(_bytes(point, column) for column in _PROCESS), error_cell(error, BAND)))
    if not rows:
        return ""
    said = f"median |error| {median(errors):.1%}, 90th percentile {quantile(errors, 0.9):.1%}, worst {max(errors):.1%}"
    heads = ("point", "base (run)", "planned (theory)", "kept in isolated acts (run)", "peak (run)", "(base + planned + kept) / peak - 1")
    return (
        "<h2>Memory: processes</h2><p>What the system says a worker held, on the rank with the highest peak. The base, before the first block, is "
        "measured; the Plan says what comes on top, and the calibration, which performs its acts one by one, what libraries and kernels keep "
        f"beside it. {escape(said)}.</p>" + table("resident memory", heads, rows, words=(0,))
    )


def kinds_table(points: Sequence[Measured]) -> str:
    """Errors of busy seconds by kind of task."""
    rows = [
        (
            found.kind.value,
            str(len(found.errors)),
            f"{found.share:.2%}",
            error_cell(found.median),
            f"{median(abs(error) for error in found.errors):.1%}",
            f"{found.p90:.1%}",
        )
        for found in by_kind(points)
    ]
    heads = ("kind", "points", "share of busy time (run)", "median error (sim / run - 1)", "median |error|", "90th percentile")
    said = "busy seconds of a step by kind of task, on the rank where that kind is busiest; a kind of small share may err much and matter little"
    return "<h2>Kinds of tasks</h2>" + table(said, heads, rows)
