"""Pictures of results/fidelity.csv: simulated over published, and what the errors go with.  Nothing is read but the CSV."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, PercentFormatter

__all__ = ["draw_parity", "draw_residuals"]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
AGAINST = ("hidden", "tp", "pp", "dp", "micro_batch", "micro_batches")


def draw_parity(rows: pd.DataFrame, path: Path) -> None:
    """One panel per set: paper seconds across, simulated seconds up, the diagonal and 10 % beside it."""
    groups = list(rows.groupby("data", sort=False))
    figure = Figure(figsize=(4 * ((len(groups) + 1) // 2), 7.6), layout="constrained")
    panels = figure.subplots(2, (len(groups) + 1) // 2, squeeze=False).flat
    for panel, (data, part) in zip(panels, groups, strict=False):
        ends = [0.8 * float(part[["paper_s", "sim_s"]].min().min()), 1.25 * float(part[["paper_s", "sim_s"]].max().max())]
        panel.fill_between(ends, [0.9 * e for e in ends], [1.1 * e for e in ends], color="0.9", linewidth=0)
        panel.plot(ends, ends, color="0.5", linewidth=0.8)
        for colour, (tp, few) in zip(COLOURS, part.groupby("tp"), strict=False):
            panel.plot(few["paper_s"], few["sim_s"], ".", color=colour, markersize=5, label=f"tp {tp}")
        panel.set(
            xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel="paper: seconds per iteration", ylabel="sim: seconds per iteration"
        )
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_minor_formatter(NullFormatter())
        how = " and ".join(sorted({by.split()[0] for by in part["predicted_by"]}))
        panel.set_title(f"{data}: {len(part)} points, mean error {part['error'].abs().mean():.1%} ({how})", fontsize=9)
        panel.legend(frameon=False, fontsize=7)
    for panel in list(figure.axes)[len(groups) :]:
        panel.set_visible(False)
    _save(figure, path)


def draw_residuals(rows: pd.DataFrame, path: Path) -> None:
    """Rows of panels: sets; columns: hidden size, tp, pp, dp, micro-batch and micro-batches against the relative error."""
    groups = list(rows.groupby("data", sort=False))
    figure = Figure(figsize=(2.5 * len(AGAINST), 1.9 * len(groups)), layout="constrained")
    panels = figure.subplots(len(groups), len(AGAINST), squeeze=False)
    for number, (line, (data, part)) in enumerate(zip(panels, groups, strict=True)):
        for panel, column in zip(line, AGAINST, strict=True):
            levels = sorted(part[column].unique())
            places = part[column].map({level: i for i, level in enumerate(levels)})
            panel.axhline(0, color="0.5", linewidth=0.8)
            panel.plot(places, part["error"], ".", color=COLOURS[0], markersize=3, alpha=0.6)
            panel.plot(range(len(levels)), part.groupby(column)["error"].median(), "_", color=COLOURS[1], markersize=12)
            panel.set_xticks(range(len(levels)), [str(level) for level in levels], fontsize=6, rotation=60 if len(levels) > 6 else 0)
            panel.set_xlim(-0.6, len(levels) - 0.4)
            panel.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
            panel.tick_params(axis="y", labelsize=7)
            if number == len(groups) - 1:
                panel.set_xlabel(column.replace("_", "-"), fontsize=8)
        line[0].set_ylabel(f"{data}\nsim / paper - 1", fontsize=7)
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=120)
