"""Panels that stand beneath a Gantt picture, on its time axis: live bytes per device by category, and how busy each link is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.image import AxesImage

from planner.ir.plan import Plan
from planner.ir.units import GIB, KIB, MIB, MS, show_bytes
from regista.views.pictures.window import PANEL, Window
from simulator.analysis.category import Category
from simulator.analysis.curve import MemoryCurve

__all__ = ["CATEGORY_COLOURS", "BUSY_COLOURS", "draw_links", "draw_memory", "link_rows", "link_use", "mark_steps", "tidy"]

# Paul Tol 2021, "Colour schemes", the light scheme: told apart with every common colour vision; none of them is a colour of an act.
CATEGORY_COLOURS: Mapping[Category, str] = {
    Category.PARAMETERS: "#C4C4C4",
    Category.OPTIMIZER: "#AAAA00",
    Category.GRADIENTS: "#44BB99",
    Category.ACTIVATIONS: "#77AADD",
    Category.REGISTERS: "#EEDD88",
    Category.WORKSPACE: "#EE8866",
}
BUSY_COLOURS = LinearSegmentedColormap.from_list("busy", ["#F4F4F4", "#7A4A00"])
BINS = 300


def tidy(axes: Axes, length_s: float) -> None:
    """No frame, no ticks, a light grid in time; x in milliseconds from the window's start."""
    axes.set_xlim(0, length_s / MS * 1.005)
    axes.tick_params(length=0)
    axes.set_axisbelow(True)
    axes.grid(axis="x", color="#E4E4E4", linewidth=0.6)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#BBBBBB")


def mark_steps(axes: Axes, window: Window, top: float) -> None:
    """A dashed line where each step of the window ends, its time above it at ``top``, and the panel's title."""
    begins = (0.0, *window.step_ends_s[:-1])
    for number, (begin_s, end_s) in enumerate(zip(begins, window.step_ends_s, strict=True)):
        axes.axvline(end_s / MS, color="#444444", linewidth=0.9, linestyle=(0, (4, 3)))
        text = f"step {window.first_step + number}:  {(end_s - begin_s) / MS:.4g} ms"
        axes.text((begin_s + end_s) / 2 / MS, top, text, ha="center", va="bottom", fontsize=8, color="#444444")
    axes.set_title(PANEL[window.trace.source], loc="left", fontweight="bold", fontsize=9.5, pad=6)


def draw_memory(axes: Axes, curve: MemoryCurve, window: Window, length_s: float, most_bytes: int) -> None:
    """One device: categories stacked, a mark on the peak if it lies in the window.

    Args:
        most_bytes: height of the axis, the same for all devices of a picture.
    """
    unit, scale = next(((u, s) for u, s in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)) if most_bytes >= s), ("B", 1))
    times_ms = [(time_s - window.begin_s) / MS for time_s in curve.times_s]
    total = [level / scale for level in curve.total_bytes]
    # Levels that hold for no time (blocks given back and taken at one instant) would only make the outline ripple.
    lasting = [i for i, at_ms in enumerate(times_ms) if i + 1 == len(times_ms) or times_ms[i + 1] > at_ms]
    lasting.append(lasting[-1])
    edges_ms = [*(times_ms[i] for i in lasting[:-1]), max(length_s / MS, times_ms[-1])]
    levels = [[curve.levels_bytes[c][i] / scale for i in lasting] for c in Category]
    axes.stackplot(edges_ms, levels, colors=[CATEGORY_COLOURS[c] for c in Category], step="post", linewidth=0)
    axes.step(edges_ms, [total[i] for i in lasting], where="post", color="#555555", linewidth=0.7)
    tidy(axes, length_s)
    axes.set_ylim(0, most_bytes / scale * 1.3)
    axes.set_yticks([0, most_bytes / scale], ["0", f"{most_bytes / scale:.3g} {unit}"], fontsize=7.5)
    axes.grid(axis="y", color="#E4E4E4", linewidth=0.6)
    axes.set_ylabel(f"rank {curve.rank}", rotation=0, ha="right", va="center", fontweight="bold", labelpad=14)
    # The mark stands on the highest level of the window; steady steps reach the same one again and again, the first is marked.
    inside = [i for i, at_ms in enumerate(times_ms) if 0 <= at_ms <= length_s / MS] or [len(total) - 1]
    highest = max(inside, key=total.__getitem__)
    text = f"peak {show_bytes(curve.total_bytes[highest])} at {max(times_ms[highest], 0.0):.4g} ms"
    if curve.total_bytes[highest] < curve.peak_bytes:
        text += f"  (in an earlier step {show_bytes(curve.peak_bytes)})"
    axes.plot([max(times_ms[highest], 0.0)], [total[highest]], marker="v", markersize=4.5, color="#222222", clip_on=False)
    axes.text(1.0, 0.97, text, transform=axes.transAxes, ha="right", va="top", fontsize=7.5, color="#333333")


def link_rows(plan: Plan, window: Window, ranks: Sequence[int]) -> tuple[tuple[int, str], ...]:
    """(rank, stream) of every link and communicator of ``ranks`` that acts in the window."""
    busy = {(act.rank, plan.task[act.task].stream) for act in window.acts if act.rank in ranks}
    place = {stream.id: number for number, stream in enumerate(plan.streams)}
    moves = {plan.tasks[i].stream for i in range(len(plan.tasks)) if plan.tasks[i].kind.is_communication}
    links = {row for row in busy if row[1] in moves and not plan.stream[row[1]].kind.is_host}
    return tuple(sorted(links, key=lambda row: (row[0], place[row[1]])))


def link_use(
    plan: Plan, window: Window, rows: Sequence[tuple[int, str]], length_s: float, bins: int = BINS
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Busy share of each row in each of ``bins`` equal parts of the axis: shape (rows, bins), 0 to 1."""
    width_s = length_s / bins
    spans: dict[tuple[int, str], list[tuple[float, float]]] = defaultdict(list)
    for act in window.acts:
        spans[act.rank, plan.task[act.task].stream].append((max(act.start_s - window.begin_s, 0.0), act.end_s - window.begin_s))
    edges = np.arange(bins + 1) * width_s
    use = np.zeros((len(rows), bins))
    for number, row in enumerate(rows):
        for begin_s, end_s in spans[row]:
            covered = np.clip(edges, begin_s, end_s)
            use[number] += np.diff(covered)
    return np.clip(use / width_s, 0.0, 1.0) if width_s else use


def draw_links(axes: Axes, plan: Plan, window: Window, rows: Sequence[tuple[int, str]], length_s: float) -> AxesImage:
    """One strip per link: the darker, the busier; at its right the mean over the shown steps."""
    use = link_use(plan, window, rows, length_s)
    image = axes.imshow(
        use, aspect="auto", interpolation="nearest", cmap=BUSY_COLOURS, vmin=0, vmax=1, extent=(0, length_s / MS, len(rows) - 0.5, -0.5)
    )
    tidy(axes, length_s)
    axes.grid(visible=False)
    for number in range(1, len(rows)):
        axes.axhline(number - 0.5, color="white", linewidth=2)
    axes.set_yticks(range(len(rows)), [f"rank {rank}  {stream}" for rank, stream in rows], fontsize=7.5)
    shown = use.mean(axis=1) * length_s / window.length_s if window.length_s else use.mean(axis=1)
    for number, share in enumerate(shown):
        axes.text(1.006, number, f"{share:.0%}", transform=axes.get_yaxis_transform(), va="center", fontsize=7.5, color="#333333")
    return image
