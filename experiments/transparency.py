"""Transparency (SEMANTICS 6.1) of every cell of the conformance matrix on real processes: models x ways x {fp32, bf16}, over gloo.

    python -m experiments.transparency                  all cells that the CSV does not have yet; then the picture
    python -m experiments.transparency --model gpt t5 --way zero3 --dtype fp32
    python -m experiments.transparency --redraw         the picture from results/transparency.csv

A row is one Plan, trained for 3 steps on as many processes as it has ranks.  Errors are the largest |difference| of losses, gradients of the
last step, and parameters with buffers, as a multiple of what is allowed (1 at most is equal):

    fp32    from plain eager training on one device, to float32's rounding
    bf16    distance from float32 training, against twice the distance that plain bfloat16 training has (tests/conformance/matrix)

A row that is equal is kept while its Plan has the same content id; all others are measured again.  Plans that cannot be are ``refused``,
with the planner's words.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from math import inf, log10
from pathlib import Path
from time import perf_counter
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from backend import run
from backend.run_folder.outcome import Outcome
from planner.ir.errors import RegistaError
from planner.ir.plan import Plan
from planner.ir.traces.trace import check_trace

__all__ = ["cells", "main", "measured"]

HERE = Path(__file__).parent
CSV, PICTURE = HERE / "results/transparency.csv", HERE / "figures/transparency.png"
DTYPES = ("fp32", "bf16")
KEY = ("model", "way", "dtype")
TIMEOUT_S = 120.0


def _matrix() -> Any:
    """The tests' matrix: what is equal, and which cells there are, is said in one place."""
    for folder in (str(HERE.parent / "tests" / room) for room in ("conformance", "oracles")):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    return importlib.import_module("matrix")


def cells(models: Sequence[str] = (), ways: Sequence[str] = (), dtypes: Sequence[str] = DTYPES) -> Iterator[tuple[str, str, str]]:
    """(model, way, dtype) of every requested cell, refused ones too; nothing named means all."""
    matrix = _matrix()
    for dtype in dtypes:
        for model, way in (*matrix.CELLS, *matrix.REFUSED):
            if (not models or model in models) and (not ways or way in ways):
                yield model, way, dtype


def measured(model: str, dtype: str, plan: Plan) -> dict[str, object]:
    """Status and errors of one Plan on real processes."""
    matrix = _matrix()
    source = matrix.program(model, dtype)
    state = source.initial_state(plan.micro_batches)
    began = perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # more ranks than cores: only results count here
            outcome = run(plan, state, source.batch, matrix.STEPS, gradients=True, timeout_s=TIMEOUT_S)
        seconds = perf_counter() - began  # start and end of the processes included
        check_trace(plan, outcome.trace)
        worst = _errors(model, dtype, plan, outcome)
    except RegistaError as error:
        return {"status": "failed", "says": f"{type(error).__name__}: {error}"[:400], "seconds": perf_counter() - began}
    most, where = max(worst.values())
    return {
        "status": "equal" if most <= 1 else "differs",
        **{f"{what}_error": error for what, (error, _) in worst.items()},
        "says": where if most > 1 else "",
        "seconds": seconds,
    }


def _errors(model: str, dtype: str, plan: Plan, outcome: Outcome) -> dict[str, tuple[float, str]]:
    matrix = _matrix()
    error_of: dict[str, tuple[float, str]] = (
        matrix.errors_in_bf16(model, outcome, plan.micro_batches)
        if dtype == "bf16"
        else matrix.errors(outcome, matrix.expected(model, plan.micro_batches, dtype))
    )
    return error_of


def measure(requested: Sequence[tuple[str, str, str]], minutes: float) -> None:
    matrix, began = _matrix(), perf_counter()
    rows: list[dict[str, object]] = _rows()
    CSV.parent.mkdir(exist_ok=True)
    columns = (TextColumn("{task.description:<44}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    about = {"kind": "run", "performer": "gloo", "torch": torch.__version__, "cores": len(os.sched_getaffinity(0))}
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("", total=len(requested))
        for key in requested:
            if perf_counter() - began > 60 * minutes:
                break
            model, way, dtype = key
            progress.update(bar, description=" ".join(key))
            row: dict[str, object] = {**dict(zip(KEY, key, strict=True)), **about}
            old = next((r for r in rows if all(r[k] == row[k] for k in KEY)), None)
            try:
                plan = matrix.plan_for(model, way, dtype)
            except RegistaError as error:
                row |= {"plan_id": "", "status": "refused", "says": str(error)[:400]}
            else:
                if old is not None and old["plan_id"] == plan.plan_id and old["status"] == "equal":
                    progress.advance(bar)
                    continue
                row |= {"plan_id": plan.plan_id, "ranks": plan.num_ranks, "micro_batches": plan.micro_batches}
                row |= measured(model, dtype, plan)
            rows = [r for r in rows if r is not old] + [row]
            pd.DataFrame(rows).to_csv(CSV, index=False, float_format="%.6g")
            progress.advance(bar)


def _rows() -> list[dict[str, object]]:
    if not CSV.exists():
        return []
    known = pd.read_csv(CSV, dtype={"plan_id": str, "says": str}, keep_default_na=True).fillna({"plan_id": "", "says": ""})
    return [{str(column): value for column, value in row.items()} for row in known.to_dict("records")]


def report(table: pd.DataFrame) -> None:
    """Print the counts, and every row that is neither equal nor refused."""
    console = Console(width=160)
    for dtype, group in table.groupby("dtype", sort=False):
        counts = ", ".join(f"{count} {status}" for status, count in group.status.value_counts().items())
        most = group[["loss_error", "gradient_error", "state_error"]].max()
        console.print(f"{dtype}: {counts}; largest error, as a multiple of what is allowed: {most.max():.3g}")
    for row in table[~table.status.isin(["equal", "refused"])].itertuples():
        console.print(f"{row.model} {row.way} {row.dtype}: {row.status}: {row.says}", style="red")


def draw(table: pd.DataFrame) -> None:
    """Heat maps models x ways, one per number format: log10 of the largest error over what is allowed."""
    matrix = _matrix()
    models, ways = list(matrix.MODELS), list(matrix.WAYS)
    figure = Figure(figsize=(14, 9), layout="constrained")
    panels = figure.subplots(len(DTYPES), 1, sharex=True)
    image = None
    for panel, dtype in zip(panels, DTYPES, strict=True):
        row_of = {(row.model, row.way): row for row in table[table.dtype == dtype].itertuples()}
        heat = [[_worst(row_of.get((model, way))) for way in ways] for model in models]
        shown = [[log10(max(value, 1e-4)) if 0 <= value < inf else float("nan") for value in line] for line in heat]
        image = panel.imshow(shown, cmap="RdYlGn_r", vmin=-3, vmax=3, aspect="auto")
        for y, model in enumerate(models):
            for x, way in enumerate(ways):
                row = row_of.get((model, way))
                if row is None:
                    continue
                said = str(row.status)
                number = said in ("equal", "differs")
                text = f"{heat[y][x]:.2g}" if number else said
                panel.text(x, y, text, ha="center", va="center", fontsize=6 if number else 5, rotation=0 if number else 30)
        panel.set_yticks(range(len(models)), models)
        panel.set_title(f"{dtype}: largest error of losses, gradients and states / what rounding allows", fontsize=10, loc="left")
    panels[-1].set_xticks(range(len(ways)), ways, rotation=40, ha="right", fontsize=8)
    if image is not None:
        figure.colorbar(image, ax=list(panels), label="log10 (error / allowed): below 0 is equal", shrink=0.6)
    figure.suptitle(
        "Training on N processes against training on one device, 3 steps, run on gloo (white: not run, or no such cell)", fontsize=12
    )
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=150)


def _worst(row: Any) -> float:
    """The largest of a row's errors; negative where there is none."""
    if row is None or row.status not in ("equal", "differs"):
        return -1.0
    return float(max(row.loss_error, row.gradient_error, row.state_error))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--redraw", action="store_true", help="draw from the CSV")
    parser.add_argument("--model", nargs="*", default=(), help="only these models")
    parser.add_argument("--way", nargs="*", default=(), help="only these ways")
    parser.add_argument("--dtype", nargs="*", default=DTYPES, choices=DTYPES, help="only these number formats")
    parser.add_argument("--minutes", type=float, default=inf, help="start nothing new after so many minutes")
    args = parser.parse_args()
    if not args.redraw:
        measure(list(cells(args.model, args.way, args.dtype)), args.minutes)
    table = pd.DataFrame(_rows())
    report(table)
    draw(table)
    Console().print(f"-> {CSV}, {PICTURE}", soft_wrap=True)


if __name__ == "__main__":
    main()
