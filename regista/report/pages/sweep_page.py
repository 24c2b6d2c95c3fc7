"""The page of one measured sweep: what its manifest claims, predicted against measured, errors beside noise, memory, kinds of tasks, and every row.

[points] [median |error|] [p90] [noise] [rank correlation]
relation | held or broken | left | right            predicted against measured, with a band of 5 %
errors | noise, on one scale                        workload | errors | choice
point | sim | run | ...      registers      processes      kinds      rows
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from markupsafe import Markup

from planner.ir.text import save_text
from regista.analysis.statistics import quantile
from regista.report.charts import histogram, parity, residuals, sets_of
from regista.report.html import Table, bad, error_cell, render
from regista.report.measured import Group, Measured, by_group, measured_points, workload
from regista.report.pages.rows_page import all_rows
from regista.report.pages.sweep_tables import (
    BAND,
    exact_registers,
    kinds_table,
    points_table,
    process_errors,
    processes_table,
    registers_table,
)
from regista.report.rows import Rows
from regista.sweep import Checked, Manifest, check
from regista.sweep.check import Verdict

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
    models = [point.model for point in points]
    errors, noises = [point.error for point in points], [point.noise for point in points if point.noise is not None]
    most = max(0.05, min(1.0, quantile([abs(value) for value in errors + noises], 0.95)))
    times, given = [(point.run_s, point.sim_s, point.label) for point in points], "step, s (run)"
    page = render(
        "sweep.html",
        title=rows.name,
        back=back,
        claim=manifest.claim if manifest is not None else None,
        about=_about(rows, points),
        tiles=_tiles(Group(name="all", points=points)),
        relations=_relations(checked) if checked is not None else None,
        parity=parity(times, given, "step, s (sim)", band=BAND, sets=models),
        residuals=residuals([(p.run_s, p.error, p.label) for p in points], given, "sim / run - 1", band=BAND, sets=models),
        models=sets_of(models),
        band=f"{BAND:.0%}",
        inside=sum(abs(error) <= BAND for error in errors),
        count=len(points),
        errors=histogram(errors, "sim / run - 1 of the step time", most=most),
        noise=histogram(noises, "farthest other run / run - 1 (run)", most=most) if noises else None,
        workloads=_workloads(by_group(points, lambda point: workload(rows, point))),
        points=points_table(points),
        registers=registers_table(points),
        exact=exact_registers(points),
        processes=processes_table(points),
        process_errors=process_errors(points),
        kinds=kinds_table(points),
        pictures=pictures,
        all_rows=all_rows(rows),
    )
    save_text(path, page)
    return points


def _about(rows: Rows, points: Sequence[Measured]) -> str:
    asked = {row["point_id"] for row in rows.rows}
    versions = ", ".join(sorted({point.cells.get("torch", "") for point in points} - {""}))
    clusters = ", ".join(sorted({point.cells.get("cluster", "") for point in points} - {""}))
    times = sorted(point.cells.get("written_at", "") for point in points)
    about = f"{len(points)} points were predicted, then run" + (
        f"; {len(asked) - len(points)} more have no run" if len(asked) > len(points) else ""
    )
    about += f". Cluster {clusters}" if clusters else ""
    about += f", torch {versions}" if versions else ""
    return about + (f", run {times[0][:16].replace('T', ' ')} to {times[-1][:16].replace('T', ' ')} UTC" if times[0] else "")


def _tiles(every: Group) -> tuple[tuple[str, str], ...]:
    noise, rank = every.noises, every.rank_correlation
    return (
        (f"{median(every.sizes):.1%}", "median |error| of the step time"),
        (f"{quantile(every.sizes, 0.9):.1%}", "90th percentile of |error|"),
        (f"{median(noise):.1%}" if noise else "-", "median |noise|: the same Plan run again"),
        (f"{quantile(noise, 0.9):.1%}" if noise else "-", "90th percentile of |noise|"),
        ("-" if rank is None else f"{rank:.3f}", "rank correlation of step times"),
    )


def _relations(checked: Checked) -> Table | None:
    def row(verdict: Verdict, reason: str = "") -> tuple[str, ...]:
        state = "held" if verdict.held else "not checked" if verdict.says else bad("broken")
        remarks = "; ".join(text for text in (verdict.where, verdict.says, f"known: {reason}" if reason else "") if text)
        return Markup("<code>{}</code>").format(verdict.relation), state, verdict.left, verdict.right, remarks

    rows = [row(verdict) for verdict in checked.expect] + [row(verdict, why) for verdict, why in checked.broken]
    if not rows:
        return None
    held = sum(verdict.held for verdict in checked.expect)
    caption = f"what the manifest expects: {held} of {len(checked.expect)} hold" + (
        f"; {checked.pending} of the manifest's {len(checked.rows)} points are not in the CSV as it now asks for them"
        if checked.pending
        else ""
    )
    return Table(caption=caption, heads=("relation", "", "left", "right", "where it is closest to breaking"), rows=rows, words=(0, 4))


def _workloads(groups: Sequence[Group]) -> Table:
    rows = []
    for group in groups:
        rank, noise = group.rank_correlation, group.noises
        rows.append(
            (
                group.name,
                str(len(group.points)),
                f"{median(group.sizes):.1%}",
                f"{max(group.sizes):.1%}",
                f"{median(noise):.1%}" if noise else "-",
                "-" if rank is None else f"{rank:.3f}",
                group.fastest.label,
                error_cell(group.choice, 0.03) if len(group.points) > 1 else "-",
            )
        )
    heads = (
        *("workload", "points", "median |error|", "worst |error|", "median |noise|", "rank correlation"),
        *("predicted fastest", "its run against the best run"),
    )
    return Table(caption="by workload; rank correlation (Spearman's) from 3 points on", heads=heads, rows=rows, words=(0, 6))
