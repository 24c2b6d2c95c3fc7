"""Alpa's published GPT plans and ours, priced by the same cost model: is our search no worse at any size, and how long does it take?

    python -m experiments.alpa_plans [--gpus 2,4]      solve, write results/alpa_plans.csv and figures/alpa_plans.png
    python -m experiments.alpa_plans --redraw          draw from the CSV
    (--smoke: two layers on 2 GPUs, for experiments.reproduce --smoke)

Alpa's plan is its shape (stages, sub-meshes, logical mesh, micro-batches) with the best layouts that our own search finds in it, so it is
priced at least as low as Alpa's own layouts would be; it recomputes only where it does not fit otherwise, which favours it as well.  Its plan
for 8 devices has unequal sub-meshes: that one is priced by a lower bound from its pieces (planner.parallelism.share), transfers left out.
Columns: theory = as the search prices it, sim = from the simulator, paper = what Alpa measured (another optimizer format; to be compared with
care).
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Protocol

import pandas as pd
from matplotlib.figure import Figure
from rich.console import Console

import regista
from experiments.common.small_size import refuse_over_committed
from planner.cost import meshes
from planner.frontend import Program
from planner.ir.cluster import Cluster
from planner.ir.plan import Plan
from planner.parallelism.share import EqualShare
from planner.search.bounds.pieces import PieceSearch, model_pieces
from planner.search.formulation import MeshTools
from regista.api import program_of
from regista.clusters import resolve_cluster

__all__ = ["main"]

HERE = Path(__file__).parent
PUBLISHED = HERE / "paper_numbers/alpa_gpt_plans.csv"
CSV, PICTURE = HERE / "results/alpa_plans.csv", HERE / "figures/alpa_plans.png"
BATCH, STEPS = 1024, 4
SMALL = "zoo:gpt3?layers=2&width=32&heads=2&vocab=64&dtype=fp16&batch=8&seq=16"


class Published(Protocol):
    """A row of the CSV."""

    gpus: int
    model: str
    stages: int
    devices_per_stage: str
    layers_per_stage: str
    logical_mesh: str | float
    micro_batches: int
    paper_tflops_per_gpu: float


def part_of_p3(gpus: int) -> Cluster:
    """So many V100 of p3.16xlarge nodes; fewer than 8 are a part of one node."""
    if gpus >= 8:
        return resolve_cluster(f"p3.16xlarge:{gpus // 8}")
    return replace(resolve_cluster("p3.16xlarge:1"), devices_per_node=gpus)


def model_text(size: str) -> str:
    return f"zoo:gpt3?size={size}&dtype=fp16&batch={BATCH}&seq=1024"


def main() -> None:
    """Solve and draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gpus", default="", help="only these, joined by commas")
    parser.add_argument("--redraw", action="store_true", help="draw from the CSV")
    parser.add_argument("--smoke", action="store_true", help="a tiny model; for experiments.reproduce --smoke, which writes elsewhere")
    options = parser.parse_args()
    if options.smoke:
        refuse_over_committed(parser, CSV)
    console = Console()
    if not options.redraw:
        wanted = {2} if options.smoke else {int(n) for n in options.gpus.split(",") if n}
        published_rows = pd.read_csv(PUBLISHED)
        known = pd.read_csv(CSV) if CSV.exists() else pd.DataFrame(columns=["gpus"])
        for published in (published_rows.assign(model="tiny", micro_batches=4) if options.smoke else published_rows).itertuples():
            if wanted and published.gpus not in wanted:
                continue
            row = compared(published, SMALL if options.smoke else model_text(published.model))
            known = pd.concat([known[known.gpus != published.gpus], pd.DataFrame([row])]).sort_values("gpus")
            CSV.parent.mkdir(exist_ok=True)
            known.to_csv(CSV, index=False)
            console.print(row)
    draw(pd.read_csv(CSV))


def compared(published: Published, model: str) -> dict[str, object]:
    """One size: Alpa's plan and ours, of ``model`` (a model as the command line names it)."""
    gpus, size = published.gpus, published.model
    cluster = part_of_p3(gpus)
    program = program_of(model)
    began = perf_counter()
    ours = regista.plan(program, cluster, stages=None, micro_batches=None)
    seconds = perf_counter() - began
    row: dict[str, object] = {
        "gpus": gpus,
        "model": size,
        "alpa_plan": f"{published.stages} stages of {published.devices_per_stage} devices, {published.micro_batches} micro-batches",
        "our_plan": shape_of(ours),
        "our_theory_search_s": ours.search.objective_s,
        "our_theory_bound_s": ours.search.lower_bound_s,
        "our_sim_step_s": simulated_s(ours),
        "our_search_seconds_run": round(seconds, 2),
        "alpa_paper_tflops_per_gpu": published.paper_tflops_per_gpu,
    }
    if isinstance(published.logical_mesh, str):
        mesh = tuple(int(n) for n in published.logical_mesh.split("x"))
        alpa = regista.plan(program, cluster, stages=published.stages, micro_batches=published.micro_batches, mesh=mesh)
        row |= {"alpa_priced_as": shape_of(alpa), "alpa_theory_search_s": alpa.search.objective_s, "alpa_sim_step_s": simulated_s(alpa)}
    else:
        row |= {
            "alpa_priced_as": "lower bound of its pieces",
            "alpa_theory_search_s": bound_s(program, cluster, published),
            "alpa_sim_step_s": None,
        }
    row["theory_ours_over_alpa"] = row["our_theory_search_s"] / row["alpa_theory_search_s"]
    return row


def shape_of(plan: Plan) -> str:
    """Stages, mesh, micro-batches and recomputation in words."""
    mesh = "x".join(map(str, plan.placements[0].mesh))
    recompute = ", recompute" if plan.options.get("recompute") == "blocks" else ""
    return f"{len(plan.placements)} stages of {mesh}, {plan.micro_batches} micro-batches{recompute}"


def simulated_s(plan: Plan) -> float:
    """Step time in the long run, in seconds, by the simulator at the cluster's own prices."""
    return regista.simulate(plan, steps=STEPS).settled_step_s(plan)


def bound_s(program: Program, cluster: Cluster, published: Published) -> float:
    """step >= m t_b + u_b + sum over the others of t_i, for stages of unequal sub-meshes, each with its best logical mesh and within memory.

    Each stage may recompute or not, as is better for it; what is outside of the blocks counts once, at the least that some stage takes for it.
    """
    m, memory = published.micro_batches, cluster.device.memory_bytes
    devices = [int(n) for n in published.devices_per_stage.split(";")]
    layers = [int(n) for n in published.layers_per_stage.split(";")]
    pieces_of = {recompute: model_pieces(program.graph(m), recompute=recompute) for recompute in (False, True)}
    whole_s, turn_s, rest_s = [], [], inf
    for stage, (size, depth) in enumerate(zip(devices, layers, strict=True)):
        whole, turn = inf, inf
        for mesh in meshes(size, cluster.devices_per_node, 2):
            tools = MeshTools.of(cluster, mesh)
            for recompute in (False, True):
                models = [PieceSearch(piece, mesh, cluster, (), m, len(devices) - stage, tools) for piece in pieces_of[recompute]]
                blocks = [model for model in models if model.times > 1]
                rest_s = min(rest_s, sum(model.least_micro_s for model in models if model.times == 1))
                for model in blocks:
                    model.times = depth
                share = EqualShare(blocks, 1)
                if share.smallest.held_bytes <= memory:
                    whole = min(whole, share.bound_within(memory)[0])
                    turn = min(turn, sum(model.least_micro_s * depth for model in blocks))
        whole_s.append(whole)
        turn_s.append(turn)
    return rest_s + max(whole + sum(turn_s) - turn for whole, turn in zip(whole_s, turn_s, strict=True))


def draw(table: pd.DataFrame) -> None:
    """Both plans per size, seconds per step."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    place = range(len(table))
    axes.bar([i - 0.2 for i in place], table.alpa_theory_search_s, 0.4, label="Alpa's published plan", color="#999999")
    axes.bar([i + 0.2 for i in place], table.our_theory_search_s, 0.4, label="ours", color="#0072b2")
    axes.plot([i + 0.2 for i in place], table.our_theory_bound_s, "k_", markersize=18, label="lower bound of ours")
    for i, row in enumerate(table.itertuples()):
        higher_s = max(row.alpa_theory_search_s, row.our_theory_search_s)
        axes.annotate(f"{row.theory_ours_over_alpa:.3f}", (i, higher_s), ha="center", va="bottom")
    axes.set_xticks(list(place), [f"{row.gpus} GPUs\n{row.model.removeprefix('alpa-')}" for row in table.itertuples()])
    axes.set_ylabel("seconds per step as the search prices it (theory)")
    axes.set_ylim(0, 1.3 * max(table.alpa_theory_search_s.max(), table.our_theory_search_s.max()))
    axes.legend(loc="upper left", ncols=3)
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=130)


if __name__ == "__main__":
    main()
