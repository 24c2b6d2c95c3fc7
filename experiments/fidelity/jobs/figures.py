"""Pictures of results/jobs.csv: simulated over published seconds and bytes, and what the cross-validated errors go with."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

__all__ = ["draw_jobs"]

COLOURS = {"h100": "#0072B2", "gb200": "#D55E00", "a100": "#009E73"}
AGAINST = ("devices", "tp", "pp", "cp", "vp", "precision")


def draw_jobs(rows: pd.DataFrame, path: Path) -> None:
    """Above: parity of seconds (two sets) and bytes; below, per set, the errors of left-out points against the layout."""
    figure = Figure(figsize=(15, 10), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=(1, 1.3))
    panels = above.subplots(1, 3)
    for panel, data in zip(panels, ("dgxc", "golden"), strict=False):
        _parity(panel, rows[rows["data"] == data], "paper_s", "held_s", f"{data}: seconds per step, left-out groups")
    _parity(panels[2], rows[rows["data"] == "golden"], "paper_bytes", "sim_bytes", "golden: bytes allocated at the peak, last stage")
    grid = below.subplots(2, len(AGAINST), squeeze=False)
    for line, data in zip(grid, ("dgxc", "golden"), strict=True):
        part = rows[rows["data"] == data]
        for panel, column in zip(line, AGAINST, strict=True):
            levels = sorted(part[column].unique())
            places = part[column].map({level: i for i, level in enumerate(levels)})
            panel.axhline(0, color="0.5", linewidth=0.8)
            panel.plot(places, part["held_error"].clip(-1, 1), ".", color="#0072B2", markersize=3, alpha=0.5)
            panel.plot(range(len(levels)), part.groupby(column)["held_error"].median(), "_", color="#D55E00", markersize=14)
            panel.set_xticks(range(len(levels)), [str(level) for level in levels], fontsize=6, rotation=60)
            panel.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
            panel.tick_params(axis="y", labelsize=7)
            panel.set_xlabel(column, fontsize=8)
        line[0].set_ylabel(f"{data}\nsim / paper - 1, left out", fontsize=8)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=110)


def _parity(panel, part: pd.DataFrame, across: str, up: str, title: str) -> None:  # type: ignore[no-untyped-def]
    part = part[part[across].notna()]
    ends = [0.8 * float(part[[across, up]].min().min()), 1.25 * float(part[[across, up]].max().max())]
    panel.fill_between(ends, [0.9 * e for e in ends], [1.1 * e for e in ends], color="0.9", linewidth=0)
    panel.plot(ends, ends, color="0.5", linewidth=0.8)
    for machine, few in part.groupby("machine"):
        panel.plot(few[across], few[up], ".", color=COLOURS[str(machine)], markersize=4, label=str(machine))
    panel.set(xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel="paper", ylabel="sim")
    panel.set_title(title, fontsize=9)
    panel.legend(frameon=False, fontsize=8)
