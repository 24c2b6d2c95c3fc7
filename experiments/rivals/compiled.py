"""One device with compiled kernels (``run --kernels compiled``) against torch.compile, eager training, and the same Plan op by op, in turns in one run.

    python -m experiments.rivals.compiled                     measure all, write results/compiled.csv, draw figures/compiled.png
    python -m experiments.rivals.compiled --only convnet      this model; nothing is written
    python -m experiments.rivals.compiled --redraw            draw from the CSV

All sides compile before the turns, on one core, with AdamW as one fused kernel.  Ratios are times of theirs over ours: above 1 compiled kernels are
faster; processor time is the steadier of the two on a machine that others use.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import torch
from matplotlib.figure import Figure

from backend.run_folder.merge import hardware
from experiments.rivals.__main__ import rows_of, show, summary
from experiments.rivals.job import MODEL, Job, Way
from experiments.rivals.turns import against

__all__ = ["MODELS", "RIVALS", "draw", "main"]

HERE = Path(__file__).parents[1]
CSV, PICTURE = HERE / "results/compiled.csv", HERE / "figures/compiled.png"
MODELS: Mapping[str, str] = {"gpt": MODEL, "convnet": "zoo:convnet?batch=32&channels=32&size=32&optimizer=adamw"}
RIVALS = (Way.COMPILED_SINGLE, Way.SINGLE, Way.OP_BY_OP)
PAIRS = 4
CLOSE, COMPARED = 1e-3, 4
"""Of the losses of the first 4 steps; batch norm enlarges rounding from step to step (experiments.rivals.eager)."""


def measure(models: Mapping[str, str], pairs: int) -> pd.DataFrame:
    rows: list[dict[str, object]] = []
    for name, model in models.items():
        for way in RIVALS:
            job = Job(way=way, ranks=1, model=model, close=CLOSE, compared=COMPARED, kernels="compiled")
            load = round(os.getloadavg()[0], 1)
            rows += [row | {"way": f"{name}, {way.rival}"} for row in rows_of(against(job, pairs), load)]
    about = hardware(1)
    return pd.DataFrame(rows).assign(cpu=about["cpu"], cores=about["cores"], torch=torch.__version__)


def draw(table: pd.DataFrame) -> None:
    rows = summary(table)
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    for offset, label, colour, what in ((-0.2, "ratio", "#56B4E9", "step time"), (0.2, "cpu_ratio", "#0072B2", "processor time")):
        spread = [rows[label] - rows[f"{label}_min"], rows[f"{label}_max"] - rows[label]]
        places = [place + offset for place in range(len(rows))]
        axes.bar(places, rows[label], 0.38, color=colour, label=what)
        axes.errorbar(places, rows[label], spread, fmt="none", color="black", capsize=3, linewidth=1)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(range(len(rows)), [name.replace(", ", ",\n", 1) for name in rows.way], fontsize=8)
    axes.set_ylabel("theirs over ours, median and range of pairs (run)")
    axes.legend(frameon=False)
    about = table.iloc[0]
    axes.set_title(
        f"Compiled kernels on one device, above 1 they are faster: {about['cpu']}, 1 thread, load {table.load.min()} to {table.load.max()}, "
        f"torch {about['torch']}",
        fontsize=9,
    )
    figure.savefig(PICTURE, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="comma-separated models")
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"pairs of turns (default {PAIRS})")
    parser.add_argument("--redraw", action="store_true", help="draw from the CSV")
    args = parser.parse_args()
    if args.redraw:
        draw(pd.read_csv(CSV))
        return
    names = args.only.split(",") if args.only else list(MODELS)
    if unknown := [name for name in names if name not in MODELS]:
        parser.error(f"--only {unknown[0]}: no such model; there are {', '.join(MODELS)}")
    table = measure({name: MODELS[name] for name in names}, args.pairs)
    show(table)
    if not args.only:
        table.to_csv(CSV, index=False)
        draw(table)


if __name__ == "__main__":
    main()
