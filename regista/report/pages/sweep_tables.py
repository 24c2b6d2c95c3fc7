"""Tables of a measured sweep's page, as values: its points, their registers, their processes, and kinds of tasks.

point | sim | run | p10 .. p90 | farthest other run | error | noise
point | device (theory) | register (theory) | register (run) | held (sim) | held (run) | ...
point | base (run) | planned (theory) | kept (run) | peak (run) | error           kind | points | share | errors
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from planner.ir.units import show_bytes, show_s
from regista.analysis.statistics import quantile
from regista.report.html import Table, error_cell
from regista.report.measured import Measured, by_kind
from regista.report.rows import number

__all__ = ["BAND", "exact_registers", "kinds_table", "points_table", "process_errors", "processes_table", "registers_table"]

BAND = 0.05
"""Half the width of the band around equality, a relative error."""
_HELD = ("_device_bytes", "_peak_bytes", "_register_bytes", "_held_bytes")
"""Ends of the columns of bytes that are a device's, not a process's or a link's."""


def points_table(points: Sequence[Measured]) -> Table:
    """Predicted and measured step times, errors and noise."""

    def time(point: Measured, column: str) -> str:
        value = number(point.cells.get(column))
        return "-" if value is None else show_s(value)

    rows = [
        (
            point.label,
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
    return Table(caption=f"median step times; {BAND:.0%} and more is marked", heads=heads, rows=rows, words=(0,))


def registers_table(points: Sequence[Measured]) -> Table | None:
    """Every column of bytes that is no process's: they differ by kind of number and by what they count."""
    names = dict.fromkeys(
        column
        for point in points
        for column, cell in point.cells.items()
        if cell and column.startswith(("theory_", "sim_", "run_")) and column.endswith(_HELD) and "_process_" not in column
        if column != "sim_register_bytes"
        or not point.cells.get("theory_register_bytes")  # the simulator's are held ones, see sim_held_bytes
    )
    if not names:
        return None
    errors = [number(point.cells.get("error_register_bytes")) for point in points]
    rows = [
        (point.label, *(_bytes(point, column) for column in names), "-" if error is None else f"{error:+,.0f} B")
        for point, error in zip(points, errors, strict=True)
    ]
    return Table(caption="fullest rank", heads=("point", *map(_heading, names), "error_register_bytes"), rows=rows, words=(0,))


def exact_registers(points: Sequence[Measured]) -> str:
    """At how many points the registers were allocated as planned; empty where no register was counted."""
    errors = [number(point.cells.get("error_register_bytes")) for point in points]
    counted = [error for error in errors if error is not None]
    return f"{counted.count(0)} of {len(counted)} points" if counted else ""


def _heading(column: str) -> str:
    kind, *words = column.removesuffix("_bytes").split("_")
    return f"{' '.join(words)} ({kind})"


def _bytes(point: Measured, column: str) -> str:
    value = number(point.cells.get(column))
    return "-" if value is None else show_bytes(value)


_PROCESS = ("run_process_base_bytes", "theory_process_bytes", "run_isolated_kept_bytes", "run_process_peak_bytes")


def processes_table(points: Sequence[Measured]) -> Table | None:
    """What the system says a worker held against what was predicted; None for a sweep that did not look."""
    rows = [
        (point.label, *(_bytes(point, column) for column in _PROCESS), error_cell(error, BAND))
        for point, error in zip(points, _process_errors(points), strict=True)
        if error is not None
    ]
    heads = ("point", "base (run)", "planned (theory)", "kept in isolated acts (run)", "peak (run)", "(base + planned + kept) / peak - 1")
    return Table(caption="resident memory", heads=heads, rows=rows, words=(0,)) if rows else None


def process_errors(points: Sequence[Measured]) -> str:
    """The errors of processes' peaks in one sentence; empty for a sweep that did not look."""
    sizes = [abs(error) for error in _process_errors(points) if error is not None]
    return f"median |error| {median(sizes):.1%}, 90th percentile {quantile(sizes, 0.9):.1%}, worst {max(sizes):.1%}" if sizes else ""


def _process_errors(points: Sequence[Measured]) -> list[float | None]:
    return [number(point.cells.get("error_process_peak_share")) for point in points]


def kinds_table(points: Sequence[Measured]) -> Table:
    """Errors of busy seconds by kind of task."""
    rows = [
        (
            kind.kind.value,
            str(len(kind.errors)),
            f"{kind.share:.2%}",
            error_cell(kind.median),
            f"{median(abs(error) for error in kind.errors):.1%}",
            f"{kind.p90:.1%}",
        )
        for kind in by_kind(points)
    ]
    heads = ("kind", "points", "share of busy time (run)", "median error (sim / run - 1)", "median |error|", "90th percentile")
    caption = "busy seconds of a step by kind of task, on the rank where that kind is busiest; a kind of small share may err much and matter little"
    return Table(caption=caption, heads=heads, rows=rows)
