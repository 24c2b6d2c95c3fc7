"""Seconds of planning a GPT with everything open, against its layers and against the devices of the cluster (kind ``run``).

    python -m experiments.search_space.curves [--limit S] [--minutes M]    measure what results/search_curves.csv lacks, draw figures/search_curves.png
    python -m experiments.search_space.curves --redraw                     draw from the CSV, print the slopes

Stages, mesh, micro-batches, recomputation and layouts are searched; every point is planned once, by a process of its own.

trace_cpu_s    from the model's name to the graph of one micro-batch per step
plan_cpu_s     the search over shapes (which traces other micro-batches), lowering and verification; seconds of the process and of those that it
               starts, which other programs of a busy machine lengthen less than the wall's, in plan_wall_s
status         cut short: the limit was reached; ended: the search ended by itself, with what gap says
gap            what is not proven: 1 - lower_bound_s / objective_s.  The search over shapes stops at 1 %
limit_s        given to the search, in processor seconds; status 'cut short' where it was reached: the plan is the best so far

slope: of the least-squares line through the logarithms of seconds and size: below 1, time grows less than the size does.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Sequence
from math import inf, log
from pathlib import Path
from statistics import linear_regression
from time import perf_counter, process_time

import pandas as pd
from matplotlib.figure import Figure

import simulator
from experiments.search_space.rows import known_rows
from planner.ir.errors import RegistaError
from planner.parallelism.make import PlanOptions, search_plans
from planner.parallelism.options import by
from planner.parallelism.proof import SearchCutShort
from planner.solve.time_limit import Cancel
from regista.api import program_of
from regista.clusters import resolve_cluster

__all__ = ["main", "planned", "slope"]

HERE = Path(__file__).parents[1]
CSV, PICTURE = HERE / "results/search_curves.csv", HERE / "figures/search_curves.png"

LAYERS = (12, 384, 48, 192, 24, 96)
DEVICES = (8, 16384, 256, 2048, 64, 4096)
AT_DEVICES, AT_LAYERS = 256, 48
"""What is fixed on the way along layers, and along devices."""
POINTS = tuple(
    dict.fromkeys([point for pair in zip(LAYERS, DEVICES, strict=True) for point in ((pair[0], AT_DEVICES), (AT_LAYERS, pair[1]))])
)
"""The ends first, so that a table that is not whole yet spans the range."""
BATCH = 2048
MODEL = "zoo:gpt?layers={layers}&width=2048&heads=16&vocab=51200&seq=1024&batch={batch}"


def planned(layers: int, devices: int, limit_s: float) -> dict[str, object]:
    """One row: plan so many layers for so many devices in this process."""
    began = _cpu_s()
    program = program_of(MODEL.format(layers=layers, batch=BATCH))
    graph = program.graph(1)
    row = {
        "point": f"{layers} layers on {devices}",
        "kind": "run",
        "layers": layers,
        "devices": devices,
        "nodes": len(graph.ops),
        "trace_cpu_s": round(_cpu_s() - began, 3),
    }
    began, wall = _cpu_s(), perf_counter()
    shapes_closed = 0

    def on_shape(shape: str, best_s: float, bound_s: float) -> None:
        nonlocal shapes_closed
        shapes_closed += 1

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        plan = search_plans(
            program.graph,
            model="gpt",
            batch_size=BATCH,
            cluster=resolve_cluster(f"dgx-a100:{devices // 8}"),
            options=PlanOptions(stages=None, micro_batches=None, seconds=limit_s),
            on_shape=on_shape,
            dry_run=simulator.dry_run,
            cancel=Cancel(process_time),
        ).plan
    cut = any(issubclass(warning.category, SearchCutShort) for warning in told)
    search = plan.search
    return row | {
        "plan_cpu_s": round(_cpu_s() - began, 3),
        "plan_wall_s": round(perf_counter() - wall, 3),
        "limit_s": limit_s,
        "status": "cut short" if cut else "ended",
        "gap": round(1 - search.lower_bound_s / search.objective_s, 6),
        "objective_s": search.objective_s,
        "lower_bound_s": search.lower_bound_s,
        "bounds_asked": shapes_closed,
        "stages": int(plan.options["stages"]),
        "mesh": by(plan.placements[0].mesh),
        "micro_batches": plan.micro_batches,
    }


def _cpu_s() -> float:
    """Processor seconds so far, of this process and of its children that have ended."""
    return sum(os.times()[:4])


def measure(limit_s: float, minutes: float) -> None:
    """Every point that the table lacks, in a new process each; the table is written after each."""
    began = perf_counter()
    rows = known_rows(CSV)
    known = {(row["layers"], row["devices"]) for row in rows}
    for layers, devices in (point for point in POINTS if point not in known):
        if perf_counter() - began > 60 * minutes:
            break
        command = [sys.executable, "-m", "experiments.search_space.curves", "--point", str(layers), str(devices), "--limit", str(limit_s)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        print(rows[-1], flush=True)
        pd.DataFrame(rows).sort_values(["layers", "devices"]).to_csv(CSV, index=False, lineterminator="\n")


def slope(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """The exponent of size ** slope that fits the seconds best: least squares on logarithms."""
    return linear_regression([log(size) for size in sizes], [log(value) for value in seconds]).slope


def draw(table: pd.DataFrame) -> Figure:
    """Seconds of planning over layers and over devices, log-log; hollow where the limit was reached."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    ways = (
        ("layers", table[table.devices == AT_DEVICES], f"{AT_DEVICES} devices"),
        ("devices", table[table.layers == AT_LAYERS], f"{AT_LAYERS} layers"),
    )
    for panel, (along, rows, fixed) in zip(panels, ways, strict=True):
        here = rows.sort_values(along)
        for column, label, colour in (("plan_cpu_s", "planning", "#0072B2"), ("trace_cpu_s", "tracing", "#7F7F7F")):
            fitted = f": slope {slope(list(here[along]), list(here[column])):.2f}" if len(here) > 1 else ""
            panel.plot(here[along], here[column], color=colour, marker="o", label=label + fitted)
            print(f"{label} along {along} ({fixed}){fitted}, {here[column].min():.3g} to {here[column].max():.3g} s")
        cut = here[here.status == "cut short"]
        panel.plot(cut[along], cut.plan_cpu_s, "o", color="#0072B2", markerfacecolor="white")
        panel.set(xscale="log", yscale="log", xlabel=f"{along} ({fixed})")
        panel.set_xticks(list(here[along]), [f"{size:,}" for size in here[along]], fontsize=8, rotation=30 if along == "devices" else 0)
        panel.minorticks_off()
        panel.grid(visible=True, color="#e6e6e6", linewidth=0.6)
        panel.legend(frameon=False, fontsize=8)
    panels[0].set_ylabel("processor seconds (run)")
    figure.suptitle("Planning a GPT, everything searched; hollow: stopped by the limit", fontsize=10)
    return figure


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--redraw", action="store_true", help="draw from the CSV")
    parser.add_argument("--limit", type=float, default=60.0, help="processor seconds of a search (default 60)")
    parser.add_argument("--minutes", type=float, default=inf, help="start nothing new after so many minutes")
    parser.add_argument(
        "--point", type=int, nargs=2, metavar=("LAYERS", "DEVICES"), help="measure one point in this process and print its row"
    )
    asked = parser.parse_args()
    if asked.point is not None:
        try:
            print(json.dumps(planned(*asked.point, asked.limit)))
        except RegistaError as error:
            raise SystemExit(f"{asked.point}: {error}") from None
        return 0
    if not asked.redraw:
        measure(asked.limit, asked.minutes)
    draw(pd.read_csv(CSV)).savefig(PICTURE, dpi=120)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
