"""Pictures of results/kernel_points.csv and kernel_models.csv: predicted over measured, against what a kernel is.  Only the CSVs are read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

__all__ = ["draw_kernels", "draw_models"]

BLUE, ORANGE = "#0072B2", "#D55E00"
PRODUCT = ("m", "n", "k", "measured_s")
ATTENTION = ("seq", "batch", "heads", "kv_heads", "measured_s")


def draw_kernels(rows: pd.DataFrame, path: Path) -> None:
    """Products above, attention below: the relative error against each size, and its median and 90 % range in eighths of the points."""
    figure = Figure(figsize=(15, 6), layout="constrained")
    panels = figure.subplots(2, 5)
    for line, (kernel, sizes) in zip(panels, (("product", PRODUCT), ("attention", ATTENTION)), strict=True):
        part = rows[rows["kernel"] == kernel]
        error = part["predicted_s"] / part["measured_s"] - 1
        for panel, size in zip(line, sizes, strict=False):
            panel.plot(part[size], error.clip(-0.5, 0.5), ".", color=BLUE, markersize=2, alpha=0.4)
            eighth = pd.qcut(part[size], 8, duplicates="drop")
            spread = pd.DataFrame({"x": part[size], "error": error}).groupby(eighth, observed=True)
            middle = spread["x"].median()
            for share, style in ((0.05, ":"), (0.5, "-"), (0.95, ":")):
                panel.plot(middle, spread["error"].quantile(share), style, color=ORANGE)
            panel.axhline(0, color="0.5", linewidth=0.8)
            panel.set(xscale="log", ylim=(-0.5, 0.5), xlabel=size.replace("_", "-"))
        line[0].set_ylabel(f"{kernel}: predicted / measured - 1")
    panels[0][4].set_visible(False)
    figure.suptitle("kernels left out at random: points, median and 90 % range (dotted)")
    figure.savefig(path, dpi=110)


def draw_models(rows: pd.DataFrame, path: Path) -> None:
    """Whole float32 models: a column per device, both ways of predicting."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    panel = figure.subplots()
    devices = sorted(rows["device"].unique())
    place = rows["device"].map({device: number for number, device in enumerate(devices)})
    shift = np.random.default_rng(0).uniform(-0.12, 0.12, len(rows))
    for offset, column, colour, label in (
        (-0.18, "kernels_known_s", BLUE, "its kernels are known, its models are not"),
        (0.18, "left_out_s", ORANGE, "nothing of the device is known but its data sheet"),
    ):
        panel.plot(place + offset + shift, rows[column] / rows["paper_s"] - 1, ".", color=colour, alpha=0.7, label=label)
    panel.axhline(0, color="0.5", linewidth=0.8)
    panel.set(ylabel="predicted / measured - 1", ylim=(-0.7, 0.7))
    panel.set_xticks(range(len(devices)), devices, rotation=20)
    panel.legend(frameon=False)
    figure.savefig(path, dpi=110)
