"""Published iteration times against the simulator's, end to end.

    python -m experiments.fidelity              plan, calibrate by cross-validation, score, draw: all published points
    python -m experiments.fidelity --sample 120     of vTrain's 714 single-node points so many, drawn by a fixed seed
    python -m experiments.fidelity --smoke      a few small points, a short fit, all files under out/fidelity/smoke (--out): for CI
    python -m experiments.fidelity --redraw     draw from results/fidelity.csv

Plans are kept (reduced) under out/fidelity, so a run that was interrupted goes on where it was; ``--jobs`` of them are made at once.

A100   five folds over vTrain's points, by a fixed seed; sc21 and seqpar, of another cluster of the same device, are seen by no fit
V100   five folds over DLPerf's 36 times, OneFlow's and Megatron's, with one set of constants
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.progress import track
from rich.table import Table

from experiments.common.small_size import among_committed
from experiments.fidelity.constants import CLUSTERS, load_machine, save_constants
from experiments.fidelity.figures import draw_parity, draw_residuals
from experiments.fidelity.fit import Case, predicted
from experiments.fidelity.points import Point, points, sample
from experiments.fidelity.score import FOLDS, SEED, cross_validated, order_kept, summary, table
from experiments.fidelity.works import kept_work, work_path
from experiments.trust import record

__all__ = ["main", "run"]

HERE = Path(__file__).parent.parent
RESULTS, FIGURES = HERE / "results", HERE / "figures"
KEPT = HERE.parent / "out/fidelity"
FITTED = {"a100": ("vtrain-single", "vtrain-multi"), "v100": ("dlperf",)}
HELD = {"a100": ("sc21", "seqpar"), "v100": ()}

FREE = {
    "a100": None,
    "v100": ("product_share", "sweep_share", "launch_us", "passed_latency_us", "node_share", "nic_share", "update_bytes", "step_ms"),
}
"""What is fitted.  36 times do not hold twelve constants: on the V100 the shapes of products and the growth of latencies stay where a fit begins."""


def chosen(data: str, most: int) -> tuple[Point, ...]:
    return sample(points(data), most, SEED) if data == "vtrain-single" else points(data)


def small(data: str) -> tuple[Point, ...]:
    """The points of a set that are planned soonest: two of a set that is fitted to, one of the others."""
    soonest = sorted(points(data), key=lambda p: (p.size.layers * p.pp * p.interleave, p.tp > 1, p.devices, p.micro_batches))
    return tuple(soonest[: 2 if any(data in sets for sets in FITTED.values()) else 1])


def prepared(wanted: Sequence[Point], folder: Path, jobs: int) -> list[Case]:
    """Every point with its Work, planned where it is not kept yet."""
    order = list(wanted)
    random.Random(SEED).shuffle(order)
    if jobs > 1:
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            for _ in track(pool.map(partial(kept_work, folder=folder), order), total=len(order), description="plans"):
                pass
    return [(point, kept_work(point, folder)) for point in wanted]


def run(
    machines: Iterable[str], folder: Path, results: Path, *, most: int, smoke: bool, kept: bool, jobs: int, rounds: int
) -> pd.DataFrame:
    """Plan, fit, score; ``kept``: without points that are not planned yet.

    Writes the table, its summary and, unless it is a smoke run, the machines' files."""
    console, tables = Console(), []
    for name in machines:
        pick = small if smoke else partial(chosen, most=most)

        def having(data: str, pick: Callable[[str], tuple[Point, ...]] = pick) -> list[Point]:
            planned = [point for point in pick(data) if not kept or work_path(point, folder).is_file()]
            if len(planned) < len(pick(data)):
                console.print(
                    f"{data}: {len(planned)} of {len(pick(data))} points are planned; the others are left out (without --kept they are planned)"
                )
            return planned

        cases = prepared([p for data in FITTED[name] for p in having(data)], folder, jobs)
        held = prepared([p for data in HELD[name] for p in having(data)], folder, jobs)
        began = time.perf_counter()
        machine, rows = cross_validated(
            cases, load_machine(name), rounds=rounds, free=FREE[name], on_fold=lambda number: console.print(f"fold {number} of {FOLDS}")
        )
        tables.append(rows)
        if held:
            tables.append(table(held, predicted(held, machine), ["held out"] * len(held)))
        error = rows["error"].abs()
        console.print(f"{name}: fitted in {time.perf_counter() - began:.0f} s, {error.mean():.1%} over folds")
        if not smoke:
            save_constants(
                machine,
                {
                    "script": "python -m experiments.fidelity",
                    "date": date.today().isoformat(),
                    "data": f"{' and '.join(FITTED[name])}, {len(cases)} points; seen by no fit: {' and '.join(HELD[name]) or 'none'}",
                    "error": f"mean {error.mean():.2%}, median {error.median():.2%} over {FOLDS} folds, seed {SEED}; values are of all points",
                },
                CLUSTERS,
            )
    rows = pd.concat(tables, ignore_index=True)
    results.mkdir(parents=True, exist_ok=True)
    if (results / "fidelity.csv").is_file():
        before = pd.read_csv(results / "fidelity.csv")
        rows = pd.concat([before[~before["machine"].isin(rows["machine"])], rows], ignore_index=True)
    rows.to_csv(results / "fidelity.csv", index=False, float_format="%.6g")
    summary(rows).to_csv(results / "fidelity_summary.csv", index=False, float_format="%.4g")
    both = rows[rows["data"].str.startswith("dlperf")]
    if both["system"].nunique() == 2 and both["system"].value_counts().nunique() == 1 and not smoke:
        order_kept(both).to_csv(results / "fidelity_order.csv", index=False, float_format="%.4g")
    return rows


def show(rows: pd.DataFrame) -> None:
    """The summary, and what it was held against."""
    shown = Table(title="sim against paper, absolute relative error", title_justify="left")
    for column in ("set", "points", "predicted by", "mean", "median", "90 %", "worst", "bias", "ranks", "wanted mean (worst)", "met"):
        shown.add_column(column)
    for row in summary(rows).to_dict("records"):
        errors = (f"{row[f'{key}_error']:.1%}" for key in ("mean", "median", "p90", "worst"))
        wanted = "-" if row["wanted_mean"] > 1 else f"{row['wanted_mean']:.0%} ({row['wanted_worst']:.0%})"
        shown.add_row(
            str(row["data"]),
            str(row["points"]),
            str(row["predicted_by"]),
            *errors,
            f"{row['bias']:+.1%}",
            f"{row['rank_correlation']:.3f}",
            wanted.replace("(inf%)", ""),
            "-" if wanted == "-" else "yes" if row["met"] else "no",
        )
    out = Console()
    out.width = out.width if out.is_terminal else 140
    out.print(shown)


def main(argv: Sequence[str] | None = None) -> None:
    """Plan, fit, score, print and draw, as the arguments say."""
    parser = argparse.ArgumentParser(prog="experiments.fidelity", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=10**9, metavar="N", help="so many of vTrain's single-node points (default: all)")
    parser.add_argument("--smoke", action="store_true", help="a few small points")
    parser.add_argument("--machines", nargs="+", default=list(FITTED), choices=list(FITTED), help="only these; other rows stay as they are")
    parser.add_argument("--kept", action="store_true", help="only points whose Plan is kept already")
    parser.add_argument("--redraw", action="store_true", help="draw from the CSV")
    parser.add_argument("--jobs", type=int, help="plans made at once (default 2; with --smoke 1)")
    parser.add_argument("--rounds", type=int, default=6, help="steps of the fit, at most")
    parser.add_argument("--out", type=Path, default=KEPT / "smoke", help="where --smoke writes")
    args = parser.parse_args(argv)
    if args.smoke and among_committed(args.out):
        parser.error(f"--smoke --out {args.out} would write among the committed files; choose a folder outside of {HERE.name}/")
    results = args.out if args.smoke else RESULTS
    if not args.redraw:
        run(
            args.machines,
            args.out if args.smoke else KEPT,
            results,
            most=args.sample,
            smoke=args.smoke,
            kept=args.kept,
            jobs=args.jobs or (1 if args.smoke else 2),
            rounds=2 if args.smoke else args.rounds,
        )
    rows = pd.read_csv(results / "fidelity.csv")
    show(rows)
    if not args.redraw and not args.smoke:
        record()
    if args.smoke:
        Console().print(f"--smoke: {len(rows)} points say that it works, not how well it predicts")
    pictures = results if args.smoke else FIGURES
    draw_parity(rows, pictures / "fidelity.png")
    draw_residuals(rows, pictures / "fidelity_residuals.png")


if __name__ == "__main__":
    main()
