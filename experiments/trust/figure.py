"""The residuals of every set in one picture: a line per set and way of leaving out, a dot per point."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from experiments.trust.scored import ScoredSet

__all__ = ["draw"]

SEED, MOST = 2026, 500
COLOURS = {"sim": "#0072B2", "theory": "#009E73"}
TICKS = (0.25, 0.5, 0.8, 0.9, 1.0, 1.1, 1.25, 2.0, 4.0)
ENDS = 0.2, 5.0


def draw(sets: Sequence[ScoredSet], path: Path) -> None:
    """Predicted over given; dots beyond the ends lie on them.  Bars: between which 90 % of a set's points lie."""
    rng = np.random.default_rng(SEED)
    figure = Figure(figsize=(11, 0.32 * len(sets) + 1.4), layout="constrained")
    axes = figure.subplots()
    axes.axvspan(0.9, 1.1, color="0.92", linewidth=0)
    axes.axvline(1, color="0.5", linewidth=0.8)
    labels = []
    for place, scored in enumerate(reversed(sets)):
        ratio = 1 + scored.points["error"].to_numpy(dtype=np.float64)
        shown = ratio if len(ratio) <= MOST else rng.choice(ratio, MOST, replace=False)
        spread = rng.uniform(-0.28, 0.28, len(shown))
        colour = COLOURS[scored.predicted]
        axes.plot(np.clip(shown, *ENDS), place + spread, ".", color=colour, markersize=3, alpha=0.35, markeredgewidth=0)
        low, high = np.clip(np.quantile(ratio, (0.05, 0.95)), *ENDS)
        axes.plot([low, high], [place, place], color="black", linewidth=1.2, solid_capstyle="butt")
        axes.plot([np.clip(np.median(ratio), *ENDS)], [place], "|", color="#D55E00", markersize=9, markeredgewidth=2)
        held = scored.left_out.partition(":")[0]
        labels.append(f"{scored.name}, {scored.quantity} ({len(ratio)})\nleft out: {held}")
    axes.set_yticks(range(len(sets)), labels, fontsize=6)
    axes.set_xscale("log")
    axes.set_xlim(ENDS[0] * 0.95, ENDS[1] * 1.05)
    axes.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
    axes.minorticks_off()
    axes.set_ylim(-0.7, len(sets) - 0.3)
    axes.set_xlabel(
        "predicted / given.  Blue: sim, green: theory.  Grey: within 10 %.  Black: where 90 % of the points lie.  Orange: median",
        fontsize=8,
    )
    axes.tick_params(axis="x", labelsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
