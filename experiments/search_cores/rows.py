"""What is searched, and the rows that say how long it took."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

__all__ = ["CLUSTER", "MODEL", "Row", "write_rows"]

MODEL, CLUSTER = "zoo:gpt3?batch=1536&dtype=bf16", "dgx-a100:128"

Row = dict[str, str | int | float]


def write_rows(path: Path | None, rows: Sequence[Row]) -> None:
    """Write the rows, at least one, as CSV; None: nowhere."""
    if path is None:
        return
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
