"""The errors of planner.cost.nccl as a table and as a picture of residuals against size."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

__all__ = ["draw_scores", "show_scores"]

COLOURS = {"all_reduce": "#0072B2", "all_gather": "#009E73", "reduce_scatter": "#E69F00", "all_to_all": "#CC79A7"}


def show_scores(errors: pd.DataFrame) -> None:
    """Print results/nccl_score.csv: a row per way of leaving out, table and (interconnect, kind, group or size band)."""
    table = Table("left out", "table", "of these", "rows", "mean", "median", "p90", "signed")
    for row in errors.to_dict("records"):
        part = next((str(row[c]) for c in ("interconnect", "kind", "group", "band") if isinstance(row.get(c), str)), "all")
        cells = (f"{row[c]:.1%}" for c in ("mean_error", "median_error", "p90_error", "mean_signed"))
        table.add_row(str(row["left_out"]), str(row["table"]), part, str(int(row["rows"])), *cells)
    Console().print(table)


def draw_scores(rows: pd.DataFrame, path: Path) -> None:
    """Residuals of every left-out point against its bytes: a panel per way of leaving out, a colour per kind."""
    ways = list(dict.fromkeys(rows.left_out))
    figure = Figure(figsize=(11, 2.6 * len(ways)), layout="constrained")
    for panel, way in zip(figure.subplots(len(ways), 1, squeeze=False).flat, ways, strict=True):
        here = rows[rows.left_out == way]
        for kind, part in here.groupby("kind"):
            panel.plot(part["bytes"], 100 * part.error, ".", color=COLOURS[str(kind)], markersize=3, alpha=0.6, label=str(kind))
        panel.axhspan(-8, 8, color="0.92", zorder=0)
        panel.set_xscale("log")
        panel.set_ylim(-60, 60)
        panel.set_title(f"left out: {way}; mean {here.error.abs().mean():.1%} of {len(here)} points", fontsize=9)
        panel.set_ylabel("theory / paper - 1 [%]")
    figure.axes[0].legend(frameon=False, fontsize=8, ncols=4)
    figure.axes[-1].set_xlabel("bytes")
    figure.savefig(path, dpi=110)
