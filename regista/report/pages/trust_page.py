"""The page "How far to trust this": every set of measurements that was predicted, how far off, how often its intervals held, what is missing.

It is made of a table with the columns COLUMNS, which the experiments write (results/trust.csv); any folder of results may have one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from planner.ir.text import save_text
from regista.report.html import Table, bad, render
from regista.report.rows import Rows, number
from regista.views.html import Cell

__all__ = ["TITLE", "is_trust_table", "save_trust_page"]

TITLE = "How far to trust this"
COLUMNS = frozenset({"set", "quantity", "device", "left_out", "published", "points", "mean_error", "inside", "half_width", "missing"})
LEAST, MOST = 0.85, 0.95
"""How often an interval of 90 % should hold."""
HEADS = (
    *("set", "quantity", "device", "numbers", "not seen by the constants", "points", "of", "mean", "median", "90 %", "worst", "bias"),
    *("interval", "held in"),
)


def is_trust_table(rows: Rows) -> bool:
    """Whether the table has a row per set of measurements, as experiments.trust writes it."""
    return set(rows.columns) >= COLUMNS


def save_trust_page(rows: Rows, path: str | Path, *, back: str | None = None, pictures: Sequence[Path] = ()) -> None:
    """Write one HTML file.

    Raises:
        InvalidFile: path cannot be written, or a picture cannot be read.
    """
    scored = [row for row in rows.rows if number(row["points"])]
    missing = [(row["set"], row["missing"], row.get("command", "")) for row in rows.rows if row["missing"]]
    page = render(
        "trust.html",
        title=TITLE,
        back=back,
        errors=Table(
            caption="errors of predictions, |predicted / given - 1|", heads=HEADS, rows=[_cells(row) for row in scored], words=(4,)
        ),
        missing=Table(
            caption="what has no prediction, and why",
            heads=("set", "what is missing", "made by"),
            rows=list(dict.fromkeys(missing)),
            words=(1,),
        ),
        sets=len({row["set"] for row in scored}),
        points=f"{sum(int(float(row['points'])) for row in scored if row['device'] == 'all' or _alone(row, scored)):,}",
        least=f"{LEAST:.0%}",
        most=f"{MOST:.0%}",
        pictures=pictures,
    )
    save_text(path, page)


def _alone(row: Mapping[str, str], rows: Sequence[Mapping[str, str]]) -> bool:
    """Whether the row is the only one of its set and quantity, so that no row of all devices counts its points already."""
    return not any(
        other["device"] == "all"
        for other in rows
        if (other["set"], other["quantity"]) == (row["set"], row["quantity"]) and other is not row
    )


def _cells(row: Mapping[str, str]) -> Sequence[Cell]:
    held, width = number(row["inside"]), number(row["half_width"])
    known, published = number(row.get("known", "")), number(row["published"])
    text = "-" if held is None else f"{held:.0%}" if known is None else f"{held:.0%} of {int(known):,}"
    shown: Cell = text if held is None or LEAST <= held <= MOST else bad(text)
    return (
        row["set"],
        row["quantity"],
        row["device"],
        f"{row.get('predicted', '')} against {row.get('given', '')}",
        row["left_out"],
        f"{int(float(row['points'])):,}",
        "" if published is None else f"{int(published):,}",
        *(_share(row.get(name, "")) for name in ("mean_error", "median_error", "p90_error", "worst_error")),
        _share(row.get("bias", ""), signed=True),
        "none" if width is None else f"\N{PLUS-MINUS SIGN} {width:.0%}",
        shown,
    )


def _share(text: str, *, signed: bool = False) -> str:
    value = number(text)
    if value is None:
        return "-"
    return f"{value:+.1%}" if signed else f"{value:.1%}"
