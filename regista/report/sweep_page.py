"""The page of one measured sweep: what its manifest claims, predicted against measured, errors beside noise, memory, kinds of tasks, every row.

[points] [median |error|] [p90] [noise] [rank correlation]
relation | held or broken | left | right            predicted against measured, with a band of 5 %
errors | noise, on one scale                        workload | errors | choice
point | sim | run | ...      registers      processes      kinds      rows
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from statistics import median

from planner.ir.text import save_text
from regista.report.html import document, error_cell, table
from regista.report.measured import Group, Measured, by_group, measured_points
from regista.report.pictures import pictures_of
from regista.report.rows import Rows
from regista.report.rows_page import all_rows
from regista.report.svg import histogram, parity, residuals
from regista.report.sweep_tables import BAND, kinds_table, points_table, processes_table, registers_table
from regista.statistics import quantile
from regista.sweep import Checked, Manifest, check
from regista.sweep.check import Verdict
from regista.sweep.point import PLAN_KEYS

__all__ = ["save_sweep_page"]


def save_sweep_page(
    rows: Rows,
    path: str | Path,
    *,
    back: str | None = None,
    manifest: Manifest | None = None,
    csv: Path | None = None,
    pictures: Sequence[Path] = (),
) -> tuple[Measured, ...]:
    """Write one HTML file; returns the points it shows.

    Args:
        rows: of a sweep of which at least one point was run (regista.report.measured.is_measured_sweep).
        back: the index page's file name, for a link to it.   manifest, csv: of the sweep, for its relations; without them the page has none.
        pictures: shown as they are.

    Raises:
        InvalidFile: path cannot be written, or a picture or the CSV cannot be read.
    """
    points = measured_points(rows)
    checked = check(manifest, csv) if manifest is not None and csv is not None else None
    workloads = by_group(points, lambda point: _workload(rows, point))
    body = (
        (f'<p><a href="{escape(back)}">all experiments</a></p>' if back else "")
        + f"<h1>{escape(rows.name)}: predicted against measured</h1>"
        + _about(rows, points, manifest)
        + _tiles(Group(name="all", points=points))
        + _relations(checked)
        + _scatter(points)
        + _histograms(points)
        + _workloads(workloads)
        + points_table(points)
        + registers_table(points)
        + processes_table(points)
        + kinds_table(points)
        + pictures_of(pictures)
        + all_rows(rows)
    )
    save_text(path, document(rows.name, body))
    return points


def _workload(rows: Rows, point: Measured) -> str:
    """The model and those of its options that the sweep varies: columns of a point that are no option of planning or running."""
    fields = rows.columns[rows.columns.index("label") + 1 :]
    fields = fields[: fields.index("plan_id")] if "plan_id" in fields else ()
    options = [name for name in fields if name not in (*PLAN_KEYS, "model") and not name.startswith(("run_", "simulate_"))]
    varied = [name for name in options if len({row[name] for row in rows.rows if row.get("model") == point.cells.get("model")}) > 1]
    return ", ".join((_model(point), *(f"{name} {point.cells[name]}" for name in varied if point.cells[name])))


def _model(point: Measured) -> str:
    return point.cells.get("model", "").removeprefix("zoo:") or "all"


def _about(rows: Rows, points: Sequence[Measured], manifest: Manifest | None) -> str:
    asked = {row["point_id"] for row in rows.rows}
    versions = ", ".join(sorted({point.cells.get("torch", "") for point in points} - {""}))
    clusters = ", ".join(sorted({point.cells.get("cluster", "") for point in points} - {""}))
    times = sorted(point.cells.get("written_at", "") for point in points)
    said = f"{len(points)} points were predicted, then run" + (
        f"; {len(asked) - len(points)} more have no run" if len(asked) > len(points) else ""
    )
    said += f". Cluster {clusters}" if clusters else ""
    said += f", torch {versions}" if versions else ""
    said += f", run {times[0][:16].replace('T', ' ')} to {times[-1][:16].replace('T', ' ')} UTC" if times[0] else ""
    text = f'<p class="soft">{escape(said)}. Each Plan is calibrated and simulated (sim) before it is run (run); no column holds both.</p>'
    if manifest is not None:
        text = f"<p>Claim: {escape(manifest.claim)}.</p>" + text
    return text


def _tiles(every: Group) -> str:
    noise, rank = every.noises, every.rank_correlation
    tiles = (
        (f"{median(every.sizes):.1%}", "median |error| of the step time"),
        (f"{quantile(every.sizes, 0.9):.1%}", "90th percentile of |error|"),
        (f"{median(noise):.1%}" if noise else "-", "median |noise|: the same Plan run again"),
        (f"{quantile(noise, 0.9):.1%}" if noise else "-", "90th percentile of |noise|"),
        ("-" if rank is None else f"{rank:.3f}", "rank correlation of step times"),
    )
    return f'<div class="tiles">{"".join(f"""<div class="tile"><b>{value}</b><span>{escape(what)}</span></div>""" for value, what in tiles)}</div>'


def _relations(checked: Checked | None) -> str:
    if checked is None:
        return ""

    def row(verdict: Verdict, known: str = "") -> tuple[str, ...]:
        state = "held" if verdict.held else "not checked" if verdict.says else '<span class="bad">broken</span>'
        said = "; ".join(text for text in (verdict.where, verdict.says, f"known: {known}" if known else "") if text)
        return f"<code>{escape(verdict.relation)}</code>", state, escape(verdict.left), escape(verdict.right), escape(said)

    rows = [row(verdict) for verdict in checked.expect] + [row(verdict, why) for verdict, why in checked.broken]
    if not rows:
        return ""
    held = sum(verdict.held for verdict in checked.expect)
    said = f"what the manifest expects: {held} of {len(checked.expect)} hold" + (
        f"; {checked.pending} of the manifest's {len(checked.rows)} points are not in the CSV as it now asks for them"
        if checked.pending
        else ""
    )
    return "<h2>Relations</h2>" + table(said, ("relation", "", "left", "right", "where it is closest to breaking"), rows, words=(0, 4))


def _scatter(points: Sequence[Measured]) -> str:
    pairs = [(point.run_s, point.sim_s, point.label) for point in points]
    inside = sum(abs(point.error) <= BAND for point in points)
    sets = [_model(point) for point in points]
    return (
        "<h2>Predicted against measured step time</h2>"
        + '<div class="pair">'
        + f"<div>{parity(pairs, 'step, s (run)', 'step, s (sim)', band=BAND, sets=sets)}</div>"
        + residuals([(point.run_s, point.error, point.label) for point in points], "step, s (run)", "sim / run - 1", band=BAND, sets=sets)
        + "</div>"
        + f'<p class="soft">One dot per point; times on logarithmic axes. The line is equality, the band {BAND:.0%} around it: '
        f"{inside} of {len(points)} points lie in it.</p>"
    )


def _histograms(points: Sequence[Measured]) -> str:
    errors = [point.error for point in points]
    noise = [point.noise for point in points if point.noise is not None]
    most = max(0.05, min(1.0, quantile([abs(value) for value in errors + noise], 0.95)))
    beside = histogram(noise, "farthest other run / run - 1 (run)", most=most) if noise else "<p>No point was run twice.</p>"
    return (
        "<h2>Errors beside noise</h2><p>Both have one scale. Noise is the same Plan run again, the run that is farthest from the one that counts: "
        "no prediction can be surer.</p>"
        f'<div class="pair">{histogram(errors, "sim / run - 1 of the step time", most=most)}{beside}</div>'
    )


def _workloads(groups: Sequence[Group]) -> str:
    rows = []
    for group in groups:
        rank, noise = group.rank_correlation, group.noises
        rows.append(
            (
                escape(group.name),
                str(len(group.points)),
                f"{median(group.sizes):.1%}",
                f"{max(group.sizes):.1%}",
                f"{median(noise):.1%}" if noise else "-",
                "-" if rank is None else f"{rank:.3f}",
                escape(group.fastest.label),
                error_cell(group.choice, 0.03) if len(group.points) > 1 else "-",
            )
        )
    heads = ("workload", "points", "median |error|", "worst |error|", "median |noise|", "rank correlation", "predicted fastest")
    return (
        "<h2>Choosing a Plan</h2><p>A workload is a model with its options; a planner chooses among its points. The last column is the "
        "measured step time of the Plan that is predicted fastest over that of the fastest, less 1.</p>"
        + table("by workload; rank correlation (Spearman's) from 3 points on", (*heads, "its run against the best run"), rows, words=(0, 6))
    )
