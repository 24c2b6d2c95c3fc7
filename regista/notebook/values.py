"""Which answer shows which value: the parts of its screen, as HTML."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from planner.ir.plan import Plan
from planner.ir.traces.trace import Source, Trace, steps_text
from planner.ir.units import show_bytes, show_s
from regista.analysis.answer import answer
from regista.analysis.comparison import Comparison
from regista.jobs.advice import Advice, show_advice
from regista.notebook.html import parts_html
from regista.trust.interval import objective_interval
from regista.views.tables.alike import alike_ranks
from regista.views.tables.answer import show_answer
from regista.views.tables.show import show_comparison

__all__ = ["html_of", "trace_table"]


def html_of(value: object) -> str:
    """The screen of a value as a piece of HTML that needs nothing else.

    Raises:
        TypeError: a value that has no screen.
    """
    return parts_html(_parts(value))


def _parts(value: object) -> Sequence[RenderableType]:
    match value:
        case Plan():
            return [show_answer(answer(value), objective_interval(value), None)]
        case Trace():
            return [trace_table(value)]
        case Comparison():
            return [show_comparison(value)]
        case Advice():
            return [show_advice(value)]
    raise TypeError(f"a {type(value).__name__} has no screen")


def trace_table(trace: Trace) -> Table:
    """What a Trace says without its Plan: times, losses, and the memory of its ranks."""
    kind = "predicted (sim)" if trace.source is Source.SIM else "measured (run)"
    table = Table(title=f"trace of plan {trace.plan_id}, {kind} by {escape(trace.performer)}", show_header=False)
    table.add_column("quantity")
    table.add_column("value")
    ranks = {act.rank for act in trace.acts}
    table.add_row(
        "acts", f"{len(trace.acts):,} of {len({act.task for act in trace.acts}):,} tasks on {len(ranks):,} ranks, {trace.steps} steps"
    )
    if trace.held_steps:
        table.add_row("steps held", steps_text(trace.held_steps))
    if trace.acts:
        whole_s = max(act.end_s for act in trace.acts) - min(act.start_s for act in trace.acts)
        table.add_row("time", f"{show_s(whole_s)} from the first start to the last end")
    if trace.losses:
        table.add_row("loss", f"{trace.losses[0]:.4f} -> {trace.losses[-1]:.4f}")
    for label, peak in alike_ranks(trace.peak_bytes or trace.register_bytes):
        table.add_row(f"peak memory, {label}", show_bytes(peak))
    return table
