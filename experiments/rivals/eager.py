"""One device against plain eager training, model by model: ``local:1`` and the loop that a user of torch writes, in turns in one run.

    python -m experiments.rivals.eager                    measure all, write results/eager.csv, draw figures/eager.png
    python -m experiments.rivals.eager --only gpt,lstm    these models; nothing is written
    python -m experiments.rivals.eager --redraw           draw from the CSV

The rival's optimizer is torch.optim.AdamW as it comes (foreach and fused are torch's choice).  Ratios are step times of ours over those of
eager training: below 1 the Plan is faster.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from backend.run_folder.merge import hardware
from experiments.rivals.job import Job, Way
from experiments.rivals.turns import Measured, against
from planner.ir.errors import Mismatch, RegistaError

__all__ = ["MODELS", "main", "rows_of", "summary"]

HERE = Path(__file__).parents[1]
CSV, PICTURE = HERE / "results/eager.csv", HERE / "figures/eager.png"
_ARCHITECTURES = Path(__file__).with_name("architectures.py")
WRITTEN = ("mobilenet_v2", "mobilenet_v3", "efficientnet", "densenet", "convnext", "swin", "lstm", "gru")

MODELS: Mapping[str, str] = {
    "gpt": "zoo:gpt?layers=2&width=256&heads=8&vocab=2048&batch=8&seq=64",
    "gpt, dropout": "zoo:gpt?layers=2&width=256&heads=8&vocab=2048&batch=8&seq=64&dropout=0.1",
    "bert": "zoo:bert?layers=2&width=256&heads=4&vocab=2048&batch=8&seq=64",
    "llama3": "zoo:llama3?layers=2&width=256&heads=8&kv_heads=4&hidden=512&vocab=2048&batch=8&seq=64",
    "t5": "zoo:t5?layers=2&width=256&heads=4&hidden=512&vocab=2048&batch=8&seq=64",
    "moe": "zoo:moe?layers=2&width=256&heads=4&experts=4&hidden=512&vocab=2048&batch=8&seq=64",
    "mlp": "zoo:mlp?batch=256&width=512&hidden=2048&depth=4&optimizer=adamw",
    "vit": "zoo:vit?batch=8&image=64&patch=8&classes=100&layers=4&width=192&heads=3",
    "alexnet": "zoo:alexnet?batch=8&image=128&classes=100&width=32&optimizer=adamw",
    "vgg19": "zoo:vgg19?batch=8&image=32&classes=100&width=16&optimizer=adamw",
    "convnet": "zoo:convnet?batch=32&channels=32&size=32&optimizer=adamw",
    "resnet50": "zoo:resnet50?batch=8&image=64&classes=100&layers=50&width=16&optimizer=adamw",
    "wide_resnet": "zoo:wide_resnet?batch=8&image=64&classes=100&layers=26&width=16&widen=2&optimizer=adamw",
    "unet": "zoo:unet?batch=2&image=64&width=16&optimizer=adamw",
    "insightface": "zoo:insightface?batch=8&classes=1000&layers=18&width=16&vector=128&optimizer=adamw",
    "wide_deep": "zoo:wide_deep?batch=256&vocab=20000&embedding=16&layers=4&width=256",
    "dlrm": "zoo:dlrm?batch=256&rows=2000&optimizer=adamw",
    **{name: f"{_ARCHITECTURES}:{name}" for name in WRITTEN},
}
"""Name -> model, of a size whose step takes some tens of milliseconds on one core."""
PAIRS = 4
CLOSE, COMPARED = 1e-2, 4
"""Of the losses of the first 4 steps: batch norm over few samples enlarges rounding from step to step.  Torch's own losses of this ResNet-50,
with oneDNN and without, are 0.3 % apart in step 3 and 5 % in step 4."""


def rows_of(name: str, measured: Measured, load: float) -> list[dict[str, object]]:
    """One row per step that counts; ``cpu_s``: processor time of a step, the mean over its turn."""
    sides = (("ours", measured.ours, measured.ours_cpu_s), ("eager", measured.theirs, measured.theirs_cpu_s))
    return [
        {"kind": "run", "model": name, "side": side, "turn": turn, "step_time_s": time_s, "cpu_s": cpu_s}
        | {"program": measured.job.model.replace(str(_ARCHITECTURES), _ARCHITECTURES.name), "load": load, "loss_error": measured.loss_error}
        for side, turns, used_s in sides
        for turn, (times_s, cpu_s) in enumerate(zip(turns, used_s, strict=True))
        for time_s in times_s
    ]


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """One row per model: median step times in seconds, and the ratio of ours over eager, pair of turns by pair of turns."""
    rows = []
    for model, part in table.groupby("model", sort=False):
        turns = part.pivot_table(index="turn", columns="side", values=["step_time_s", "cpu_s"], aggfunc="median")
        row: dict[str, object] = {"model": model, "pairs": len(turns), "load": part.load.iloc[0], "loss_error": part.loss_error.iloc[0]}
        for column, label in (("step_time_s", "ratio"), ("cpu_s", "cpu_ratio")):
            ratio = turns[column].ours / turns[column].eager
            row |= {label: ratio.median(), f"{label}_min": ratio.min(), f"{label}_max": ratio.max()}
        row |= {f"{side}_s": part[part.side == side].step_time_s.median() for side in ("ours", "eager")}
        rows.append(row)
    return pd.DataFrame(rows)


def measure(models: Mapping[str, str], pairs: int, console: Console) -> pd.DataFrame:
    rows: list[dict[str, object]] = []
    for name, model in models.items():
        load = round(os.getloadavg()[0], 1)
        job = Job(way=Way.SINGLE, ranks=1, model=model, fused=False, close=CLOSE, compared=COMPARED)
        for last in (False, True):
            try:
                rows += rows_of(name, against(job, pairs), load)
                break
            except RegistaError as error:
                again = isinstance(error, Mismatch) and not last
                console.print(f"{name}: {'measured again' if again else 'no row'}, because {error}")
                if not again:
                    break
    about = hardware(1)
    return pd.DataFrame(rows).assign(cpu=about["cpu"], cores=about["cores"], torch=torch.__version__)


def show(table: pd.DataFrame, console: Console) -> None:
    report = Table("model", "ours", "eager", "ours / eager", "spread", "processor time", "spread ", "load", "loss apart by")
    for row in summary(table).itertuples():
        report.add_row(
            str(row.model),
            f"{1e3 * row.ours_s:.1f} ms",
            f"{1e3 * row.eager_s:.1f} ms",
            f"{row.ratio:.2f}",
            f"{row.ratio_min:.2f} .. {row.ratio_max:.2f}",
            f"{row.cpu_ratio:.2f}",
            f"{row.cpu_ratio_min:.2f} .. {row.cpu_ratio_max:.2f}",
            f"{row.load}",
            f"{row.loss_error:.0e}",
        )
    console.print(report)


def draw(table: pd.DataFrame) -> None:
    rows = summary(table).sort_values("ratio")
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.subplots()
    spread = [rows.ratio - rows.ratio_min, rows.ratio_max - rows.ratio]
    axes.bar(range(len(rows)), rows.ratio, color=["#0072B2" if ratio <= 1 else "#D55E00" for ratio in rows.ratio])
    axes.errorbar(range(len(rows)), rows.ratio, spread, fmt="none", color="black", capsize=2, linewidth=1)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(range(len(rows)), [f"{row.model}\n{1e3 * row.eager_s:.0f} ms" for row in rows.itertuples()], rotation=60, fontsize=8)
    axes.set_ylabel("step time, Plan over eager (run)")
    about = table.iloc[0]
    axes.set_title(
        f"One device against eager training, below 1 the Plan is faster: {about['cpu']}, 1 thread, load {table.load.min()} to "
        f"{table.load.max()}, torch {about['torch']}",
        fontsize=9,
    )
    figure.savefig(PICTURE, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="comma-separated models")
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"pairs of turns (default {PAIRS})")
    parser.add_argument("--redraw", action="store_true", help="draw from the CSV")
    args = parser.parse_args()
    console = Console(width=150)
    if args.redraw:
        draw(pd.read_csv(CSV))
        return
    names = args.only.split(",") if args.only else list(MODELS)
    if unknown := [name for name in names if name not in MODELS]:
        parser.error(f"--only {unknown[0]}: no such model; there are {', '.join(MODELS)}")
    table = measure({name: MODELS[name] for name in names}, args.pairs, console)
    show(table, console)
    if not args.only:
        table.to_csv(CSV, index=False)
        draw(table)


if __name__ == "__main__":
    main()
