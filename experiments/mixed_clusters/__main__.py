"""Pipelines over two kinds of device: layers by each stage's own speed against as many layers on each stage (kinds ``theory`` and ``sim``).

    python -m experiments.mixed_clusters               plan, validate, simulate, write results/mixed_clusters.csv, print, draw
    python -m experiments.mixed_clusters --redraw      draw figures/mixed_clusters.png from the CSV

A GPT in float16, 16 micro-batches; kinds are joined by 12.5 GB/s.  even: cut for equal devices, and performed on those that are there.
theory_s: of the search, sum t_i + (m - 1) max t_i.   bound_s: no pipeline of this shape is faster, from its ops alone (planner.parallelism.kinds).
sim_s: simulated.   layers: per stage.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

import regista.api as regista
from planner.cost.clusters import preset
from planner.frontend import Program
from planner.ir.cluster import Between, Cluster, LinkSpec
from planner.ir.cluster.mixed import mixed_cluster
from planner.ir.plan import Fragment, Plan, TaskKind
from planner.parallelism.kinds import least_step_s
from planner.parallelism.shape import Shape
from planner.validate import validate
from zoo import ZOO

__all__ = ["layers_of", "main", "rows_of"]

HERE = Path(__file__).parent.parent
CSV, PICTURE = HERE / "results/mixed_clusters.csv", HERE / "figures/mixed_clusters.png"
LAYERS, MICRO_BATCHES = 24, 16
BETWEEN = LinkSpec(latency_s=2e-5, bandwidth_bytes_per_s=12.5e9)
"""Assumed: 100 Gb/s from one kind to the other."""
CASES = (("16 A100 + 16 V100", "dgx-a100:2", "p3.16xlarge:2", (2, 4)), ("8 H100 + 24 A100", "dgx-h100:1", "dgx-a100:3", (4, 8)))


def cluster_of(name: str, first: str, second: str) -> Cluster:
    parts = preset(first), preset(second)
    return mixed_cluster(name, "presets", parts, [Between(kinds=(parts[0].name, parts[1].name), link=BETWEEN)])


def program() -> Program:
    return ZOO["gpt"](layers=LAYERS, width=1024, heads=16, vocab=50304, seq=512, batch=256, dtype="fp16")


def rows_of(source: Program, cluster: Cluster, stages: int) -> Iterator[dict[str, object]]:
    """A row of the even cut, and one of the cut by the stages' speeds."""
    mesh = (cluster.num_devices // stages,)
    cuts = tuple(f"h.{stage * LAYERS // stages}" for stage in range(1, stages))
    graph = source.graph(MICRO_BATCHES)
    for name, places in (("even", cuts), ("by speed", ())):
        plan = regista.plan(source, cluster, stages=stages, mesh=mesh, micro_batches=MICRO_BATCHES, cuts=places)
        validate(plan, source)
        yield {
            "cluster": cluster.name,
            "stages": stages,
            "cut": name,
            "layers": " ".join(map(str, layers_of(plan))),
            "theory_s": plan.search.objective_s,
            "bound_s": least_step_s(graph, cluster, Shape(stages, MICRO_BATCHES, mesh)),
            "sim_s": regista.simulate(plan).settled_step_s(plan),
            "plan_id": plan.plan_id,
        }


def layers_of(plan: Plan) -> list[int]:
    """Layers per stage."""
    held: dict[str, set[str]] = {placement.id: set() for placement in plan.placements}
    for task in plan.tasks:
        if isinstance(task.body, Fragment) and task.kind is TaskKind.FORWARD:
            held[task.placement] |= {".".join(op.module.split(".")[:2]) for op in task.body.ops if op.module.startswith("h.")}
    return [len(names) for names in held.values()]


def draw(table: pd.DataFrame) -> Figure:
    """Simulated steps of the two cuts side by side, per cluster and number of stages."""
    figure = Figure(figsize=(7.5, 3.6), layout="constrained")
    panel = figure.subplots()
    shapes = list(dict.fromkeys(zip(table.cluster, table.stages, strict=True)))
    for place, (cut, rows) in enumerate(table.groupby("cut", sort=False)):
        at = [number + 0.4 * place - 0.2 for number in range(len(shapes))]
        panel.bar(at, rows.sim_s, width=0.38, label=f"{cut} (sim)")
        panel.plot(at, rows.theory_s, "k_", markersize=16, label="sum + (m - 1) max (theory)" if place else None)
        for x, seconds, layers in zip(at, rows.sim_s, rows.layers, strict=True):
            panel.text(x, seconds, layers, ha="center", va="bottom", fontsize=6)
    panel.set_xticks(range(len(shapes)), [f"{cluster}\n{stages} stages" for cluster, stages in shapes], fontsize=8)
    panel.set(ylabel="seconds of a step", title=f"GPT of {LAYERS} layers, {MICRO_BATCHES} micro-batches; numbers: layers per stage")
    panel.title.set_fontsize(9)
    panel.legend(fontsize=8)
    return figure


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--redraw", action="store_true")
    asked = parser.parse_args()
    if not asked.redraw:
        source = program()
        rows = [row for name, *kinds, counts in CASES for stages in counts for row in rows_of(source, cluster_of(name, *kinds), stages)]
        pd.DataFrame(rows).to_csv(CSV, index=False, lineterminator="\n", float_format="%.9g")
    table = pd.read_csv(CSV)
    print(table.drop(columns=["plan_id"]).to_string(index=False, float_format="%.4g"))
    draw(table).savefig(PICTURE, dpi=120)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
