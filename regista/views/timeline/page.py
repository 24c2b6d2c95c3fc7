r"""The page: Bokeh draws the boxes and embeds its own JavaScript, so the file needs no network and no server.

    model: predicted 12.3 ms per step
    rank | bubble | waits for data | ... | peak memory | held by
    predicted (sim)   rank 0 compute  |0|1|2|  ...          wheel: zoom in time, drag: pan, pointer: what, when, why
    memory rank 0     ___/~~~\____                          the same time axis

Why Bokeh: kept and BSD-licensed, 1.3 MB of JavaScript in the file (plotly.js: 4.8 MB), draws on a canvas (thousands of boxes stay quick),
and its figures share one axis object, which keeps memory under the acts at every zoom.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bokeh.document import Document
from bokeh.embed import file_html
from bokeh.events import DocumentReady
from bokeh.layouts import gridplot
from bokeh.models import CustomJS, Range1d
from bokeh.plotting import figure
from bokeh.resources import INLINE
from markupsafe import Markup

from planner.ir.plan import Plan
from planner.ir.text import save_text
from planner.ir.traces.trace import Trace
from planner.ir.units import GIB, KIB, MIB, MS, show_bytes
from regista.views.html import Table, environment
from regista.views.pictures.gantt import COLOURS, LABELS, gantt_rows
from regista.views.pictures.panels import CATEGORY_COLOURS
from regista.views.pictures.window import PANEL, Window, compute_streams, in_order, picture_title, show_last
from regista.views.timeline.figures import MEMORY_PX, acts_figure, memory_figure
from simulator.analysis.curve import MemoryCurve, memory_curves
from simulator.analysis.idle import Idle, Reason, idle_times

__all__ = ["TEMPLATES", "Timeline", "draw_timeline", "save_timeline"]

MOST_ACTS = 20_000
"""More boxes than this make a browser slow; earlier steps are left out first."""

MOST_CURVES = 16
"""Devices with a memory curve; the fullest come first when there are more."""

AXIS_PX = 45

INK = CustomJS(
    code="""
    const dark = window.matchMedia("(prefers-color-scheme: dark)")
    const paint = () => {
      const [ink, line] = dark.matches ? ["#DDDDDD", "#444444"] : ["#222222", "#E0E0E0"]
      for (const axis of axes) {
        axis.major_label_text_color = ink
        axis.axis_label_text_color = ink
        axis.axis_line_color = line
      }
      for (const grid of grids) grid.grid_line_color = line
      for (const title of titles) title.text_color = ink
    }
    dark.addEventListener("change", paint)
    paint()
    """
)
"""Figures are transparent; the page's colours come from the style sheet, the text's on the canvas from here."""

TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """What a page shows.   about: the Plan and the shown steps.   keys: per kind of figure its name, and what its colours mean: (name, colour).
    tables: per trace where the time of the compute streams went.   document: Bokeh's, with the figures.
    """

    title: str
    about: str
    keys: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    tables: tuple[Table, ...]
    document: Document


def save_timeline(plan: Plan, traces: Sequence[Trace], path: str | Path, *, steps: int | None = None) -> None:
    """Write one HTML file with the timeline of one trace, or of a simulated and a measured one on a common axis.

    Args:
        steps: the last steps of each to show; None: as many as both have and 20,000 acts allow, at least one.

    Raises:
        Mismatch: no trace, more than two, two of one source, or one of another plan; steps < 1.   InvalidFile: path cannot be written.
    """
    drawn = draw_timeline(plan, traces, steps=steps)
    head = Markup(environment(TEMPLATES).get_template("head.html").render(timeline=drawn))
    around = (TEMPLATES / "timeline.html").read_text(encoding="utf-8")
    save_text(path, file_html(drawn.document, resources=INLINE, title=drawn.title, template=around, template_variables={"head": head}))


def draw_timeline(plan: Plan, traces: Sequence[Trace], *, steps: int | None = None) -> Timeline:
    """The figures of save_timeline, for a page of the caller's.  Raises Mismatch as save_timeline."""
    ordered = in_order(traces)
    title = picture_title(plan, ordered)
    shown = min(_fitting(trace) for trace in ordered) if steps is None else steps
    windows = [show_last(plan, trace, shown) for trace in ordered]
    length_s = max(window.length_s for window in windows)
    rows = gantt_rows(plan, ordered)
    ranks = sorted({rank for rank, _ in rows})
    span = Range1d(start=0, end=length_s / MS * 1.002, bounds=(0, length_s / MS * 1.002))
    plots: list[figure] = []
    tables: list[Table] = []
    for window in windows:
        idle = idle_times(plan, window.trace, ranks)
        curves = memory_curves(plan, window.trace, ranks)
        plots.append(acts_figure(plan, window, idle, rows, span))
        fullest = sorted(curves, key=lambda rank: (-curves[rank].peak_bytes, rank))[:MOST_CURVES]
        unit = _unit(max(curve.peak_bytes for curve in curves.values()))
        most = max(curve.peak_bytes for curve in curves.values()) / unit[1]
        plots += [memory_figure(curves[rank], window, span, unit, most) for rank in sorted(fullest)]
        tables.append(_table(plan, window, ranks, idle, curves))
    plots[-1].xaxis.visible = True
    plots[-1].xaxis.axis_label = "time from the start of the shown steps [ms]"
    plots[-1].height = MEMORY_PX + AXIS_PX
    document = Document()
    document.title = title
    document.add_root(
        gridplot(
            [[plot] for plot in plots],
            merge_tools=True,
            sizing_mode="stretch_width",
            toolbar_location="right",
            toolbar_options={"logo": None},
        )
    )
    ink = INK.clone()
    ink.args = {
        "axes": [axis for plot in plots for axis in plot.axis],
        "grids": [grid for plot in plots for grid in plot.grid],
        "titles": [plot.title for plot in plots],
    }
    document.js_on_event(DocumentReady, ink)
    said = ", ".join(f"{len(w.step_ends_s)} of {w.trace.steps} steps {PANEL[w.trace.source]}" for w in windows)
    return Timeline(title=title, about=f"Plan {plan.plan_id}; {said}", keys=_keys(plan), tables=tuple(tables), document=document)


def _fitting(trace: Trace) -> int:
    return max(1, min(trace.steps, MOST_ACTS * trace.steps // max(len(trace.acts), 1)))


def _unit(most_bytes: int) -> tuple[str, int]:
    return next(((name, scale) for name, scale in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)) if most_bytes >= scale), ("B", 1))


def _keys(plan: Plan) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    kinds = [(LABELS.get(kind, kind.value), colour) for kind, colour in COLOURS.items() if any(task.kind is kind for task in plan.tasks)]
    memory = [(category.value, colour) for category, colour in CATEGORY_COLOURS.items()]
    return ("acts", tuple(kinds)), ("memory", tuple(memory))


def _table(plan: Plan, window: Window, ranks: Sequence[int], idle: Sequence[Idle], curves: Mapping[int, MemoryCurve]) -> Table:
    """Per device: bubble, why its compute stream waited in the shown steps, and its peak with the largest owners."""
    reasons = [reason for reason in Reason if any(gap.reason is reason for gap in idle)]
    waited = {(rank, reason): 0.0 for rank in ranks for reason in reasons}
    streams = compute_streams(plan)
    num_streams = Counter(rank for stream in streams for rank in plan.placement[plan.stream[stream].placement].ranks)
    for gap in idle:
        if gap.stream in streams and window.length_s:
            begin_s = max(gap.begin_s, window.begin_s)
            idle_s = max(0.0, min(gap.end_s, window.begin_s + window.length_s) - begin_s)
            waited[gap.rank, gap.reason] += idle_s / window.length_s / num_streams[gap.rank]
    rows = []
    for rank in ranks:
        curve = curves[rank]
        owners = ", ".join(f"{o.id} {show_bytes(o.size_bytes)} ({o.category.value})" for o in curve.owners[:3])
        shares = [f"{waited[rank, reason]:.1%}" for reason in reasons]
        bubble = f"{sum(waited[rank, reason] for reason in reasons):.1%}"
        rows.append((str(rank), bubble, *shares, show_bytes(curve.peak_bytes), owners))
    what = "idle compute streams by what they waited for, in shares of the shown steps; peak memory (the plan's sizes at these times)"
    heads = ("rank", "bubble", *(reason.value for reason in reasons), "peak", "held by")
    return Table(caption=f"{PANEL[window.trace.source]}: {what}", heads=heads, rows=rows, words=(len(heads) - 1,))
