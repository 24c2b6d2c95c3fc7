"""Gantt pictures of traces: rows are streams of devices, predicted above measured, on one time axis that starts with the shown steps.

predicted (sim)   rank 0   compute  |F0|F1|B0|F2|B1 ...
                           link        |--|  |--|
measured (run)    rank 0   compute  |F0 |F1 |B0|F2 |B1 ...
                  time in ms, from the end of the step before
"""

from __future__ import annotations

import os
import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from planner.ir.errors import InvalidFile
from planner.ir.plan import Plan, TaskKind
from planner.ir.text import check_target
from planner.ir.traces.trace import Trace
from planner.ir.units import MS
from regista.views.pictures.panels import mark_steps, tidy
from regista.views.pictures.window import Window, in_order, picture_title, show_last

__all__ = ["COLOURS", "DARK_TEXT", "LABELS", "check_picture", "gantt", "gantt_rows", "save_figure"]

# Okabe & Ito 2008, "Color Universal Design": told apart with every common colour vision; the greys by lightness.
COLOURS: Mapping[TaskKind, str] = {
    TaskKind.FORWARD: "#0072B2",
    TaskKind.BACKWARD: "#009E73",
    TaskKind.WEIGHT: "#D55E00",
    TaskKind.UPDATE: "#CC79A7",
    TaskKind.BOXING: "#E69F00",
    TaskKind.TRANSFER: "#F0E442",
    TaskKind.SOURCE: "#56B4E9",
    TaskKind.PREPARE: "#A6761D",
    TaskKind.COPY: "#882255",
    TaskKind.FETCH: "#7F7F7F",
    TaskKind.STEP_INPUT: "#999933",
    TaskKind.SAVE: "#332288",
    TaskKind.OUTPUT: "#AAAAAA",
}
LABELS: Mapping[TaskKind, str] = {
    TaskKind.BOXING: "boxing (collective)",
    TaskKind.FETCH: "fetch",
    TaskKind.STEP_INPUT: "learning rate",
    TaskKind.SOURCE: "source (data)",
    TaskKind.SAVE: "save (copy of the state)",
    TaskKind.OUTPUT: "output (to the caller)",
    TaskKind.PREPARE: "prepare (data)",
    TaskKind.COPY: "copy (host to device)",
}
DARK_TEXT = frozenset({TaskKind.TRANSFER, TaskKind.BOXING, TaskKind.SOURCE, TaskKind.UPDATE})

WIDTH_IN, ROW_IN, HEAD_IN = 13.0, 0.27, 1.0
AXES_POINTS_PER_IN = 72 * 0.80  # points of axes width per inch of figure, margins taken off
MAX_ROWS = 48

Row = tuple[int, str]
"""(rank, stream id)"""


def gantt_rows(plan: Plan, traces: Sequence[Trace]) -> tuple[Row, ...]:
    """The rows of the picture, top to bottom: every stream that acts, by rank; one rank per placement when all would be too many."""
    used = {(act.rank, plan.task[act.task].stream) for trace in traces for act in trace.acts}
    if len(used) > MAX_ROWS:
        first = {placement.ranks[0] for placement in plan.placements}
        used = {row for row in used if row[0] in first}
    place = {stream.id: number for number, stream in enumerate(plan.streams)}
    kind = {stream.id: list(type(stream.kind)).index(stream.kind) for stream in plan.streams}
    return tuple(sorted(used, key=lambda row: (row[0], kind[row[1]], place[row[1]])))


def gantt(plan: Plan, traces: Sequence[Trace], path: str | Path, *, steps: int = 2) -> None:
    """Draw the last ``steps`` steps of one or two traces of a Plan.

    Args:
        traces: one trace, or the simulated and the measured one (drawn in this order whatever the order given).
        path: the suffix gives the format (.png, .svg, .pdf); the file appears whole or not at all.
        steps: steps to show of each trace, from the last backwards.

    Raises:
        Mismatch: no trace, more than two, two of one source, or one of another plan.   InvalidFile: path cannot be written.
    """
    ordered = in_order(traces)
    title = picture_title(plan, ordered)  # checks the plan ids
    rows = gantt_rows(plan, ordered)
    panels = [show_last(plan, trace, steps) for trace in ordered]
    with mpl.rc_context({"font.family": "DejaVu Sans", "font.size": 8.5, "svg.hashsalt": plan.plan_id, "svg.fonttype": "none"}):
        figure = Figure(figsize=(WIDTH_IN, HEAD_IN + len(panels) * (len(rows) * ROW_IN + 0.45)), layout="constrained", facecolor="white")
        grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False)
        length_s = max(panel.step_ends_s[-1] for panel in panels)
        for axes, panel in zip(grid[:, 0], panels, strict=True):
            _draw(plan, axes, panel, rows, length_s)
        grid[-1, 0].set_xlabel("time from the start of the shown steps [ms]")
        figure.suptitle(title, fontsize=11, fontweight="bold", x=0.01, ha="left")
        kinds = [kind for kind in COLOURS if any(task.kind is kind for task in plan.tasks)]
        handles = [Patch(facecolor=COLOURS[kind], edgecolor="#333333", linewidth=0.4, label=LABELS.get(kind, kind.value)) for kind in kinds]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, handlelength=1.2, columnspacing=1.6)
        save_figure(figure, Path(path))


def _draw(plan: Plan, axes: Axes, panel: Window, rows: Sequence[Row], length_s: float) -> None:
    line = {row: number for number, row in enumerate(rows)}
    bars: dict[tuple[TaskKind, bool], list[Rectangle]] = defaultdict(list)
    points_per_s = WIDTH_IN * AXES_POINTS_PER_IN / length_s if length_s else 0.0
    for act in panel.acts:
        task = plan.task[act.task]
        if (act.rank, task.stream) not in line:
            continue
        start_s, end_s = max(act.start_s - panel.begin_s, 0.0), act.end_s - panel.begin_s
        number = line[act.rank, task.stream]
        width_points = (end_s - start_s) * points_per_s
        bars[task.kind, width_points > 3].append(Rectangle((start_s / MS, number - 0.4), (end_s - start_s) / MS, 0.8))
        label = str(act.number % task.acts)
        if task.acts > 1 and width_points > 5.2 * len(label) + 2:
            colour = "#222222" if task.kind in DARK_TEXT else "white"
            axes.text((start_s + end_s) / 2 / MS, number, label, ha="center", va="center_baseline", fontsize=7, color=colour, clip_on=True)
    for (kind, wide), boxes in bars.items():
        # A white rim keeps neighbours apart; on bars of a few points it would eat the bar.
        rim, thickness = ("white", 0.6) if wide else (COLOURS[kind], 0.4)
        axes.add_collection(PatchCollection(boxes, facecolor=COLOURS[kind], edgecolor=rim, linewidth=thickness))
    _frame(axes, panel, rows, length_s)


def _frame(axes: Axes, panel: Window, rows: Sequence[Row], length_s: float) -> None:
    tidy(axes, length_s)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), [stream for _, stream in rows], fontsize=8)
    # The rank stands once, left of the longest stream name, and a line parts it from the next rank.
    offset = -(max(len(stream) for _, stream in rows) * 5.0 + 16)
    ranks = [rank for rank, _ in rows]
    for number, rank in enumerate(ranks):
        if number and ranks[number - 1] != rank:
            axes.axhline(number - 0.5, color="#BBBBBB", linewidth=0.8)
        if not number or ranks[number - 1] != rank:
            axes.annotate(
                f"rank {rank}",
                (0, number),
                (offset, 0),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                ha="right",
                va="center",
                fontweight="bold",
                annotation_clip=False,
            )
    mark_steps(axes, panel, -0.62)


def check_picture(path: str | Path) -> tuple[Path, str]:
    """The file and the format that ``path`` means, if a picture can be written there: asked before the work.

    Raises:
        InvalidFile: unknown suffix, or see planner.ir.text.check_target.
    """
    suffix = Path(path).suffix.lstrip(".").lower()
    formats = FigureCanvasBase.get_supported_filetypes()
    if suffix not in formats:
        raise InvalidFile(
            f"cannot draw {path}: format {suffix or 'without suffix'!r} is not among {', '.join(sorted(formats))}; name it .png or .svg"
        )
    return check_target(path), suffix


def save_figure(figure: Figure, path: Path) -> None:
    """Write a picture whole or not at all.

    Raises:
        InvalidFile: see check_picture; or the disk is full.
    """
    target, suffix = check_picture(path)
    neighbour = target.with_name(f".regista-{uuid.uuid4().hex[:12]}.tmp.{suffix}")
    metadata = {"Date": None} if suffix == "svg" else None
    try:
        figure.savefig(neighbour, format=suffix, dpi=150, metadata=metadata)
        os.replace(neighbour, target)
    except OSError as error:
        raise InvalidFile(f"cannot write {path}: {error.strerror}; give a path in an existing, writable folder") from error
    finally:
        neighbour.unlink(missing_ok=True)
