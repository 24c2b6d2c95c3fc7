"""A GPT with a vocabulary of 262,144: stages of equal depth beside the cut by even flop, which weighs the head (an embedding has no flop).

    python -m experiments.benchmarks.uneven      writes results/uneven.csv

Both Plans have the same shape, batch and 1F1B, on stages of one V100 each; they are simulated.  Columns:

    layers_even, layers_weighed    blocks per stage
    even_sim, weighed_sim          seconds of a step;   saved = 1 - weighed_sim / even_sim
    fullest_even, fullest_weighed  what the fullest stage computes per step, against the mean of the stages (theory, as explain shows it)
"""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

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


def main() -> None:
    console, rows = Console(), [row_of(*case) for case in CASES]
    for row in rows:
        console.print(f"{row.stages} stages: {row.layers_weighed} layers instead of {row.layers_even} save {row.saved:.1%} (sim)")
    with FILE.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


if __name__ == "__main__":
    main()
