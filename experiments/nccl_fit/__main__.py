"""NCCL's all-reduce times: fitted on every other size, predicted on the sizes in between.

    python -m experiments.nccl_fit              fit, write results/nccl_fit.csv (a row per system) and nccl_fit_points.csv, draw the picture
    python -m experiments.nccl_fit --redraw     draw from the CSVs
    python -m experiments.nccl_fit --score      errors of planner.cost.nccl on rows that it was not fitted to: results/nccl_score.csv and _rows.csv.gz
    python -m experiments.nccl_fit --against FILE.csv    errors on a table of your own, columns as in experiments.nccl_fit.rows

Three curves per system, all fitted by least squares on the relative error (experiments.nccl_fit.fit):

    ab      alpha + n / beta                       abr     alpha + n / beta + c sqrt(n)
    abs     alpha + n / beta, with one pair of constants below a fitted size and another above it (where 6 sizes or more can be fitted)

``paper`` columns are published measurements (nccl-tests logs and the look-up tables of vTrain), ``theory`` columns the fitted curve.  A mean
error is over the sizes that the fit did not see.  Systems with fewer than three sizes to fit are left out and named.
"""

from __future__ import annotations

import argparse
from math import ceil
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from rich.console import Console
from rich.table import Table

from experiments.nccl_fit.fit import Curve, TimeFit, fit_switched, fit_time, mean_error
from experiments.nccl_fit.score import scored_against, write_scores
from experiments.nccl_fit.score_picture import draw_scores, show_scores
from experiments.trust import record

__all__ = ["main", "split"]

HERE = Path(__file__).parent.parent
CSV, POINTS, PICTURE = HERE / "results/nccl_fit.csv", HERE / "results/nccl_fit_points.csv", HERE / "figures/nccl_fit.png"
SCORE_ROWS, SCORE_PICTURE = HERE / "results/nccl_score_rows.csv.gz", HERE / "figures/nccl_score.png"
NAMES = ("ab", "abr", "abs")
LABELS = {"ab": "alpha-beta", "abr": "with sqrt", "abs": "switched"}
COLOURS = {"ab": "#D55E00", "abr": "#0072B2", "abs": "#009E73"}
PAPER = HERE / "paper_numbers"
FEWEST, FEWEST_SWITCHED, TARGET = 3, 6, 0.10


def measured() -> pd.DataFrame:
    """Columns data, system, n_ranks, bytes, paper_time_s."""
    logs = pd.read_csv(PAPER / "nccl_tests_busbw.csv")
    tables = pd.read_csv(PAPER / "vtrain_nccl_allreduce_lut.csv")
    tables = tables.assign(system=tables.gpu.str.upper() + " node, " + tables.n_gpus.astype(str) + " ranks", n_ranks=tables.n_gpus)
    both = [logs.assign(data="nccl_tests_busbw"), tables.assign(data="vtrain_nccl_allreduce_lut")]
    joined = pd.concat([part[["data", "system", "n_ranks", "bytes", "time_us"]] for part in both], ignore_index=True)
    return joined.assign(paper_time_s=joined.time_us * 1e-6).drop(columns="time_us")


def split(points: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Every other size, beginning with the smallest, to fit; the rest to predict."""
    ordered = points.sort_values("bytes", kind="stable")
    return ordered.iloc[::2], ordered.iloc[1::2]


def _fit(points: pd.DataFrame, root: bool) -> TimeFit:
    return fit_time(points["bytes"].tolist(), points.paper_time_s.tolist(), root=root)


def worst_error(fit: Curve, sizes: list[int], times: list[float]) -> float:
    return max(abs(fit.time_s(n) / t - 1) for n, t in zip(sizes, times, strict=True))


def measure() -> None:
    rows, curves, left_out = [], [], []
    for (data, system), points in measured().groupby(["data", "system"], sort=False):
        used, held = split(points)
        if ceil(len(points) / 2) < FEWEST:
            left_out.append(f"{system} ({len(points)} sizes)")
            continue
        ab, abr = _fit(used, False), _fit(used, True)
        fits: dict[str, Curve] = {"ab": ab, "abr": abr}
        if len(used) >= FEWEST_SWITCHED:
            fits["abs"] = fit_switched(used["bytes"].tolist(), used.paper_time_s.tolist())
        sizes, times = held["bytes"].tolist(), held.paper_time_s.tolist()
        rows.append(
            {
                "data": data,
                "system": system,
                "n_ranks": int(points.n_ranks.iloc[0]),
                "smallest_bytes": int(points["bytes"].min()),
                "fitted_sizes": len(used),
                "predicted_sizes": len(held),
                **{f"theory_{name}_error": mean_error(fits[name], sizes, times) for name in NAMES if name in fits},
                **{f"theory_{name}_worst": worst_error(fits[name], sizes, times) for name in NAMES if name in fits},
                "abr_alpha_s": abr.alpha_s,
                "abr_s_per_byte": abr.s_per_byte,
                "abr_s_per_sqrt_byte": abr.root_s_per_sqrt_byte,
            }
        )
        for role, part in (("fitted", used), ("predicted", held)):
            theory = {f"theory_{name}_s": [fit.time_s(n) for n in part["bytes"]] for name, fit in fits.items()}
            curves.append(part.assign(role=role, **theory))
    CSV.parent.mkdir(exist_ok=True)
    pd.DataFrame(rows).to_csv(CSV, index=False, float_format="%.6g")
    pd.concat(curves).sort_values(["data", "system", "bytes"], kind="stable").to_csv(POINTS, index=False, float_format="%.6g")
    if left_out:
        Console().print(f"left out, too few sizes: {', '.join(left_out)}")


def draw() -> None:
    table, points = pd.read_csv(CSV), pd.read_csv(POINTS)
    report = Table(
        "system", "sizes fitted / predicted", *(f"{LABELS[name]}, mean (worst)" for name in NAMES), f"sqrt, switched <= {TARGET:.0%}"
    )
    for row in table.to_dict("records"):
        errors = [(row[f"theory_{name}_error"], row[f"theory_{name}_worst"]) for name in NAMES]
        cells = ("-" if pd.isna(mean) else f"{mean:.1%} ({worst:.0%})" for mean, worst in errors)
        within = " ".join("-" if pd.isna(mean) else "yes" if mean <= TARGET else "no" for mean, _ in errors[1:])
        report.add_row(str(row["system"]), f"{row['fitted_sizes']} / {row['predicted_sizes']}", *cells, within)
    Console().print(report)
    logs = table[table.data == "nccl_tests_busbw"]
    figure = Figure(figsize=(11, 6), layout="constrained")
    panels = figure.subplots(2, ceil(len(logs) / 2), squeeze=False).flat
    for panel, row in zip(panels, logs.itertuples(), strict=False):
        here = points[points.system == row.system].sort_values("bytes")
        bus = 2 * (row.n_ranks - 1) / row.n_ranks * 1e-9
        for role, mark in (("fitted", "o"), ("predicted", "x")):
            part = here[here.role == role]
            panel.plot(part["bytes"], bus * part["bytes"] / part.paper_time_s, mark, color="black", markersize=5, label=f"paper, {role}")
        for name in NAMES:
            panel.plot(here["bytes"], bus * here["bytes"] / here[f"theory_{name}_s"], color=COLOURS[name], label=f"theory, {LABELS[name]}")
        panel.set_xscale("log")
        panel.xaxis.set_minor_formatter(NullFormatter())
        panel.set_ylim(bottom=0)
        panel.set_title(f"{row.system[:40]}\n{row.theory_ab_error:.1%} -> {row.theory_abr_error:.1%} (with sqrt)", fontsize=9)
        panel.set_xlabel("bytes")
        panel.set_ylabel("bus bandwidth [GB/s]")
    for panel in list(figure.axes)[len(logs) :]:
        panel.set_visible(False)
    figure.axes[0].legend(frameon=False, fontsize=8)
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=130)
    Console().print(f"-> {CSV}, {POINTS}, {PICTURE}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--redraw", action="store_true", help="draw from the CSVs")
    parser.add_argument("--score", action="store_true", help="errors of planner.cost.nccl on rows left out of its fit; minutes")
    parser.add_argument("--against", metavar="FILE", type=Path, help="errors of planner.cost.nccl, as shipped, on the rows of a CSV")
    asked = parser.parse_args()
    if asked.against is not None:
        show_scores(scored_against(asked.against))
        return
    if asked.score:
        write_scores()
        record()
        show_scores(pd.read_csv(HERE / "results/nccl_score.csv"))
        draw_scores(pd.read_csv(SCORE_ROWS), SCORE_PICTURE)
        return
    if not asked.redraw:
        measure()
    draw()
    if SCORE_ROWS.is_file():  # of --score; a small size has none
        draw_scores(pd.read_csv(SCORE_ROWS), SCORE_PICTURE)


if __name__ == "__main__":
    main()
