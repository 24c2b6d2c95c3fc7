"""What the timeline shows, as columns of plain values: one list per column, one entry per box.  Times in ms from the window's start."""

from __future__ import annotations

from collections.abc import Sequence

from planner.ir.plan import Boxing, Plan
from planner.ir.units import MS, show_bytes, show_s
from regista.analysis.chunks import chunk_of
from regista.views.pictures.gantt import COLOURS, DARK_TEXT
from regista.views.pictures.schedule_gantt import act_colour
from regista.views.pictures.window import Window
from simulator.analysis.category import Category
from simulator.analysis.curve import MemoryCurve
from simulator.analysis.idle import Idle, Reason

__all__ = ["Columns", "act_columns", "idle_columns", "memory_columns"]

Columns = dict[str, list[object]]
Row = tuple[int, str]


def act_columns(plan: Plan, window: Window, rows: Sequence[Row]) -> Columns:
    """One box per act: where it lies, its colour, its micro-batch, and what the pointer is told."""
    line, chunk = {row: number for number, row in enumerate(rows)}, chunk_of(plan)
    columns: Columns = {
        name: [] for name in ("left", "right", "top", "bottom", "colour", "rim", "ink", "label", "middle", "y", "what", "when", "more")
    }
    for act in window.acts:
        task = plan.task[act.task]
        row = act.rank, task.stream
        if row not in line:
            continue
        step, micro_batch = divmod(act.number, task.acts)
        left, right = max(act.start_s - window.begin_s, 0.0) / MS, (act.end_s - window.begin_s) / MS
        waited_s = act.start_s - act.ready_s
        more = f"{task.kind.value}, rank {act.rank}, step {step}"
        if task.acts > 1:
            more += f", micro-batch {micro_batch}"
        if isinstance(task.body, Boxing):
            more += f", {task.body.collective.value}"
        entry: dict[str, object] = {
            "left": left,
            "right": right,
            "top": line[row] - 0.42,
            "bottom": line[row] + 0.42,
            "colour": act_colour(task.kind, chunk.get(act.task, 0)),
            "rim": "#FFFFFF" if task.kind.is_compute else COLOURS[task.kind],  # a white rim would hide a very narrow box
            "ink": "#222222" if task.kind in DARK_TEXT or chunk.get(act.task, 0) % 2 else "#FFFFFF",
            "label": str(micro_batch) if task.acts > 1 else "",
            "middle": (left + right) / 2,
            "y": line[row],
            "what": act.task,
            "when": f"{left:.4g} to {right:.4g} ms: {show_s(act.duration_s)}"
            + (f", ready {show_s(waited_s)} before" if waited_s > 0 else ""),
            "more": more,
        }
        for name, value in entry.items():
            columns[name].append(value)
    return columns


def idle_columns(plan: Plan, window: Window, idle: Sequence[Idle], rows: Sequence[Row]) -> Columns:
    """One thin box per idle interval of a device's streams that lies in the window, with its reason."""
    line = {row: number for number, row in enumerate(rows)}
    columns: Columns = {name: [] for name in ("left", "right", "top", "bottom", "alpha", "what", "when")}
    for gap in idle:
        left_s, right_s = max(gap.begin_s - window.begin_s, 0.0), min(gap.end_s - window.begin_s, window.length_s)
        if (gap.rank, gap.stream) not in line or right_s <= left_s or plan.stream[gap.stream].kind.is_host:
            continue
        y = line[gap.rank, gap.stream]
        entry: dict[str, object] = {
            "left": left_s / MS,
            "right": right_s / MS,
            "top": y - 0.28,
            "bottom": y + 0.28,
            "alpha": 0.05 if gap.reason is Reason.NOTHING else 0.16,
            "what": str(gap),
            "when": f"{left_s / MS:.4g} to {right_s / MS:.4g} ms: idle {show_s(right_s - left_s)}",
        }
        for name, value in entry.items():
            columns[name].append(value)
    return columns


def memory_columns(curve: MemoryCurve, window: Window, unit_bytes: int) -> Columns:
    """One entry per level that holds for some time in the window: its edges, and the stacked top of each category in ``unit_bytes``.

    The last entry is a level without width at the window's end, so that steps can be drawn from entry to entry.
    """
    names = [category.value for category in Category]
    columns: Columns = {name: [] for name in ("left", "right", "total", "zero", "what", *names)}
    ends_s = [*curve.times_s[1:], window.begin_s + window.length_s]
    last: Columns = {}
    for number, (begin_s, end_s) in enumerate(zip(curve.times_s, ends_s, strict=True)):
        left, right = max(begin_s - window.begin_s, 0.0) / MS, min(end_s - window.begin_s, window.length_s) / MS
        if right <= left:
            continue
        height, parts = 0, []
        for category in Category:
            level = curve.levels_bytes[category][number]
            height += level
            columns[category.value].append(height / unit_bytes)
            if level:
                parts.append(f"{category.value} {show_bytes(level)}")
        columns["left"].append(left)
        columns["right"].append(right)
        columns["total"].append(height / unit_bytes)
        columns["zero"].append(0.0)
        columns["what"].append(f"{show_bytes(height)}: " + ", ".join(parts))
        last = {name: values[-1:] for name, values in columns.items()}
    if last:
        last["left"] = last["right"]
    return {name: values + last.get(name, []) for name, values in columns.items()}
