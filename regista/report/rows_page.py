"""The page of one CSV: what it holds against what, how far apart they are, and every row as it stands in the file."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from statistics import median

from planner.ir.text import save_text
from regista.report.html import document, error_cell, table
from regista.report.pictures import pictures_of
from regista.report.rows import Held, Rows, held_pairs, noise_floor
from regista.report.svg import histogram, parity
from regista.statistics import quantile

__all__ = ["all_rows", "save_rows_page"]

MOST_ROWS = 300
MOST_WORST = 8


def save_rows_page(rows: Rows, path: str | Path, *, back: str | None = None, pictures: Sequence[Path] = ()) -> tuple[Held, ...]:
    """Write one HTML file; returns the pairs it shows.

    Args:
        back: the index page's file name, for a link to it.   pictures: shown as they are.

    Raises:
        InvalidFile: path cannot be written, or a picture cannot be read.
    """
    pairs = held_pairs(rows)
    link = f'<p><a href="{escape(back)}">all experiments</a></p>' if back else ""
    said = f"{len(rows.rows)} rows; a column or a row says which kind its numbers are: sim, run, theory, paper."
    head = f'{link}<h1>{escape(rows.name)}</h1><p class="soft">{said}</p>'
    save_text(
        path,
        document(rows.name, head + _summary(pairs) + _noise(rows) + "".join(map(_pair, pairs)) + pictures_of(pictures) + all_rows(rows)),
    )
    return pairs


def _summary(pairs: tuple[Held, ...]) -> str:
    if not pairs:
        return "<p>This table holds no prediction against a measured or published number.</p>"
    cells = []
    for held in pairs:
        sizes = [abs(error) for error in held.errors]
        correlation = held.rank_correlation
        cells.append(
            (
                escape(held.quantity),
                f"{held.predicted} against {held.given}",
                str(len(sizes)),
                error_cell(median(held.errors)),
                f"{sum(sizes) / len(sizes):.1%}",
                f"{median(sizes):.1%}",
                f"{quantile(sizes, 0.9):.1%}",
                f"{max(sizes):.1%}",
                "-" if correlation is None else f"{correlation:.3f}",
            )
        )
    heads = (
        "quantity",
        "kinds",
        "points",
        "median error",
        "mean |error|",
        "median |error|",
        "90th percentile",
        "worst",
        "rank correlation",
    )
    return "<h2>Errors</h2>" + table("error = predicted / given - 1; rows whose role is fitted are not counted", heads, cells)


def _noise(rows: Rows) -> str:
    floor = noise_floor(rows)
    if not floor:
        return ""
    said = f"median {median(floor):.1%}, 90th percentile {quantile(floor, 0.9):.1%}, worst {max(floor):.1%}"
    return f"<p>Noise floor, the same Plan run twice ({len(floor)} points): {said}.</p>"


def _pair(held: Held) -> str:
    said = f"{held.quantity}: {held.predicted} against {held.given}"
    ordered = sorted(zip(held.errors, held.points, strict=True), key=lambda pair: -abs(pair[0]))[:MOST_WORST]
    worst = [(escape(name), f"{predicted:.4g}", f"{given:.4g}", error_cell(error)) for error, (predicted, given, name) in ordered]
    most = max(0.05, min(1.0, quantile([abs(error) for error in held.errors], 0.95)))
    measured = [(given, predicted, name) for predicted, given, name in held.points]
    return (
        f"<h2>{escape(said)}</h2>"
        + parity(measured, held.given, held.predicted)
        + histogram(held.errors, "predicted / given - 1", most=most)
        + table(f"largest errors, {len(worst)} of {len(held.points)}", ("point", held.predicted, held.given, "error"), worst, words=(0,))
    )


def all_rows(rows: Rows) -> str:
    """The section with every row as it stands in the file, MOST_ROWS at most."""
    shown = [[escape(row[column]) for column in rows.columns] for row in rows.rows[:MOST_ROWS]]
    left = len(rows.rows) - len(shown)
    return "<h2>Rows</h2>" + table(f"as in the file{f'; {left} more are not shown' if left else ''}", rows.columns, shown)
