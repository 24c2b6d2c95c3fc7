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
from html import escape
from pathlib import Path
from statistics import median

from bokeh.embed import file_html
from bokeh.resources import INLINE

from planner.ir.plan import Plan
from planner.ir.text import save_text
from planner.ir.traces.trace import Trace
from planner.ir.units import show_bytes, show_s
from regista.analysis.comparison import Pair
from regista.report.findings import ActError, Findings, find
from regista.report.html import TEMPLATE, bytes_cell, error_cell, share_cell, table
from regista.report.svg import histogram
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
    found = find(plan, sim, run, warmup=warmup)
    drawn = draw_timeline(plan, [sim, run], steps=steps)
    head = _top(plan, found, run) + _tables(plan, found) + "<h2>Predicted above measured, and memory</h2>" + _scrolling(drawn.head)
    tail = _errors(found.acts) + _what_if(found)
    text = file_html(
        drawn.document, resources=INLINE, title=drawn.title, template=TEMPLATE, template_variables={"head": head, "tail": tail}
    )
    save_text(path, text)
    return found


def _scrolling(html: str) -> str:
    """The timeline's tables scroll by themselves where the page is narrow; their captions stay and break."""
    tables = html.replace("<table>", '<div class="wide" tabindex="0"><table>').replace("</table>", "</table></div>")
    return tables.replace("<caption>", "<caption><span>").replace("</caption>", "</span></caption>")


def _top(plan: Plan, found: Findings, run: Trace) -> str:
    compared = found.comparison
    step, spread = compared.step_time_s, compared.spread
    tiles = (
        (show_s(step.predicted), "step time, predicted (sim)"),
        (show_s(step.measured), f"step time, measured (run): median of {spread.steps}, p10 {show_s(spread.p10)}, p90 {show_s(spread.p90)}"),
        (error_cell(step.relative_error), "error: predicted / measured - 1"),
        (f"{found.bubble.predicted:.1%} / {found.bubble.measured:.1%}", "bubble, mean of ranks: sim / run"),
    )
    about = ", ".join(f"{key} {value}" for key, value in run.about.items() if key in ("cpu", "cores", "torch", "performer", "device"))
    batches = "1 micro-batch" if plan.micro_batches == 1 else f"{plan.micro_batches} micro-batches"
    shape = f"{plan.num_ranks} ranks, {batches}, {compared.warmup_steps} warm-up steps left out"
    return (
        f"<h1>{escape(plan.model)}: predicted against measured</h1>"
        f'<p class="soft">Plan {escape(plan.plan_id)}; {shape}; run by {escape(run.performer)}{escape("; " + about if about else "")}. '
        "Every number is simulated (sim) or measured (run); no column holds both.</p>"
        f'<div class="tiles">{"".join(f"""<div class="tile"><b>{value}</b><span>{escape(what)}</span></div>""" for value, what in tiles)}</div>'
    )


def _tables(plan: Plan, found: Findings) -> str:
    compared = found.comparison

    def row(what: str, pair: Pair, error: str | None = None) -> tuple[str, ...]:
        return escape(what), show_s(pair.predicted), show_s(pair.measured), error if error is not None else error_cell(pair.relative_error)

    times = [row("step", compared.step_time_s)]
    times += [row(f"{kind}, busiest rank", pair) for kind, pair in compared.kinds.items()]
    shares = found.bubble
    times.append(
        ("bubble, mean of ranks", f"{shares.predicted:.1%}", f"{shares.measured:.1%}", share_cell(shares.predicted - shares.measured))
    )
    rate = compared.throughput_per_s
    times.append(("samples per second", f"{rate.predicted:.4g}", f"{rate.measured:.4g}", error_cell(rate.relative_error)))
    fullest = sorted(found.memory, key=lambda m: (-m.held.predicted, m.rank))[:MOST_RANKS]
    held = [
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
    left = len(found.memory) - len(fullest)
    return (
        "<h2>Times</h2>"
        + table("busy seconds per step by kind of task", ("quantity", "sim", "run", "error"), times)
        + "<h2>Memory</h2>"
        + table(
            "registers and state that held data at once; the peak adds the workspace of running fragments, which a run does not see"
            + (f"; {left} emptier ranks are left out" if left else ""),
            ("", "planned, all blocks (theory)", "peak (sim)", "registers and state (sim)", "registers and state (run)", "error"),
            held,
        )
    )


def _errors(acts: Sequence[ActError]) -> str:
    errors = [act.error for act in acts]
    total_s = sum(act.measured_s for act in acts)
    weighted = sum(abs(act.error) * act.measured_s for act in acts) / total_s if total_s else 0.0
    kinds = sorted({act.kind for act in acts}, key=lambda kind: kind.value)
    rows = []
    for kind in kinds:
        mine = [act for act in acts if act.kind is kind]
        middle = median(act.error for act in mine)
        share = sum(act.measured_s for act in mine) / total_s if total_s else 0.0
        rows.append((kind.value, str(len(mine)), f"{share:.1%}", error_cell(middle), f"{median(abs(a.error) for a in mine):.1%}"))
    said = f"{len(acts)} measured acts; mean absolute error weighted by measured time: {weighted:.1%}" if acts else "no act was measured"
    return (
        "<h2>Errors of acts</h2>"
        + f"<p>{said}. Short acts err most and matter least, so the table gives each kind's share of the measured time, too.</p>"
        + histogram(errors, "predicted / measured - 1 of an act")
        + table(
            "by kind of task",
            ("kind", "acts (run)", "share of busy time (run)", "median error (sim / run - 1)", "median absolute error"),
            rows,
        )
    )


def _what_if(found: Findings) -> str:
    changes, base = found.changes, found.changes[0]
    rows, refused = [], []
    for change in changes:
        if change.step_s is None or change.register_bytes is None:
            rows.append((escape(change.what), "-", "-", "-"))
            refused.append(f"<li>{escape(change.what)}: {escape(change.why_not)}</li>")
            continue
        ratio = f"{change.step_s / base.step_s - 1:+.1%}" if base.step_s else "-"
        rows.append((escape(change.what), show_s(change.step_s), ratio, show_bytes(change.register_bytes)))
    predicted_s = found.comparison.step_time_s.predicted
    if base.step_s is not None and abs(base.step_s - predicted_s) > 1e-6 * predicted_s:
        refused.append(
            f"<li>as it is: {show_s(base.step_s)} instead of the trace's {show_s(predicted_s)}, for the trace does not say how long messages "
            "travel or was made with noise; ratios still hold among these rows</li>"
        )
    why = f"<p>Remarks:</p><ul>{''.join(refused)}</ul>" if refused else ""
    return (
        "<h2>What if</h2><p>The same Plan played by the simulator with the predicted durations of this trace. Nothing is planned anew, and "
        "links and devices are scaled whole, latencies included, so these rows say what a change can bring at most.</p>"
        + table(
            "all rows: sim",
            ("change", "step time (sim)", "against as it is", "registers and state, fullest rank (sim)"),
            rows,
        )
        + why
    )
