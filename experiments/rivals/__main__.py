"""Plans against torch's own means: step times of the same training, measured in one run.

    python -m experiments.rivals                          measure all, write results/rivals.csv, draw figures/rivals.png
    python -m experiments.rivals --only data,pipeline     some of these ways; nothing is written
    python -m experiments.rivals --only compiled --csv experiments/results/rivals.csv     measure these anew, keep the rows of the others
    python -m experiments.rivals --redraw                 draw from the CSV

    data      data-parallel Plan    against  DistributedDataParallel                  2 ranks
    dropout   the same              against  the same, both with dropout 0.1          2 ranks
    sharded   ZeRO-3 Plan           against  fully_shard                              2 ranks
    kept      ZeRO-2 Plan           against  fully_shard(reshard_after_forward=False) 2 ranks
    pipeline  two stages, 1F1B      against  pipelining.Schedule1F1B                  2 ranks, 8 micro-batches
    interleaved  2 x 2 stages       against  pipelining.ScheduleInterleaved1F1B       2 ranks, 8 micro-batches
    zero-bubble  two stages, ZB-H1  against  pipelining.ScheduleZBVZeroBubble         2 ranks, 8 micro-batches
    compiled  data-parallel Plan    against  torch.compile(DistributedDataParallel)   2 ranks
    single    one device            against  eager training                           1 rank
    mixed     data-parallel Plan    against  DistributedDataParallel under autocast   2 ranks, bf16-mixed, dropout 0.1
    mixed-sharded  ZeRO-3 Plan      against  fully_shard(mp_policy=...)               2 ranks, bf16-mixed, dropout 0.1

Plans have no ZB-V, whose stages lie there and back (stage s lies on device s mod p here): ZB-H1, which holds as many activations, stands in for it.

Same model, values, batches, micro-batches, cut, AdamW (torch's fused kernel on both sides), gloo, threads and malloc settings; the losses of the
first steps must agree (with dropout, whose masks differ, to 1 %).  Both sides are alive all the time and take turns of some steps
(rivals/turns.py), so that a machine whose speed drifts slows both; a ratio is of one pair of neighbouring turns.

``python -m experiments.rivals.eager`` measures one device against eager training, model by model.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from backend.run_folder.merge import hardware
from experiments.rivals import JOBS, Job, Measured, against
from experiments.rivals.job import Way

__all__ = ["lines", "main", "rows_of", "summary"]

HERE = Path(__file__).parents[1]
CSV, PICTURE = HERE / "results/rivals.csv", HERE / "figures/rivals.png"
PAIRS = 4
COLOURS = {"ours": "#0072B2", "theirs": "#E69F00"}


def rows_of(measured: Measured, load: float) -> list[dict[str, object]]:
    """One row per step that counts.  ``cpu_s``: processor time of a step, the mean over its turn, all ranks together."""
    way = measured.job.way
    about = {
        "kind": "run",
        "model": measured.job.model,
        "ranks": measured.job.ranks,
        "micro_batches": measured.job.micro_batches,
        "load": load,
    }
    about |= {"loss_error": measured.loss_error}
    sides = (("ours", way.ours, measured.ours, measured.ours_cpu_s), ("theirs", way.rival, measured.theirs, measured.theirs_cpu_s))
    return [
        {"way": way.value, "side": side, "name": name, "turn": turn, "step_time_s": time_s, "cpu_s": cpu_s} | about
        for side, name, turns, used_s in sides
        for turn, (times_s, cpu_s) in enumerate(zip(turns, used_s, strict=True))
        for time_s in times_s
    ]


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """One row per way: quantiles of both sides' step times in seconds, and the speed of ours over theirs, pair of turns by pair of turns."""
    medians = []
    for way, part in table.groupby("way", sort=False):
        row: dict[str, object] = {"way": way, "pairs": part.turn.nunique(), "load": part.load.iloc[0]}
        for side, times in part.groupby("side"):
            row[f"{side}"] = times.name.iloc[0]
            row |= {
                f"{side}_{label}": times.step_time_s.quantile(q) for label, q in (("min", 0), ("p10", 0.1), ("median", 0.5), ("p90", 0.9))
            }
            row[f"{side}_cpu"] = times.cpu_s.median()
        turns = part.pivot_table(index="turn", columns="side", values=["step_time_s", "cpu_s"], aggfunc="median")
        for column, label in (("step_time_s", "ratio"), ("cpu_s", "cpu_ratio")):
            ratio = turns[column].theirs / turns[column].ours
            row |= {label: ratio.median(), f"{label}_min": ratio.min(), f"{label}_max": ratio.max()}
        medians.append(row)
    return pd.DataFrame(medians)


def _in_order(before: pd.DataFrame, anew: pd.DataFrame) -> pd.DataFrame:
    """Both, without the earlier rows of ways that were measured anew, in the order of the ways."""
    table = pd.concat([before[~before.way.isin(anew.way)], anew])
    places = {way.value: place for place, way in enumerate(Way)}
    return table.sort_values("way", key=lambda ways: ways.map(places), kind="stable")


def measure(jobs: Sequence[Job], pairs: int) -> pd.DataFrame:
    rows: list[dict[str, object]] = []
    for job in jobs:
        load = round(os.getloadavg()[0], 1)
        rows += rows_of(against(job, pairs), load)
    about = hardware(max(job.ranks for job in jobs))
    return pd.DataFrame(rows).assign(cpu=about["cpu"], cores=about["cores"], torch=torch.__version__)


def lines(pairs: int, jobs: Sequence[Job] = JOBS) -> list[tuple[str, str, str]]:
    """For make bench: (what, median, spread)."""
    table: list[tuple[str, str, str]] = []
    for row in summary(measure(jobs, pairs)).itertuples():
        for side in ("ours", "theirs"):
            low, p10, middle, p90 = (1e3 * getattr(row, f"{side}_{label}") for label in ("min", "p10", "median", "p90"))
            spread = f"min {low:.1f}, p10 {p10:.1f}, p90 {p90:.1f} ms"
            table.append((f"{row.way}: {getattr(row, side)}, step", f"{middle:.1f} ms", spread))
        spread = f"{row.ratio_min:.3f} .. {row.ratio_max:.3f}, {row.pairs} pairs of turns (above 1: the Plan is faster)"
        table.append((f"{row.way}: speed of the Plan over {row.theirs}", f"{row.ratio:.3f}", spread))
    return table


def draw(table: pd.DataFrame) -> None:
    medians = summary(table)
    figure = Figure(figsize=(16, 4), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(medians.itertuples()):
        top = 0.0
        for offset, side in ((-0.2, "ours"), (0.2, "theirs")):
            low, middle, high = (1e3 * getattr(row, f"{side}_{label}") for label in ("p10", "median", "p90"))
            axes.bar(place + offset, middle, 0.38, color=COLOURS[side])
            axes.errorbar(place + offset, middle, [[middle - low], [high - middle]], color="black", capsize=3, linewidth=1)
            top = max(top, high)
        axes.text(place, top * 1.03, f"{row.ratio:.2f} x", ha="center")
    names = [f"{row.ours}\n{row.theirs}" for row in medians.itertuples()]
    for before, after in (
        (", ", ",\n"),
        (" (", "\n("),
        ("pipelining.", "pipelining.\n"),
        ("compile(", "compile(\n"),
        ("(reshard", "\n(reshard"),
    ):
        names = [name.replace(before, after) for name in names]
    axes.set_xticks(range(len(medians)), names, fontsize=7)
    axes.set_ylabel("step time [ms], median and p10 .. p90 (run)")
    axes.margins(y=0.12)
    axes.legend(
        handles=[axes.bar(0, 0, color=COLOURS[s]) for s in COLOURS],
        labels=["Plan", "torch's own"],
        frameon=False,
        ncols=2,
        loc="upper left",
    )
    about = table.iloc[0]
    axes.set_title(
        f"Speed of the Plan over torch's own means: {about['cpu']}, {about['cores']} cores, load {table.load.min()} to {table.load.max()}, "
        f"torch {about['torch']}",
        fontsize=9,
    )
    figure.savefig(PICTURE, dpi=150)


def show(table: pd.DataFrame) -> None:
    report = Table("way", "side", "min", "p10", "median", "p90", "cpu", "speed of ours over theirs", "cpu of theirs over ours")
    for row in summary(table).itertuples():
        for side in ("ours", "theirs"):
            times = [f"{1e3 * getattr(row, f'{side}_{label}'):.1f} ms" for label in ("min", "p10", "median", "p90", "cpu")]
            first = side == "ours"
            ratios = (
                f"{row.ratio:.3f}  ({row.ratio_min:.3f} .. {row.ratio_max:.3f}, {row.pairs} pairs, load {row.load})" if first else "",
                f"{row.cpu_ratio:.3f}  ({row.cpu_ratio_min:.3f} .. {row.cpu_ratio_max:.3f})" if first else "",
            )
            report.add_row(str(row.way) if first else "", str(getattr(row, side)), *times, *ratios)
    Console(width=200).print(report)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="comma-separated ways")
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"pairs of turns (default {PAIRS})")
    parser.add_argument(
        "--csv",
        type=Path,
        help="write the steps here; rows of ways not measured stay (default: results/rivals.csv when all ways are measured)",
    )
    parser.add_argument("--redraw", action="store_true", help="draw from the CSV")
    args = parser.parse_args()
    if args.redraw:
        draw(pd.read_csv(args.csv or CSV))
        return
    if args.pairs < 1:
        parser.error(f"--pairs {args.pairs}: at least 1 pair of turns is needed")
    every = {job.way for job in JOBS}
    ways = {Way(name) for name in args.only.split(",")} if args.only else every
    table = measure([job for job in JOBS if job.way in ways], args.pairs)
    show(table)
    target = args.csv or (CSV if ways == every else None)
    if target is not None:
        target.parent.mkdir(exist_ok=True, parents=True)
        if target.exists() and ways != every:
            table = _in_order(pd.read_csv(target), table)
        table.to_csv(target, index=False)
    if target is not None and target.resolve() == CSV:
        draw(table)


if __name__ == "__main__":
    main()
