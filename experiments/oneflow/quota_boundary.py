"""Quotas on a stage boundary: the same two-stage pipeline with 1 and with 2 blocks, predicted and measured.

    python -m experiments.oneflow.quota_boundary            measure, write results/quota_boundary.csv, draw figures/quota_boundary.png
    python -m experiments.oneflow.quota_boundary --redraw   draw from the CSV

What stage 0 hands over are its outputs to stage 1 and the activations that wait until the gradient comes back across the boundary.
With quota 1 stage 0 cannot start micro-batch k+1 before micro-batch k has come back: no pipeline.  With quota 2 (= p - i for p = 2, i = 0,
SEMANTICS 3.8) the stages overlap.  Runs alternate (1, 2, 1, 2 ...), so that a drifting machine slows both.
"""

from __future__ import annotations

import argparse
import os
import platform
from pathlib import Path
from statistics import median

import matplotlib as mpl
import pandas as pd
import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

import regista
from planner.ir.traces.trace import Trace
from regista.api import program_of
from regista.calibrate import calibrate_plan
from regista.clusters import resolve_cluster
from regista.views.pictures.gantt import gantt

__all__ = ["main"]

HERE = Path(__file__).parents[1]
CSV, PICTURE, LINES = HERE / "results/quota_boundary.csv", HERE / "figures/quota_boundary.png", HERE / "figures/quota_boundary_gantt_{}.png"
MODEL, MICRO_BATCHES = "zoo:gpt?layers=4&batch=16&seq=128&vocab=512&tied=0", 8
BOUNDARY = ("s0.fwd.*", "s0-s1.fwd.*")


def measure(repeats: int, steps: int) -> None:
    program = program_of(MODEL)
    cluster = resolve_cluster("local:2")
    plans = {q: regista.plan(program, cluster, stages=2, micro_batches=MICRO_BATCHES, quotas=dict.fromkeys(BOUNDARY, q)) for q in (1, 2)}
    rows = []
    last: dict[int, tuple[Trace, Trace]] = {}
    for repeat in range(repeats):
        cost = calibrate_plan(plans[2], program)
        for q, plan in plans.items():
            sim = regista.simulate(plan, cost)
            run = regista.run(plan, program, steps=steps).trace
            last[q] = (sim, run)
            step_time = regista.compare(plan, sim, run).step_time_s
            about = {"quota": q, "repeat": repeat, "plan_id": plan.plan_id, "cores": os.cpu_count(), "torch": torch.__version__}
            rows.append(about | {"kind": "sim", "step_time_s": step_time.predicted})
            rows.append(about | {"kind": "run", "step_time_s": step_time.measured})
    CSV.parent.mkdir(exist_ok=True)
    pd.DataFrame(rows).assign(machine=platform.machine(), model=MODEL, micro_batches=MICRO_BATCHES).to_csv(CSV, index=False)
    PICTURE.parent.mkdir(exist_ok=True)
    for q, traces in last.items():
        gantt(plans[q], traces, str(LINES).format(q), steps=1)


def speed_ups(table: pd.DataFrame) -> dict[str, list[float]]:
    """kind -> step time at quota 1 over step time at quota 2, for each repeat."""
    wide = table.pivot_table(index=["kind", "repeat"], columns="quota", values="step_time_s")
    ratio = wide[1] / wide[2]
    return {kind: ratio[kind].tolist() for kind in ("sim", "run")}


def draw() -> None:
    table = pd.read_csv(CSV)
    ratios = speed_ups(table)
    mpl.rcParams["svg.hashsalt"] = "regista"
    figure = Figure(figsize=(8.6, 3.6), layout="constrained")
    times, gains = figure.subplots(1, 2, width_ratios=(3, 2))
    names = {"sim": ("predicted (sim)", "#56B4E9"), "run": ("measured (run)", "#0072B2")}
    for offset, (kind, (label, colour)) in zip((-0.2, 0.2), names.items(), strict=True):
        for q in (1, 2):
            values = table[(table.kind == kind) & (table.quota == q)].step_time_s * 1e3
            low, middle, high = values.min(), values.median(), values.max()
            times.bar(q + offset, middle, 0.36, color=colour, label=label if q == 1 else None)
            times.errorbar(q + offset, middle, [[middle - low], [high - middle]], color="black", capsize=3, linewidth=1)
            times.text(q + offset, high + 8, f"{middle:.0f}", ha="center", fontsize=9)
        middle = median(ratios[kind])
        gains.bar(offset * 2, middle, 0.7, color=colour)
        gains.text(offset * 2, middle + 0.03, f"{middle:.2f} x", ha="center")
    times.set_xticks([1, 2], ["quota 1", "quota 2"])
    times.set_ylabel("step time [ms], median and range")
    times.margins(y=0.15)
    times.legend(frameon=False, fontsize=9)
    gains.set_xticks([-0.4, 0.4], ["sim", "run"])
    gains.axhline(1, color="grey", linewidth=0.8)
    gains.set_ylabel("speed-up, quota 1 -> 2")
    gains.margins(y=0.12)
    figure.suptitle(f"Two blocks instead of one on the stage boundary: 2 stages, {MICRO_BATCHES} micro-batches, 2 CPU devices", fontsize=11)
    figure.savefig(PICTURE, dpi=150)
    report = Table("speed-up quota 1 -> 2", "median", "min .. max")
    for kind, values in ratios.items():
        report.add_row(names[kind][0], f"{median(values):.3f}", f"{min(values):.3f} .. {max(values):.3f}")
    Console().print(report)
    Console().print(f"predicted / measured speed-up - 1: {median(ratios['sim']) / median(ratios['run']) - 1:+.1%}   -> {PICTURE}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--redraw", action="store_true", help="draw from the CSV")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    args = parser.parse_args()
    if not args.redraw:
        measure(args.repeats, args.steps)
    draw()


if __name__ == "__main__":
    main()
