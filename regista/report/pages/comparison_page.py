"""The page of one comparison: tables, predicted above measured on one axis of time, errors of acts, memory, and what-ifs.

[step time sim] [step time run] [error] [bubble]
per kind | sim | run | error            memory | planned | sim | run | error
predicted  rank 0 |0|1|2| ...           (Bokeh: wheel zooms, pointer says why idle)      memory curves beneath
measured   rank 0 |0 |1 |2 ...
histogram of (predicted / measured - 1) of acts
what if | step time | against as it is | register memory
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from bokeh.embed import file_html
from bokeh.resources import INLINE
from markupsafe import Markup

from planner.ir.plan import Plan
from planner.ir.text import save_text
from planner.ir.traces.trace import Trace
from planner.ir.units import show_bytes, show_s
from regista.analysis.comparison import Pair
from regista.report.charts import histogram
from regista.report.findings import ActError, Findings, find
from regista.report.html import Table, bytes_cell, error_cell, render, share_cell, source
from regista.trust.interval import Prices, plan_interval
from regista.views.timeline import draw_timeline

__all__ = ["save_comparison"]

MOST_RANKS = 32
"""Rows of the memory table; the fullest come first where there are more."""


def save_comparison(
    plan: Plan, sim: Trace, run: Trace, path: str | Path, *, warmup: int | None = None, steps: int | None = None
) -> Findings:
    """Write one HTML file; returns what it shows.

    Args:
        warmup: steps of the run to leave out; None: see regista.analysis.comparison.default_warmup.
        steps: the last steps that the timeline shows; None: as many as a browser draws quickly.

    Raises:
        Mismatch: not a simulated and a measured trace of this Plan, or no step is left.   InvalidFile: path cannot be written.
    """
    findings = find(plan, sim, run, warmup=warmup)
    drawn = draw_timeline(plan, [sim, run], steps=steps)
    times, memory = _times(plan, findings), _memory(findings)
    head = render("comparison_head.html", timeline=drawn, times=times, memory=memory, **_top(plan, findings, sim, run))
    changes, remarks = _what_if(findings)
    histogram_of_acts = histogram([act.error for act in findings.acts], "predicted / measured - 1 of an act")
    tail = render(
        "comparison_tail.html",
        acts=_about_acts(findings.acts),
        histogram=histogram_of_acts,
        errors=_errors(findings.acts),
        changes=changes,
        remarks=remarks,
    )
    around = {"head": head, "tail": tail, "style": Markup(source("style.css"))}
    page = file_html(drawn.document, resources=INLINE, title=drawn.title, template=source("figures.html"), template_variables=around)
    save_text(path, page)
    return findings


def _top(plan: Plan, findings: Findings, sim: Trace, run: Trace) -> dict[str, object]:
    compared = findings.comparison
    step, spread = compared.step_time_s, compared.spread
    tiles = (
        (show_s(step.predicted), "step time, predicted (sim)"),
        (show_s(step.measured), f"step time, measured (run): median of {spread.steps}, p10 {show_s(spread.p10)}, p90 {show_s(spread.p90)}"),
        (error_cell(step.relative_error), "error: predicted / measured - 1"),
        _interval(plan, sim, step.predicted),
        (f"{findings.bubble.predicted:.1%} / {findings.bubble.measured:.1%}", "bubble, mean of ranks: sim / run"),
    )
    about = ", ".join(f"{key} {value}" for key, value in run.about.items() if key in ("cpu", "cores", "torch", "performer", "device"))
    batches = "1 micro-batch" if plan.micro_batches == 1 else f"{plan.micro_batches} micro-batches"
    shape = f"{plan.num_ranks} ranks, {batches}, {compared.warmup_steps} warm-up steps left out"
    return {"plan": plan, "shape": shape, "performer": run.performer, "about": about, "tiles": tiles}


def _interval(plan: Plan, sim: Trace, step_s: float) -> tuple[str, str]:
    """Value and words of the tile; a trace that does not say who made its prices has no interval."""
    interval = plan_interval(plan, Prices(sim.about.get("prices", Prices.OTHER.value)), step_s)
    if interval.low_s is None or interval.high_s is None:
        return "-", f"90 % interval of the prediction: {interval.why_not}"
    ends = f"{show_s(interval.low_s)} to {show_s(interval.high_s)}"
    return ends, f"90 % interval of the prediction, from the {interval.points} nearest measured points"


def _times(plan: Plan, findings: Findings) -> Table:
    compared = findings.comparison

    def row(what: str, pair: Pair) -> tuple[str, ...]:
        return what, show_s(pair.predicted), show_s(pair.measured), error_cell(pair.relative_error)

    rows = [row("step", compared.step_time_s)]
    rows += [row(f"{kind}, busiest rank", pair) for kind, pair in compared.kinds.items()]
    shares, rate = findings.bubble, compared.throughput_per_s
    bubble = share_cell(shares.predicted - shares.measured)
    rows.append(("bubble, mean of ranks", f"{shares.predicted:.1%}", f"{shares.measured:.1%}", bubble))
    rows.append(("samples per second", f"{rate.predicted:.4g}", f"{rate.measured:.4g}", error_cell(rate.relative_error)))
    return Table(caption="busy seconds per step by kind of task", heads=("quantity", "sim", "run", "error"), rows=rows)


def _memory(findings: Findings) -> Table:
    fullest = sorted(findings.memory, key=lambda m: (-m.held.predicted, m.rank))[:MOST_RANKS]
    rows = [
        (
            f"rank {m.rank}",
            show_bytes(m.planned),
            show_bytes(m.peak_sim),
            show_bytes(m.held.predicted),
            show_bytes(m.held.measured),
            bytes_cell(m.held.predicted, m.held.measured),
        )
        for m in sorted(fullest, key=lambda m: m.rank)
    ]
    left = len(findings.memory) - len(fullest)
    return Table(
        caption="registers and state that held data at once; the peak adds the workspace of running fragments, which a run does not see"
        + (f"; {left} emptier ranks are left out" if left else ""),
        heads=("", "planned, all blocks (theory)", "peak (sim)", "registers and state (sim)", "registers and state (run)", "error"),
        rows=rows,
    )


def _about_acts(acts: Sequence[ActError]) -> str:
    if not acts:
        return "no act was measured"
    total_s = sum(act.measured_s for act in acts)
    weighted = sum(abs(act.error) * act.measured_s for act in acts) / total_s if total_s else 0.0
    return f"{len(acts)} measured acts; mean absolute error weighted by measured time: {weighted:.1%}"


def _errors(acts: Sequence[ActError]) -> Table:
    total_s = sum(act.measured_s for act in acts)
    rows = []
    for kind in sorted({act.kind for act in acts}, key=lambda kind: kind.value):
        mine = [act for act in acts if act.kind is kind]
        middle = median(act.error for act in mine)
        share = sum(act.measured_s for act in mine) / total_s if total_s else 0.0
        rows.append((kind.value, str(len(mine)), f"{share:.1%}", error_cell(middle), f"{median(abs(a.error) for a in mine):.1%}"))
    heads = ("kind", "acts (run)", "share of busy time (run)", "median error (sim / run - 1)", "median absolute error")
    return Table(caption="by kind of task", heads=heads, rows=rows)


def _what_if(findings: Findings) -> tuple[Table, list[str]]:
    """The table of changes, and remarks on those that cannot be made."""
    changes, base = findings.changes, findings.changes[0]
    rows, remarks = [], []
    for change in changes:
        if change.step_s is None or change.register_bytes is None:
            rows.append((change.what, "-", "-", "-"))
            remarks.append(f"{change.what}: {change.why_not}")
            continue
        ratio = f"{change.step_s / base.step_s - 1:+.1%}" if base.step_s else "-"
        rows.append((change.what, show_s(change.step_s), ratio, show_bytes(change.register_bytes)))
    predicted_s = findings.comparison.step_time_s.predicted
    if base.step_s is not None and abs(base.step_s - predicted_s) > 1e-6 * predicted_s:
        remarks.append(
            f"as it is: {show_s(base.step_s)} instead of the trace's {show_s(predicted_s)}, for the trace does not say how long messages "
            "travel or was made with noise; ratios still hold among these rows"
        )
    heads = ("change", "step time (sim)", "against as it is", "registers and state, fullest rank (sim)")
    return Table(caption="all rows: sim", heads=heads, rows=rows), remarks
