"""The picture of a Plan's devices: a tile per stage, a square per device, and in each tile one group of every mesh axis.

s0  [o][o][o][o]      a tile's rows and columns are its mesh: the last axis goes to the right, all others downwards
    [x][ ][ ][ ]      o: the devices that the first one meets along the last axis, x: those along the one before it
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from math import ceil, prod, sqrt
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from planner.ir.plan import Placement, Plan
from regista.analysis.answer.answer import Answer
from regista.analysis.answer.roles import Role
from regista.views.pictures.gantt import save_figure

__all__ = ["draw_device_grid"]

_COLOURS: Mapping[Role, str] = {Role.DATA: "#0072B2", Role.TENSOR: "#D55E00", Role.CONTEXT: "#009E73", Role.COPIES: "#7F7F7F"}
_MARKS = ("o", "s", "D")
_MEANS: Mapping[Role, str] = {
    Role.DATA: "samples are split, gradients summed",
    Role.TENSOR: "layers are split, ranks meet in them",
    Role.CONTEXT: "sequences are split",
    Role.COPIES: "all compute alike",
}
_NODES = ("#EDEDED", "#D6D6D6")
_MOST_NUMBERS = 128
"""So many devices have their ranks written on them."""


def draw_device_grid(found: Answer, path: str | Path) -> None:
    """Write PNG or SVG.   Raises InvalidFile: the file cannot be written."""
    plan = found.plan
    tall = max(_shape(placement)[0] for placement in plan.placements)
    wide = max(_shape(placement)[1] for placement in plan.placements)
    columns = min(len(plan.placements), max(1, ceil(sqrt(len(plan.placements) * (tall + 2) / (wide + 1)))))
    rows = ceil(len(plan.placements) / columns)
    across, down = columns * (wide + 1), rows * (tall + 2)
    size = min(0.42, 15 / across, 18 / down)
    with mpl.rc_context({"font.size": 8, "svg.hashsalt": "regista"}):
        figure = Figure(figsize=(max(7.0, size * across), max(2.0, size * down) + 1.1), layout="constrained")
        axes = figure.subplots()
        for number, placement in enumerate(plan.placements):
            _tile(axes, found, placement, (number % columns * (wide + 1), -(number // columns) * (tall + 2)))
        axes.set_xlim(-0.2, across - 0.8)
        axes.set_ylim(-down + 1.2, 1.4)
        axes.set_aspect("equal")
        axes.axis("off")
        kinds = f"{plan.num_ranks:,} of {plan.cluster.num_devices:,} x {plan.cluster.device.kind} of {plan.cluster.name}"
        model = plan.model if len(plan.model) <= 70 else f"{plan.model[:66]} ..."
        figure.suptitle(f"{model}, plan {plan.plan_id}\n{kinds}\n{found.split_text}", fontsize=9, x=0.02, ha="left")
        figure.legend(handles=_legend(found), loc="outside lower left", frameon=False, ncols=1, fontsize=8)
        save_figure(figure, Path(path))


def _shape(placement: Placement) -> tuple[int, int]:
    """Rows and columns of a tile."""
    return prod(placement.mesh[:-1]), placement.mesh[-1]


def _tile(axes: Axes, found: Answer, placement: Placement, corner: tuple[int, int]) -> None:
    plan, (left, top) = found.plan, corner
    axes.text(left, top + 0.25, f"{placement.id}: ranks {placement.ranks[0]} .. {placement.ranks[-1]}", fontsize=7)
    for rank, place in zip(placement.ranks, product(*map(range, placement.mesh)), strict=True):
        down = 0
        for index, extent in zip(place[:-1], placement.mesh[:-1], strict=True):
            down = down * extent + index
        x, y = left + place[-1], top - 1 - down
        colour = _NODES[rank // plan.cluster.devices_per_node % 2]
        axes.add_patch(Rectangle((x + 0.04, y + 0.04), 0.92, 0.92, facecolor=colour, linewidth=0))
        if plan.num_ranks <= _MOST_NUMBERS:
            axes.text(x + 0.5, y + 0.22, str(rank), fontsize=5.5, ha="center", va="center", color="#555555")
        for axis, (role, extent) in enumerate(zip(found.roles[placement.id], placement.mesh, strict=True)):
            if extent > 1 and all(index == 0 for other, index in enumerate(place) if other != axis):
                offset = 0.25 + 0.25 * axis
                axes.plot(x + offset, y + 0.66, _MARKS[axis], color=_COLOURS[role], markersize=4.2, markeredgewidth=0)


def _legend(found: Answer) -> list[Line2D | Patch]:
    """What the marks of the first stage mean, and the shades."""
    plan = found.plan
    first = plan.placements[0]
    entries: list[Line2D | Patch] = [
        Line2D([], [], marker=_MARKS[axis], linestyle="", color=_COLOURS[role], markersize=5, label=_group_text(plan, role, extent))
        for axis, (role, extent) in enumerate(zip(found.roles[first.id], first.mesh, strict=True))
        if extent > 1
    ]
    if len(plan.placements) > 1:
        entries.append(
            Patch(color="white", label=f"pipeline {len(plan.placements)}: a tile per stage, micro-batches go from one to the next")
        )
    entries.append(Patch(color=_NODES[1], label=f"shades: nodes of {plan.cluster.devices_per_node} devices"))
    return entries


def _group_text(plan: Plan, role: Role, extent: int) -> str:
    return f"{role.value} {extent}: {_MEANS[role]}; one group of {plan.num_ranks // extent:,} is marked in each tile"
