"""How long the proof of a Plan takes, from 2 to 1,024 devices, as a share of planning (processor seconds of one core, kind ``run``).

    python -m experiments.validation_time [--devices N ...]     plan, validate, write results/validation_time.csv, draw figures/validation_time.png
    python -m experiments.validation_time --redraw              draw from the CSV

GPT-2 of 12 layers in 1 to 8 stages, data x tensor parallel in each.  trace_cpu_s: of the graph, which both need.   plan_cpu_s: search, lowering and
verification of one shape.   verify_cpu_s: of structure, liveness and memory alone.   validate_cpu_s: the median of three proofs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pandas as pd
from matplotlib.figure import Figure

import simulator
from planner.ir.actors.verify import verify
from planner.ir.plan import Fragment
from planner.parallelism.make import PlanOptions, make_plan
from planner.validate import validate
from regista.api import program_of
from regista.clusters import resolve_cluster

__all__ = ["main", "measured"]

HERE = Path(__file__).parent
CSV, PICTURE = HERE / "results/validation_time.csv", HERE / "figures/validation_time.png"
DEVICES = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
T = TypeVar("T")


def measured(devices: int) -> dict[str, object]:
    """One row: a Plan for so many devices."""
    stages = min(8, max(1, devices // 16))
    tensor = min(8, devices // stages, 4 if stages == 1 else 8)
    mesh = (devices // stages // tensor, tensor)
    micro_batches = 2 * stages if stages > 1 else 1
    model = f"zoo:gpt2?layers=12&seq=128&batch={max(8, mesh[0] * micro_batches)}"
    cluster = resolve_cluster(f"dgx-h100:{max(1, devices // 8)}")
    cluster = replace(cluster, devices_per_node=min(8, devices))
    program, trace_s = _timed(lambda: program_of(model))
    graph, graph_s = _timed(lambda: program.graph(micro_batches))
    options = PlanOptions(stages=stages, mesh=mesh, micro_batches=micro_batches, pins=(f"input.0={'S(0)' if mesh[0] > 1 else 'B'},B",))
    plan, plan_s = _timed(
        lambda: make_plan(graph, model=model, batch_size=program.batch_size, cluster=cluster, options=options, dry_run=simulator.dry_run)
    )
    _, verify_s = _timed(lambda: verify(plan, simulator.dry_run))
    proofs = [_timed(lambda: validate(plan, program)) for _ in range(3)]
    validate_s = statistics.median(seconds for _, seconds in proofs)
    assert not any(report.not_checked for report, _ in proofs)
    return {
        "kind": "run",
        "devices": devices,
        "stages": stages,
        "mesh": "x".join(map(str, mesh)),
        "micro_batches": micro_batches,
        "tasks": len(plan.tasks),
        "ops": sum(len(task.body.ops) for task in plan.tasks if isinstance(task.body, Fragment)),
        "trace_cpu_s": round(trace_s + graph_s, 4),
        "plan_cpu_s": round(plan_s, 4),
        "verify_cpu_s": round(verify_s, 4),
        "validate_cpu_s": round(validate_s, 4),
        "share": round(validate_s / (trace_s + graph_s + plan_s), 4),
    }


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    began = time.process_time()
    made = work()
    return made, time.process_time() - began


def draw(table: pd.DataFrame) -> Figure:
    """Seconds of planning and of the proof over devices, and the share of the proof."""
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    seconds, share = figure.subplots(1, 2)
    for column, label in (("plan_cpu_s", "search and lowering"), ("trace_cpu_s", "tracing"), ("validate_cpu_s", "proof")):
        seconds.plot(table.devices, table[column], marker="o", label=label)
    seconds.set(xscale="log", yscale="log", xlabel="devices", ylabel="processor seconds (run)")
    seconds.legend()
    share.plot(table.devices, 100 * table.share, marker="o", color="C2")
    share.set(xscale="log", xlabel="devices", ylabel="proof, % of tracing and planning", ylim=(0, None))
    return figure


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, nargs="+", default=DEVICES, metavar="N")
    parser.add_argument("--redraw", action="store_true")
    asked = parser.parse_args()
    if not asked.redraw:
        measured(2)  # what any process loads and compiles once
        rows = []
        for devices in asked.devices:
            rows.append(measured(devices))
            print(rows[-1], flush=True)
        pd.DataFrame(rows).to_csv(CSV, index=False, lineterminator="\n")
    draw(pd.read_csv(CSV)).savefig(PICTURE, dpi=120)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
