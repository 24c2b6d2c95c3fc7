r"""The picture of a schedule as the pipeline papers draw it: one row per device, numbered micro-batches, bubbles, memory and links beneath.

predicted (sim)  rank 0  |0|1|2|3|  ////  |0|  |1|  ...  |U|      compute: forward, backward, update; hatched: bubble
                          - - - -          -    -                 beneath it, thin: what its links and communicators do
                 rank 1    |0|1|2| |0|3|1|  ...                   a device's second chunk (interleaved) in a lighter shade
memory           rank 0  __/~~~~~\____                            live bytes by category, the peak marked
links            rank 0 link0   . :: . :::                        the darker, the busier

Source: the drawing is that of Qi et al. 2023, "Zero Bubble Pipeline Parallelism", figures 1 to 5.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from planner.ir.plan import Plan, TaskKind
from planner.ir.traces.trace import Trace
from planner.ir.units import MS
from regista.analysis.chunks import chunk_of
from regista.views.pictures.gantt import COLOURS, DARK_TEXT, LABELS, save_figure
from regista.views.pictures.panels import CATEGORY_COLOURS, draw_links, draw_memory, link_rows, mark_steps, tidy
from regista.views.pictures.window import Window, compute_streams, in_order, picture_title, show_last
from simulator.analysis.category import Category
from simulator.analysis.curve import memory_curves

__all__ = ["act_colour", "bubble_share", "schedule_gantt", "shown_ranks"]

WIDTH_IN, ROW_IN, MEMORY_IN, LINK_IN = 13.0, 0.42, 0.55, 0.17
AXES_POINTS = 13.0 * 72 * 0.86
MAX_ROWS, MAX_CURVES = 32, 8
BUBBLE, HATCH = "#F0F0F0", "#CFCFCF"
COMPUTE, STRIP = (-0.42, 0.62), (0.24, 0.16)
"""(top, height) of compute boxes and of the communication strip in a row of height 1, y downwards."""


def act_colour(kind: TaskKind, chunk: int) -> str:
    """The kind's colour; of a device's second chunk (and of every other one) a lighter shade of it."""
    if chunk % 2 == 0:
        return COLOURS[kind]
    red, green, blue = to_rgb(COLOURS[kind])
    return to_hex(((1 + red) / 2, (1 + green) / 2, (1 + blue) / 2))


def shown_ranks(plan: Plan) -> tuple[int, ...]:
    """All ranks of a Plan, or the first of each placement when all would be too many rows (and the first 32 of those)."""
    ranks = sorted({rank for placement in plan.placements for rank in placement.ranks})
    if len(ranks) > MAX_ROWS:
        ranks = sorted({placement.ranks[0] for placement in plan.placements})[:MAX_ROWS]
    return tuple(ranks)


def bubble_share(plan: Plan, window: Window, rank: int) -> float:
    """Share of the shown steps in which no compute stream of a rank works (0 to 1)."""
    streams = compute_streams(plan)
    spans = sorted(
        (max(act.start_s - window.begin_s, 0.0), act.end_s - window.begin_s)
        for act in window.acts
        if act.rank == rank and plan.task[act.task].stream in streams
    )
    busy_s, until_s = 0.0, 0.0
    for begin_s, end_s in spans:
        busy_s += max(0.0, end_s - max(begin_s, until_s))
        until_s = max(until_s, end_s)
    return 1.0 - busy_s / window.length_s if window.length_s else 0.0


def schedule_gantt(
    plan: Plan, traces: Sequence[Trace], path: str | Path, *, steps: int = 1, memory: bool = False, links: bool = False
) -> None:
    """Draw the last ``steps`` steps of one trace, or of a simulated and a measured one above each other, one row per device.

    Args:
        path: the suffix gives the format (.png, .svg, .pdf); the file appears whole or not at all.
        memory: live bytes per device beneath each trace.   links: how busy each link is.

    Raises:
        Mismatch: no trace, more than two, two of one source, or one of another plan; steps < 1.   InvalidFile: path cannot be written.
    """
    ordered = in_order(traces)
    title = picture_title(plan, ordered)
    windows = [show_last(plan, trace, steps) for trace in ordered]
    length_s = max(window.length_s for window in windows)
    ranks = shown_ranks(plan)
    rows = [link_rows(plan, window, ranks)[:MAX_ROWS] if links else () for window in windows]
    heights = [
        inches
        for window, lines in zip(windows, rows, strict=True)
        for inches in (
            len(ranks) * ROW_IN + 0.45,
            *([MEMORY_IN] * min(len(ranks), MAX_CURVES) * memory),
            *([len(lines) * LINK_IN + 0.3] if lines else []),
        )
    ]
    with mpl.rc_context(
        {"font.family": "DejaVu Sans", "font.size": 8.5, "svg.hashsalt": plan.plan_id, "svg.fonttype": "none", "hatch.linewidth": 0.5}
    ):
        figure = Figure(figsize=(WIDTH_IN, 0.95 + sum(heights)), layout="constrained", facecolor="white")
        grid = iter(figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0])
        axes: Axes | None = None
        for window, lines in zip(windows, rows, strict=True):
            axes = next(grid)
            _draw_devices(plan, axes, window, ranks, length_s)
            if memory:
                curves = memory_curves(plan, window.trace, ranks)
                fullest = sorted(curves, key=lambda rank: (-curves[rank].peak_bytes, rank))[:MAX_CURVES]
                most_bytes = curves[fullest[0]].peak_bytes or 1
                heading = "memory" if len(fullest) == len(ranks) else f"memory of the {len(fullest)} fullest of {len(ranks)} devices"
                for number, rank in enumerate(sorted(fullest)):
                    axes = next(grid)
                    draw_memory(axes, curves[rank], window, length_s, most_bytes)
                    if number == 0:
                        axes.set_title(heading, loc="left", fontweight="bold", fontsize=9.5, pad=4)
            if lines:
                axes = next(grid)
                draw_links(axes, plan, window, lines, length_s)
                axes.set_title("links: the darker, the busier; at the right their mean", loc="left", fontweight="bold", fontsize=9.5, pad=4)
        assert axes is not None
        axes.set_xlabel("time from the start of the shown steps [ms]")
        figure.suptitle(title, fontsize=11, fontweight="bold", x=0.01, ha="left")
        _legend(plan, figure, memory)
        save_figure(figure, Path(path))


def _draw_devices(plan: Plan, axes: Axes, window: Window, ranks: Sequence[int], length_s: float) -> None:
    line, streams = {rank: number for number, rank in enumerate(ranks)}, compute_streams(plan)
    whole = [Rectangle((0, number + COMPUTE[0]), window.length_s / MS, COMPUTE[1]) for number in line.values()]
    axes.add_collection(PatchCollection(whole, facecolor=BUBBLE, edgecolor=HATCH, hatch="////", linewidth=0))
    chunk = chunk_of(plan)
    boxes: dict[tuple[str, bool], list[Rectangle]] = defaultdict(list)
    points_per_s = AXES_POINTS / length_s if length_s else 0.0
    for act in window.acts:
        task = plan.task[act.task]
        if act.rank not in line or plan.stream[task.stream].kind.is_host:
            continue
        strip = task.stream not in streams
        top, height = STRIP if strip else COMPUTE
        start_s, end_s = max(act.start_s - window.begin_s, 0.0), act.end_s - window.begin_s
        width_points = (end_s - start_s) * points_per_s
        colour = act_colour(task.kind, chunk.get(task.id, 0))
        boxes[colour, width_points > 3 and not strip].append(
            Rectangle((start_s / MS, line[act.rank] + top), (end_s - start_s) / MS, height)
        )
        label = str(act.number % task.acts)
        if task.acts > 1 and not strip and width_points > 5.2 * len(label) + 2:
            ink = "#222222" if task.kind in DARK_TEXT or chunk.get(task.id, 0) % 2 else "white"
            middle = line[act.rank] + top + height / 2
            axes.text((start_s + end_s) / 2 / MS, middle, label, ha="center", va="center_baseline", fontsize=7.5, color=ink, clip_on=True)
    for (colour, wide), shapes in boxes.items():
        rim, thickness = ("white", 0.6) if wide else (colour, 0.3)
        axes.add_collection(PatchCollection(shapes, facecolor=colour, edgecolor=rim, linewidth=thickness))
    tidy(axes, length_s)
    axes.set_ylim(len(ranks) - 0.5, -0.5)
    axes.set_yticks([line[rank] + COMPUTE[0] + COMPUTE[1] / 2 for rank in ranks], [f"rank {rank}" for rank in ranks], fontweight="bold")
    for rank, number in line.items():
        text = f"{bubble_share(plan, window, rank):.0%} bubble"
        axes.text(1.006, number - 0.1, text, transform=axes.get_yaxis_transform(), va="center", fontsize=7.5, color="#333333")
    mark_steps(axes, window, -0.56)


def _legend(plan: Plan, figure: Figure, memory: bool) -> None:
    kinds = [kind for kind in COLOURS if any(t.kind is kind and not plan.stream[t.stream].kind.is_host for t in plan.tasks)]
    handles = [Patch(facecolor=COLOURS[kind], edgecolor="#333333", linewidth=0.4, label=LABELS.get(kind, kind.value)) for kind in kinds]
    handles.append(Patch(facecolor=BUBBLE, edgecolor=HATCH, hatch="////", linewidth=0.4, label="bubble"))
    if memory:
        handles += [Patch(facecolor=CATEGORY_COLOURS[c], edgecolor="#333333", linewidth=0.4, label=c.value) for c in Category]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=min(len(handles), 12), frameon=False, handlelength=1.2, columnspacing=1.4
    )
