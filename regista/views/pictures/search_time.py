"""The picture of search times: a panel per model, seconds of search over layers, a line per method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from planner.ir.errors import Unsupported
from planner.search import Method
from regista.analysis.search_time import Row
from regista.views.pictures.gantt import save_figure

__all__ = ["draw_search_time"]

_LOOKS: Mapping[Method, tuple[str, str]] = {
    Method.EXACT: ("#0072B2", "o"),
    Method.O3: ("#D55E00", "s"),
    Method.O2: ("#009E73", "^"),
    Method.GREEDY: ("#7F7F7F", "D"),
    Method.EXHAUSTIVE: ("#CC79A7", "v"),
}


def draw_search_time(rows: Sequence[Row], path: str | Path) -> None:
    """A panel per model: seconds (log) over layers (log), a line per method; hollow where the method found nothing in time.

    Raises:
        Unsupported: there are no rows.   InvalidFile: the picture cannot be written.
    """
    if not rows:
        raise Unsupported("there are no rows to draw; measure some first")
    panels = list(dict.fromkeys((row.point.model, row.point.mesh, row.point.cluster) for row in rows))
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "regista"}):
        figure = Figure(figsize=(4.2 * len(panels) + 1.2, 3.6), layout="constrained")
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axis, (model, mesh, cluster) in zip(axes, panels, strict=True):
            here = [row for row in rows if (row.point.model, row.point.mesh, row.point.cluster) == (model, mesh, cluster)]
            _panel(axis, here)
            axis.set_title(f"{model}, mesh {mesh} of {cluster}", loc="left", fontsize=9)
        axes[0].set_ylabel("seconds of search (run)")
        axes[-1].legend(frameon=False, fontsize=8)
        save_figure(figure, Path(path))


def _panel(axis: Axes, rows: Sequence[Row]) -> None:
    for method, (colour, marker) in _LOOKS.items():
        line = sorted((row for row in rows if row.point.method == method.value), key=lambda row: row.point.layers)
        if not line:
            continue
        axis.plot([r.point.layers for r in line], [r.search_s for r in line], color=colour, linewidth=1.4, label=method.value)
        for row in line:
            filled = colour if row.is_solved else "white"
            axis.plot(row.point.layers, row.search_s, marker, color=colour, markerfacecolor=filled, markersize=5)
    sizes = sorted({(row.point.layers, row.nodes) for row in rows})
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks([layers for layers, _ in sizes], [f"{layers}\n{nodes}" for layers, nodes in sizes])
    axis.minorticks_off()
    axis.set_xlabel("layers, and nodes of the choice problem; hollow: nothing found in time")
    axis.grid(visible=True, color="#e6e6e6", linewidth=0.6)
