"""Rows of a table that is measured bit by bit."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

__all__ = ["known_rows"]


def known_rows(path: Path) -> list[dict[str, object]]:
    """The rows of a CSV, to be continued; none if there is no such file yet."""
    if not path.exists():
        return []
    return [{str(column): value for column, value in row.items()} for row in pd.read_csv(path).to_dict("records")]
