"""The picture of a training: its loss over steps, what evaluations measured, and the learning rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from planner.ir.errors import Unsupported
from regista.views.pictures.gantt import save_figure

__all__ = ["Curves", "draw_training"]

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#7F7F7F")
_SMOOTHED = 20
"""A curve of so many points at least is drawn with its mean over a twentieth of them."""


class Curves(Protocol):
    """What is drawn of a training (regista.training.history.History).   names: of what evaluations measure."""

    names: tuple[str, ...]

    def losses(self) -> Mapping[int, float]:
        """Step -> its training loss."""
        ...

    def evaluations(self) -> Mapping[int, Mapping[str, float]]:
        """Step -> what was measured after it."""
        ...


def draw_training(histories: Mapping[str, Curves], path: str | Path, *, title: str = "") -> None:
    """A panel of losses, one per metric of the evaluations, a line per training; evaluations are marked.

    Args:
        histories: name of a training -> its table.

    Raises:
        Unsupported: there are no rows.   InvalidFile: the picture cannot be written.
    """
    if not any(history.losses() for history in histories.values()):
        raise Unsupported("there are no rows to draw; train some steps first")
    metrics = [name for name in dict.fromkeys(name for h in histories.values() for name in h.names) if name != "loss"]
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "regista"}):
        figure = Figure(figsize=(5.0 + 3.4 * len(metrics), 3.4), layout="constrained")
        axes = figure.subplots(1, 1 + len(metrics), squeeze=False)[0]
        for number, (name, history) in enumerate(histories.items()):
            _losses(axes[0], history, _COLOURS[number % len(_COLOURS)], name, dashed=number > 0)
        axes[0].set_title("loss (run): training, evaluated", loc="left")
        for axis, metric in zip(axes[1:], metrics, strict=True):
            for number, (name, history) in enumerate(histories.items()):
                points = {step: values[metric] for step, values in history.evaluations().items() if metric in values}
                _line(axis, points, _COLOURS[number % len(_COLOURS)], name, dashed=number > 0)
            axis.set_title(f"{metric} (run), evaluated", loc="left")
        for axis in axes:
            axis.set_xlabel("steps")
            axis.grid(color="#E4E4E4", linewidth=0.6)
            axis.set_axisbelow(True)
        axes[0].legend(frameon=False, fontsize=8)
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=10)
        save_figure(figure, Path(path))


def _losses(axis: Axes, history: Curves, colour: str, name: str, *, dashed: bool) -> None:
    steps, losses = list(history.losses()), list(history.losses().values())
    axis.plot(steps, losses, color=colour, linewidth=0.7, alpha=0.35)
    smooth = _smoothed(losses)
    axis.plot(steps[len(steps) - len(smooth) :], smooth, color=colour, linewidth=1.5, linestyle=_style(dashed), label=f"{name}, training")
    points = {step: values["loss"] for step, values in history.evaluations().items()}
    if points:
        _line(axis, points, colour, f"{name}, evaluated", dashed=dashed)


def _line(axis: Axes, points: Mapping[int, float], colour: str, name: str, *, dashed: bool) -> None:
    filled = "white" if dashed else colour
    axis.plot(
        list(points), list(points.values()), marker="o", markersize=6 if dashed else 4, markerfacecolor=filled, color=colour,
        linewidth=1.0, linestyle=_style(dashed), label=name, zorder=2 if dashed else 3,
    )  # fmt: skip


def _style(dashed: bool) -> str:
    return "--" if dashed else "-"


def _smoothed(losses: Sequence[float]) -> list[float]:
    """The mean over the steps before and at each step."""
    width = max(1, len(losses) // _SMOOTHED)
    sums = np.cumsum([0.0, *losses])
    return list((sums[width:] - sums[:-width]) / width)
