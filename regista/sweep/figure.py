"""Figures of a sweep, from its CSV alone: one colour per value of ``by``, one way of drawing per kind of number.

sim: solid, filled      theory: dotted, small      run: dashed, filled      paper: no line, hollow      (bars: sim plain, others hatched)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from planner.ir.errors import InvalidFile
from regista.sweep.check import Cell, Row, select
from regista.sweep.columns import all_columns
from regista.sweep.manifest import FigureSpec, Manifest
from regista.views.pictures.gantt import save_figure

__all__ = ["draw", "draw_all"]

# Okabe & Ito 2008, "Color Universal Design".
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#A6761D")
_LINE: Mapping[str, Mapping[str, object]] = {
    "sim": {"linestyle": "-", "marker": "o"},
    "theory": {"linestyle": ":", "marker": "."},
    "run": {"linestyle": "--", "marker": "s"},
    "paper": {"linestyle": "none", "marker": "D", "fillstyle": "none"},
    "error": {"linestyle": "-", "marker": "o"},
}
_HATCH = {"sim": "", "theory": "..", "run": "//", "paper": "xx", "error": ""}
_UNITS = (
    ("_flop_per_s", "TFLOP/s", 1e-12),
    ("_per_s", "1/s", 1.0),
    ("_bytes", "GB", 1e-9),
    ("_s", "s", 1.0),
    ("_share", "share", 1.0),
    ("_ratio", "ratio", 1.0),
)


def draw_all(manifest: Manifest, rows: Sequence[Row], folder: Path) -> list[Path]:
    """Draw every figure of the manifest that has something to show; returns the files."""
    columns = all_columns(manifest.points)
    folder.mkdir(parents=True, exist_ok=True)
    return [draw(spec, rows, columns, folder / spec.output) for spec in manifest.figures if _shown(spec, rows, columns)]


def _shown(spec: FigureSpec, rows: Sequence[Row], columns: Sequence[str]) -> list[Row]:
    return [row for row in select(rows, spec.where, columns) if any(isinstance(row.get(y), float) for y in spec.y)]


def draw(spec: FigureSpec, rows: Sequence[Row], columns: Sequence[str], path: Path) -> Path:
    """One figure.

    Raises:
        InvalidFile: no row has what it shows, or the file cannot be written.
    """
    shown = _shown(spec, rows, columns)
    if not shown:
        raise InvalidFile(f"figure {path.name}: no row has {', '.join(spec.y)}; perform the points first")
    with mpl.rc_context({"svg.hashsalt": "regista", "font.size": 9}):
        figure = Figure(figsize=(7.2, 4.0), layout="constrained")
        axes = figure.subplots()
        unit, scale = _unit(spec.y[0])
        groups = list(dict.fromkeys(_name(row.get(spec.by)) for row in shown)) if spec.by else [""]
        places = list(dict.fromkeys(_name(row.get(spec.x)) for row in shown))
        as_numbers = spec.kind != "bar" and all(isinstance(row.get(spec.x), float) for row in shown)
        for number, group in enumerate(groups):
            part = [row for row in shown if not spec.by or _name(row.get(spec.by)) == group]
            for index, y in enumerate(spec.y):
                kind = y.partition("_")[0]
                known = [row for row in part if isinstance(row.get(y), float)]
                if not known:
                    continue
                heights = [scale * _float(row[y]) for row in known]
                # One group: the colours tell the columns apart, or one colour would carry nothing.
                colour = _COLOURS[(number if spec.by else index) % len(_COLOURS)]
                name = ", ".join(([f"{spec.by} {group}"] if spec.by else []) + ([_title(y)] if len(spec.y) > 1 or not spec.by else []))
                if spec.kind == "bar":
                    width = 0.8 / (len(groups) * len(spec.y))
                    shift = (number * len(spec.y) + index + 0.5) * width - 0.4
                    where = [places.index(_name(row.get(spec.x))) + shift for row in known]
                    axes.bar(where, heights, width, label=name, color=colour, hatch=_HATCH[kind], edgecolor="white", linewidth=0.4)
                else:
                    at = [_float(row[spec.x]) if as_numbers else places.index(_name(row.get(spec.x))) for row in known]
                    style = dict(_LINE[kind]) | ({"linestyle": "none"} if spec.kind == "scatter" else {})
                    pairs = sorted(zip(at, heights, strict=True))
                    axes.plot([a for a, _ in pairs], [h for _, h in pairs], color=colour, label=name, **style)  # type: ignore[arg-type]
        _dress(figure, axes, spec, places, as_numbers, unit)
        save_figure(figure, path)
    return path


def _dress(figure: Figure, axes: Axes, spec: FigureSpec, places: Sequence[str], as_numbers: bool, unit: str) -> None:
    if not as_numbers:
        long = max(map(len, places)) > 8 or len(places) > 8
        axes.set_xticks(range(len(places)), places, rotation=30 if long else 0, ha="right" if long else "center")
    if "x" in spec.log and as_numbers:
        axes.set_xscale("log", base=2)
    if "y" in spec.log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    axes.set_xlabel(spec.x.replace("_", " "))
    axes.set_ylabel(f"{_title(spec.y[0], kind=len({y.partition('_')[0] for y in spec.y}) == 1)} [{unit}]")
    axes.set_title(spec.title, fontsize=10, loc="left")
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(fontsize=8, frameon=False, loc="outside upper right", ncols=2)


def _unit(column: str) -> tuple[str, float]:
    return next(((unit, scale) for end, unit, scale in _UNITS if column.endswith(end)), ("", 1.0))


def _title(column: str, *, kind: bool = True) -> str:
    """``sim_peak_bytes`` -> 'peak (sim)'."""
    first, _, rest = column.partition("_")
    for end, _, _ in _UNITS:
        if rest.endswith(end):
            rest = rest.removesuffix(end)
            break
    words = rest.replace("_", " ") or column
    return f"{words} ({first})" if kind else words


def _name(cell: Cell) -> str:
    return "" if cell is None else f"{cell:g}" if isinstance(cell, float) else cell


def _float(cell: Cell) -> float:
    assert isinstance(cell, float)
    return cell
