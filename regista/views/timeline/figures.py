"""The timeline's figures: acts and gaps by stream, and live bytes by category, all on one axis of time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bokeh.models import CDSView, ColumnDataSource, CustomJS, CustomJSFilter, FixedTicker, HoverTool, Range1d
from bokeh.models.annotations import Title
from bokeh.plotting import figure

from planner.ir.plan import Plan
from planner.ir.units import show_bytes
from regista.views.pictures.panels import CATEGORY_COLOURS
from regista.views.pictures.window import PANEL, Window
from regista.views.timeline.columns import Columns, act_columns, idle_columns, memory_columns
from simulator.analysis.category import Category
from simulator.analysis.curve import MemoryCurve
from simulator.analysis.idle import Idle

__all__ = ["MEMORY_PX", "acts_figure", "memory_figure"]

ROW_PX, MEMORY_PX, LABEL_PX = 24, 78, 150
TOOLS = "xpan,xwheel_zoom,xbox_zoom,reset,save"

# A number is written only into a box that is wide enough for it at the present zoom (about 1200 pixels of axis).
READABLE = """
const {left, right, label} = source.data
const per_ms = 1200 / (span.end - span.start)
const shown = []
for (let i = 0; i < label.length; i++)
  if (label[i] && (right[i] - left[i]) * per_ms > 6 * label[i].length + 4) shown.push(i)
return shown
"""


def _plot(title: str, span: Range1d, bottom: float, top: float, height_px: int) -> figure:
    plot = figure(
        title=Title(text=title, text_font_size="10pt"),
        x_range=span,
        y_range=Range1d(start=bottom, end=top),
        height=height_px,
        tools=TOOLS,
        active_scroll="xwheel_zoom",
        active_drag="xpan",
        min_border_left=LABEL_PX,
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
    )
    plot.ygrid.visible = False
    plot.axis.minor_tick_line_color = None
    plot.axis.major_tick_line_color = None
    return plot


def _source(columns: Columns) -> ColumnDataSource:
    data: dict[str, Any] = {**columns}
    return ColumnDataSource(data=data)


def acts_figure(plan: Plan, window: Window, idle: Sequence[Idle], rows: Sequence[tuple[int, str]], span: Range1d) -> figure:
    """Rows are streams of ranks; boxes are acts, pale boxes the gaps between them."""
    plot = _plot(PANEL[window.trace.source], span, len(rows) - 0.4, -0.6, 62 + ROW_PX * len(rows))
    gaps = _source(idle_columns(plan, window, idle, rows))
    boxes = _source(act_columns(plan, window, rows))
    pale = plot.quad(
        left="left", right="right", top="top", bottom="bottom", source=gaps, fill_color="#888888", fill_alpha="alpha", line_color=None
    )
    acts = plot.quad(
        left="left",
        right="right",
        top="top",
        bottom="bottom",
        source=boxes,
        fill_color="colour",
        line_color="rim",
        line_width=0.6,
        line_alpha=0.7,
    )
    view = CDSView(filter=CustomJSFilter(args={"span": span}, code=READABLE))
    plot.text(
        x="middle",
        y="y",
        text="label",
        source=boxes,
        view=view,
        text_color="ink",
        text_font_size="8pt",
        text_align="center",
        text_baseline="middle",
    )
    again = CustomJS(args={"view": view}, code="view.filter.change.emit()")
    span.js_on_change("start", again)
    span.js_on_change("end", again)
    plot.add_tools(
        HoverTool(renderers=[acts], tooltips=[("", "@what"), ("", "@more"), ("", "@when")], point_policy="follow_mouse"),
        HoverTool(renderers=[pale], tooltips=[("", "@what"), ("", "@when")], point_policy="follow_mouse"),
    )
    plot.yaxis.ticker = FixedTicker(ticks=list(range(len(rows))))
    plot.yaxis.major_label_overrides = {number: f"rank {rank}  {stream}" for number, (rank, stream) in enumerate(rows)}
    return plot


def memory_figure(curve: MemoryCurve, window: Window, span: Range1d, unit: tuple[str, int], most: float) -> figure:
    """One device's live bytes, stacked; the title says the peak of the whole trace.

    Args:
        unit: name and bytes of the axis' unit.   most: height of the axis in it, the same for all devices.
    """
    columns = memory_columns(curve, window, unit[1])
    plot = _plot(f"memory of rank {curve.rank}: peak {show_bytes(curve.peak_bytes)}", span, 0, most * 1.1 or 1, MEMORY_PX)
    source = _source(columns)
    below = "zero"
    for category in Category:
        if columns[category.value] != columns[below]:
            colour = CATEGORY_COLOURS[category]
            plot.varea_step(x="left", y1=below, y2=category.value, step_mode="after", source=source, fill_color=colour)
        below = category.value
    whole = plot.quad(left="left", right="right", bottom="zero", top="total", source=source, fill_alpha=0, line_color=None)
    plot.add_tools(HoverTool(renderers=[whole], tooltips=[("", "@what")], point_policy="follow_mouse"))
    plot.yaxis.ticker = FixedTicker(ticks=[0, most])
    plot.yaxis.major_label_overrides = {0: "0", most: f"{most:.3g} {unit[0]}"}
    plot.xaxis.visible = False
    return plot
