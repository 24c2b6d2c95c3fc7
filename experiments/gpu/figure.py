"""The rows of one run as a picture: per setting the predicted and the measured step time, side by side."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

__all__ = ["draw", "gathered"]


def gathered(out: Path) -> pd.DataFrame:
    """The rows of all parts that left any, in one table; also written as rows.csv."""
    tables = [pd.read_csv(path) for path in sorted(out.glob("*/rows.csv"))]
    whole = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=["part", "setting", "quantity", "unit", "sim", "run"])
    whole.to_csv(out / "rows.csv", index=False)
    return whole


def draw(rows: pd.DataFrame, path: Path, caption: str) -> None:
    """Step times in ms: sim and run of one setting share a place, never a colour; whiskers are quartiles."""
    mpl.use("Agg")
    steps = rows[(rows["quantity"] == "step") & rows["sim"].notna()].reset_index(drop=True)
    figure = Figure(figsize=(9, 0.45 * max(4, len(steps)) + 1.2), layout="constrained")
    axes = figure.subplots()
    for place, row in steps.iterrows():
        at = float(place)  # type: ignore[arg-type]
        axes.barh(at - 0.2, row["sim"] * 1e3, 0.38, color="#9ecae1", label="sim" if not at else None)
        whiskers = [[(row["run"] - row["run_low"]) * 1e3], [(row["run_high"] - row["run"]) * 1e3]]
        axes.barh(at + 0.2, row["run"] * 1e3, 0.38, xerr=whiskers, color="#3182bd", label="run" if not at else None)
    axes.set_yticks(range(len(steps)), [f"{row['part']}: {row['setting']}" for _, row in steps.iterrows()])
    axes.invert_yaxis()
    axes.set_xlabel("ms per step")
    axes.set_title(caption, fontsize=9)
    if len(steps):
        axes.legend()
    figure.savefig(path, dpi=120)
