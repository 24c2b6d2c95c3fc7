"""The page of one CSV: predicted quantities beside measured or published ones, their errors, and every row as it stands in the file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from planner.ir.text import save_text
from regista.analysis.statistics import quantile
from regista.report.charts import histogram, parity
from regista.report.html import Table, error_cell, render
from regista.report.rows import PredictedQuantity, Rows, noise_floor, predicted_quantities

__all__ = ["all_rows", "save_rows_page"]

MOST_ROWS = 300
MOST_WORST = 8


def save_rows_page(
    rows: Rows, path: str | Path, *, back: str | None = None, pictures: Sequence[Path] = ()
) -> tuple[PredictedQuantity, ...]:
    """Write one HTML file; returns the pairs it shows.

    Args:
        back: the index page's file name, for a link to it.   pictures: shown as they are.

    Raises:
        InvalidFile: path cannot be written, or a picture cannot be read.
    """
    pairs = predicted_quantities(rows)
    page = render(
        "rows.html",
        title=rows.name,
        back=back,
        count=len(rows.rows),
        summary=_summary(pairs),
        noise=_noise(rows),
        pairs=[_pair(quantity) for quantity in pairs],
        pictures=pictures,
        all_rows=all_rows(rows),
    )
    save_text(path, page)
    return pairs


def _summary(pairs: Sequence[PredictedQuantity]) -> Table:
    cells = []
    for quantity in pairs:
        sizes = [abs(error) for error in quantity.errors]
        correlation = quantity.rank_correlation
        cells.append(
            (
                quantity.name,
                f"{quantity.predicted} against {quantity.given}",
                str(len(sizes)),
                error_cell(median(quantity.errors)),
                f"{sum(sizes) / len(sizes):.1%}",
                f"{median(sizes):.1%}",
                f"{quantile(sizes, 0.9):.1%}",
                f"{max(sizes):.1%}",
                "-" if correlation is None else f"{correlation:.3f}",
            )
        )
    heads = (
        *("quantity", "kinds", "points", "median error", "mean |error|"),
        *("median |error|", "90th percentile", "worst", "rank correlation"),
    )
    return Table(caption="error = predicted / given - 1; rows whose role is fitted are not counted", heads=heads, rows=cells)


def _noise(rows: Rows) -> dict[str, str] | None:
    floor = noise_floor(rows)
    if not floor:
        return None
    shares = {"median": median(floor), "p90": quantile(floor, 0.9), "worst": max(floor)}
    return {"count": str(len(floor))} | {name: f"{share:.1%}" for name, share in shares.items()}


def _pair(quantity: PredictedQuantity) -> dict[str, object]:
    """One quantity's section: a chart of its points, one of its errors, and the points that err most."""
    ordered = sorted(zip(quantity.errors, quantity.points, strict=True), key=lambda pair: -abs(pair[0]))[:MOST_WORST]
    worst = [(name, f"{predicted:.4g}", f"{given:.4g}", error_cell(error)) for error, (predicted, given, name) in ordered]
    most = max(0.05, min(1.0, quantile([abs(error) for error in quantity.errors], 0.95)))
    caption, heads = f"largest errors, {len(worst)} of {len(quantity.points)}", ("point", quantity.predicted, quantity.given, "error")
    return {
        "title": f"{quantity.name}: {quantity.predicted} against {quantity.given}",
        "parity": parity([(given, predicted, name) for predicted, given, name in quantity.points], quantity.given, quantity.predicted),
        "histogram": histogram(quantity.errors, "predicted / given - 1", most=most),
        "worst": Table(caption=caption, heads=heads, rows=worst, words=(0,)),
    }


def all_rows(rows: Rows) -> Table:
    """Every row as it stands in the file, MOST_ROWS at most."""
    shown = [[row[column] for column in rows.columns] for row in rows.rows[:MOST_ROWS]]
    left = len(rows.rows) - len(shown)
    return Table(caption=f"as in the file{f'; {left} more are not shown' if left else ''}", heads=rows.columns, rows=shown)
