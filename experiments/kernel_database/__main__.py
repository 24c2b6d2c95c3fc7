"""The kernel database of planner.cost.kernels: how it is built, and how far off it is.

    python -m experiments.kernel_database --score           leave points out, predict them, write results/kernel_*.csv and draw (a minute)
    python -m experiments.kernel_database --redraw          draw from the CSVs
    python -m experiments.kernel_database --build FOLDER    tables.npz and constants.toml anew, from the published CSVs in FOLDER
    python -m experiments.kernel_database --scans           rates.csv of planner.cost.scans anew (scans.py)

kernel_summary.csv   errors by kernel, by what was left out (score.py, whole_models.py) and by device
kernel_points.csv    of the fifth that was left out at random, THINNED points per device
kernel_models.csv    all whole models
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from experiments.kernel_database.build import build
from experiments.kernel_database.figures import draw_kernels, draw_models
from experiments.kernel_database.scans import write_rates
from experiments.kernel_database.score import left_out_attention, left_out_products, summary
from experiments.kernel_database.surfaces import SEED, Stored, fit_surfaces, save_constants
from experiments.kernel_database.whole_models import law_of_all, whole_models
from experiments.trust import record
from planner.cost.kernels.tables import GENERIC, constants

__all__ = ["main"]

HOME = Path(str(resources.files("planner.cost.kernels")))
RESULTS, FIGURES = (Path(__file__).parent.parent / name for name in ("results", "figures"))
THINNED = 150
WANTED = {
    ("product", "a fifth"): "median 6 %, 90 % 15 %",
    ("attention", "a fifth"): "median 8 %",
    ("model", "a kind of device"): "mean 12 %",
}


def stored() -> Stored:
    """The shipped tables."""
    with np.load(HOME / "tables.npz", allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def rebuild(folder: Path) -> None:
    """Tables, then surfaces, then the law of shares, which needs both."""
    size = build(folder, HOME / "tables.npz")
    fitted = fit_surfaces(stored())
    save_constants(fitted, HOME / "constants.toml")
    constants.cache_clear()
    law = dict(zip(("share_c", "share_a", "share_most"), law_of_all(), strict=True))
    fitted[GENERIC]["float32"] |= {key: float(f"{value:.5g}") for key, value in law.items()}
    save_constants(fitted, HOME / "constants.toml")
    print(f"{HOME / 'tables.npz'}: {size} bytes")


def score() -> None:
    """Write the three CSVs."""
    tables = stored()
    products = pd.concat(left_out_products(tables), ignore_index=True)
    attention = pd.concat(left_out_attention(tables), ignore_index=True)
    models = whole_models()
    known = models.dropna().assign(left_out="models", measured_s=lambda r: r["paper_s"], predicted_s=lambda r: r["kernels_known_s"])
    others = models.assign(left_out="a kind of device", measured_s=lambda r: r["paper_s"], predicted_s=lambda r: r["left_out_s"])
    every = (("product", products), ("attention", attention), ("model", pd.concat([others, known], ignore_index=True)))
    pd.concat([summary(rows, kernel) for kernel, rows in every], ignore_index=True).to_csv(
        RESULTS / "kernel_summary.csv", index=False, float_format="%.4g"
    )
    points = []
    for kernel, rows in every[:2]:
        fifth = rows[rows["left_out"] == "a fifth"].sample(frac=1, random_state=SEED)
        points.append(fifth.groupby("device").head(THINNED).sort_values("device", kind="stable").assign(kernel=kernel))
    pd.concat(points, ignore_index=True).drop(columns="left_out").convert_dtypes().to_csv(
        RESULTS / "kernel_points.csv", index=False, float_format="%.4g"
    )
    models.to_csv(RESULTS / "kernel_models.csv", index=False, float_format="%.5g")


def show() -> None:
    """The summary of all devices, and what is wanted."""
    rows = pd.read_csv(RESULTS / "kernel_summary.csv")
    table = Table(title="predicted against measured, absolute relative error", title_justify="left")
    for column in ("kernel", "left out", "device", "points", "median", "mean", "90 %", "bias", "wanted"):
        table.add_column(column)
    for row in rows.sort_values("device", key=lambda names: names != "all", kind="stable").to_dict("records"):
        errors = (f"{row[f'{key}_error']:.1%}" for key in ("median", "mean", "p90"))
        wanted = WANTED.get((str(row["kernel"]), str(row["left_out"])), "-") if row["device"] == "all" else ""
        table.add_row(*(str(row[key]) for key in ("kernel", "left_out", "device", "points")), *errors, f"{row['bias']:+.1%}", wanted)
    out = Console()
    out.width = out.width if out.is_terminal else 140
    out.print(table)


def main(argv: Sequence[str] | None = None) -> None:
    """Build, score, draw, as the arguments say."""
    parser = argparse.ArgumentParser(
        prog="experiments.kernel_database", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build", type=Path, metavar="FOLDER", help="build tables.npz and constants.toml from the CSVs in this folder")
    parser.add_argument("--scans", action="store_true", help="fit the rates of scans to the committed rows")
    parser.add_argument("--score", action="store_true", help="leave points out and predict them")
    parser.add_argument("--redraw", action="store_true", help="draw from the CSVs")
    args = parser.parse_args(argv)
    if args.build is not None:
        rebuild(args.build)
    if args.scans:
        write_rates()
    if args.score:
        score()
        record()
    if args.score or args.redraw:
        draw_kernels(pd.read_csv(RESULTS / "kernel_points.csv"), FIGURES / "kernel_residuals.png")
        draw_models(pd.read_csv(RESULTS / "kernel_models.csv"), FIGURES / "kernel_models.png")
        show()
    elif args.build is None and not args.scans:
        parser.print_help()


if __name__ == "__main__":
    main()
