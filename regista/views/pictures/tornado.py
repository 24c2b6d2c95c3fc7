"""The tornado of a sensitivity study: a bar per constant, from the step at one end of its spread to the step at the other, the widest on top."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from planner.ir.errors import InvalidFile
from regista.analysis.sensitivity.study import Sensitivity

__all__ = ["draw_tornado"]

LOW, HIGH = "#0072B2", "#D55E00"
MOST = 20


def draw_tornado(study: Sensitivity, path: str | Path) -> None:
    """Write PNG or SVG.   Raises InvalidFile: the file cannot be written."""
    effects = study.effects[:MOST]
    figure = Figure(figsize=(9, 0.36 * len(effects) + 1.7), layout="constrained")
    axes = figure.subplots()
    for place, effect in enumerate(reversed(effects)):
        for end_s, colour in ((effect.low_s, LOW), (effect.high_s, HIGH)):
            axes.barh(place, 1e3 * (end_s - study.step_s), left=1e3 * study.step_s, height=0.62, color=colour, linewidth=0)
    axes.axvline(1e3 * study.step_s, color="black", linewidth=0.9)
    labels = [f"{e.constant.key}  \N{PLUS-MINUS SIGN}{e.constant.spread:.0%}" for e in reversed(effects)]
    axes.set_yticks(range(len(effects)), labels, fontsize=8)
    axes.set_xlabel("step in milliseconds (sim)")
    axes.set_title(
        f"{study.plan.model}, plan {study.plan.plan_id} on {study.plan.cluster.name}\nblue: the constant at its low end, orange: at its high end",
        fontsize=9,
        loc="left",
    )
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.04)
    try:
        figure.savefig(path, dpi=130)
    except (OSError, ValueError) as error:
        raise InvalidFile(f"cannot write the picture {str(path)!r} ({error}); give a .png or .svg in a folder that is there") from error
