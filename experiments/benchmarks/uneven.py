"""A GPT with a vocabulary of 262,144: stages of equal depth beside the cut by even flop, which weighs the head (an embedding has no flop).

    python -m experiments.benchmarks.uneven                 writes results/uneven.csv
    python -m experiments.benchmarks.uneven --measure       runs both Plans of a smaller GPT on two processes, in turns: results/uneven_run.csv

Both Plans have the same shape, batch and 1F1B, on stages of one V100 each; they are simulated.  Columns:

    layers_even, layers_weighed    blocks per stage
    even_sim, weighed_sim          seconds of a step;   saved = 1 - weighed_sim / even_sim
    fullest_even, fullest_weighed  what the fullest stage computes per step, against the mean of the stages (theory, as explain shows it)
    even_run, weighed_run          seconds of a step that was measured, the median of a run's steps but its first;   saved as above
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import median

from rich.console import Console

import regista
from planner.cost import AnalyticCost
from planner.frontend import Program
from planner.ir.graph import Role
from planner.ir.plan import Plan
from planner.stages import assign_stages
from planner.stages.blocks import block_of
from regista.analysis.budget import spending, stage_work
from regista.api import program_of
from regista.clusters import resolve_cluster
from simulator.analysis.forecast import forecast

__all__ = ["main"]

FILE = Path(__file__).parents[1] / "results" / "uneven.csv"
RUN_FILE = FILE.with_name("uneven_run.csv")
MEASURED_LAYERS = 24
MEASURED = f"zoo:gpt?layers={MEASURED_LAYERS}&width=512&heads=8&vocab=262144&seq=64&batch=8"
CASES = ((24, 1024, 2, 8), (24, 1024, 4, 8), (12, 1024, 2, 8))
"""Layers, width, stages, micro-batches of a sample of 128 tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    model: str
    stages: int
    micro_batches: int
    layers_even: str
    layers_weighed: str
    even_sim: float
    weighed_sim: float
    saved: float
    fullest_even: float
    fullest_weighed: float


def _layers(program: Program, stages: int, micro_batches: int, cuts: tuple[str, ...]) -> str:
    graph = program.graph(micro_batches)
    stage = assign_stages(graph, stages, cuts)
    place = {block_of(op.module): stage[op.id] for op in graph.ops if op.role is Role.FORWARD and block_of(op.module)}
    count = Counter(place.values())
    return " ".join(str(count[s]) for s in range(stages))


def _fullest(plan: Plan) -> float:
    works_s = [stage.compute_s for stage in stage_work(spending(plan))]
    return max(works_s) * len(works_s) / sum(works_s)


def row_of(layers: int, width: int, stages: int, micro_batches: int) -> Row:
    name = f"zoo:gpt?layers={layers}&width={width}&heads=16&vocab=262144&seq=128&batch={micro_batches}"
    cluster = replace(resolve_cluster("p3.16xlarge:1"), devices_per_node=stages)
    program = program_of(name)
    session = regista.PlannerSession(program)
    cuts = tuple(f"h.{layers * stage // stages}" for stage in range(1, stages))
    even, weighed = (session.plan(cluster, stages=stages, mesh=(1,), micro_batches=micro_batches, cuts=at) for at in (cuts, ()))
    even_s, weighed_s = (forecast(plan, AnalyticCost(cluster)).step_s for plan in (even, weighed))
    return Row(
        model=name,
        stages=stages,
        micro_batches=micro_batches,
        layers_even=_layers(program, stages, micro_batches, cuts),
        layers_weighed=_layers(program, stages, micro_batches, ()),
        even_sim=even_s,
        weighed_sim=weighed_s,
        saved=1 - weighed_s / even_s,
        fullest_even=_fullest(even),
        fullest_weighed=_fullest(weighed),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One turn: a run of each Plan, one after the other."""

    model: str
    turn: int
    layers_even: str
    layers_weighed: str
    even_sim: float
    weighed_sim: float
    even_run: float
    weighed_run: float
    saved: float


def measured(turns: int, steps: int) -> list[RunRow]:
    """Both Plans on two processes of this machine, in turns."""
    program, cluster = program_of(MEASURED), resolve_cluster("local:2")
    session, cuts = regista.PlannerSession(program), (f"h.{MEASURED_LAYERS // 2}",)
    even, weighed = (session.plan(cluster, stages=2, mesh=(1,), micro_batches=8, cuts=at) for at in (cuts, ()))
    simulated = [forecast(plan, AnalyticCost(cluster)).step_s for plan in (even, weighed)]
    rows = []
    for turn in range(turns):
        seconds = []
        for plan in (even, weighed) if turn % 2 == 0 else (weighed, even):
            trace = regista.run(plan, program, steps=steps, timeout_s=120, keep_states=False).trace
            seconds.append(median(trace.step_times_s(plan)[1:]))
        even_s, weighed_s = seconds if turn % 2 == 0 else seconds[::-1]
        rows.append(
            RunRow(
                model=MEASURED,
                turn=turn,
                layers_even=_layers(program, 2, 8, cuts),
                layers_weighed=_layers(program, 2, 8, ()),
                even_sim=simulated[0],
                weighed_sim=simulated[1],
                even_run=even_s,
                weighed_run=weighed_s,
                saved=1 - weighed_s / even_s,
            )
        )
        print(f"turn {turn}: even {even_s:.2f} s, weighed {weighed_s:.2f} s, {rows[-1].saved:.1%} saved (run)", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="run both Plans of a smaller model on two processes")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    args = parser.parse_args()
    if args.measure:
        runs = measured(args.turns, args.steps)
        print(f"saved by the weighed cut: median {median(row.saved for row in runs):.1%} of {len(runs)} turns (run)")
        _write(RUN_FILE, RunRow, runs)
        return
    console, rows = Console(), [row_of(*case) for case in CASES]
    for row in rows:
        console.print(f"{row.stages} stages: {row.layers_weighed} layers instead of {row.layers_even} save {row.saved:.1%} (sim)")
    _write(FILE, Row, rows)


def _write(path: Path, kind: type[Row] | type[RunRow], rows: Sequence[Row] | Sequence[RunRow]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(kind)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


if __name__ == "__main__":
    main()
