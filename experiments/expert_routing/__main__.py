"""Simulated steps against skew 1 to 5: the plan for even loads, and the one whose search knew the skew (kind ``sim``).

    python -m experiments.expert_routing               plan, validate, play, predict, write results/expert_routing.csv, print, draw
    python -m experiments.expert_routing --redraw      draw figures/expert_routing.png from the CSV

skew: load of the one popular expert over the even load, all others alike.
A Plan: a decoder of 2 layers, the second with 16 experts, two per token, on 8 devices; dropless, or with a capacity factor of 1.25.  layout: of
an expert's two matrices; S(0): experts lie apart.  median_s, quantile_s: of the step over runs with drawn loads; quantile 0.9.
objective_s, bound_s: of the search.   busiest: load of the busiest rank over the even load, at that quantile.
A job: 8 layers of DeepSeek-V3, of 256 experts, eight per token, on 64 H100; the step of regista predict at quantile 0.9, by the devices that
share the experts (ep).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

import regista.api as regista
from experiments.common.small_size import refuse_over_committed
from planner.cost import AnalyticCost
from planner.cost.routing import ExpertLoad, Popularity, Routing
from planner.frontend import Program
from planner.ir.plan import Plan
from planner.validate import validate
from regista.jobs.families import family
from regista.jobs.job import Job, Layout, Running
from regista.jobs.predict import predict
from simulator.routed import simulate_routed
from zoo import ZOO

__all__ = ["job_rows", "main", "plan_rows", "skewed"]

HERE = Path(__file__).parents[1]
CSV, PICTURE = HERE / "results/expert_routing.csv", HERE / "figures/expert_routing.png"
SKEWS = (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0)
CLUSTERS = ("h100-sxm:1", "h100-pcie:1")
EXPERTS, TOP_K, CAPACITY = 16, 2, 1.25
PARTS = (8, 16, 32, 64)
COLOURS = {"even": "C0", "robust": "C1", "even, capacity 1.25": "C2"}


def skewed(skew: float, experts: int, top_k: int) -> Routing:
    """One expert with ``skew`` times the even load: the inverse of the choice 1 - exp(-w t) (planner.cost.routing)."""
    taken = skew * top_k / experts
    first, other = (-math.log1p(-share) for share in (taken, (top_k - taken) / (experts - 1)))
    return Routing(kind=Popularity.HISTOGRAM, histogram=(first, *(other,) * (experts - 1)))


def program(width: int, batch: int, seq: int) -> Program:
    return ZOO["moe"](layers=2, width=width, heads=16, experts=EXPERTS, hidden=8 * width, batch=batch, seq=seq, dtype="bf16")


def plan_rows(source: Program, cluster: str, skews: Sequence[float], runs: int) -> Iterator[dict[str, object]]:
    """Three rows per skew: the plan for even loads, the same with a capacity, and the plan for the skew."""
    even = regista.plan(source, cluster, mesh=(8,), load=ExpertLoad(routing=Routing(), top_k=TOP_K))
    validate(even, source)
    for skew in skews:
        load = ExpertLoad(routing=skewed(skew, EXPERTS, TOP_K), top_k=TOP_K)
        robust = regista.plan(source, cluster, mesh=(8,), load=load)
        validate(robust, source)
        bounded = replace(load, capacity_factor=CAPACITY)
        for name, plan, played in (("even", even, load), ("robust", robust, load), (f"even, capacity {CAPACITY}", even, bounded)):
            routed = simulate_routed(plan, AnalyticCost(plan.cluster), played, runs=runs, steps=3)
            yield {
                "kind": "sim",
                "case": cluster,
                "plan": name,
                "skew": skew,
                "busiest": max(work_load(plan, played), default=1.0),
                "layout": " ".join(layouts(plan)),
                "median_s": routed.median_s,
                "quantile_s": routed.quantile_s,
                "dropped_share": routed.dropped_share,
                "objective_s": plan.search.objective_s,
                "bound_s": plan.search.lower_bound_s,
                "plan_id": plan.plan_id,
            }


def work_load(plan: Plan, load: ExpertLoad) -> Iterator[float]:
    """Of each task's busiest rank, at the quantile."""
    for work in plan.experts:
        parts = math.prod(plan.placement[plan.task[work.task].placement].mesh[axis] for axis in work.axes)
        yield load.busiest(work.experts, load.tokens(work.experts, work.rows), parts)


def layouts(plan: Plan) -> tuple[str, ...]:
    """Of the two matrices of experts."""
    lies = {state.name: str(plan.regst[state.regst].tensors[state.index].sbp) for state in plan.states}
    return lies["h.1.mlp.w_in"], lies["h.1.mlp.w_out"]


def job_rows(skews: Sequence[float], parts: Sequence[int]) -> Iterator[dict[str, object]]:
    """A row per skew and number of devices that share the experts."""
    model = replace(family("deepseek-v3"), layers=8, dense_layers=0)
    for ep in parts:
        for skew in skews:
            load = ExpertLoad(routing=skewed(skew, model.experts, model.top_k), top_k=model.top_k)
            at = Layout(dp=64, ep=ep, etp=1, global_batch=512)
            running = Running(distributed_optimizer=True, load=load)
            done = predict(Job(name="", machine="h100", devices=64, model=model, layout=at, running=running))
            yield {
                "kind": "sim",
                "case": "deepseek-v3, 8 layers, 64 H100",
                "plan": f"ep {ep}",
                "skew": skew,
                "busiest": done.busiest_rank,
                "quantile_s": done.step_s,
                "dropped_share": done.dropped_share,
                "plan_id": done.plan.plan_id,
            }


def draw(table: pd.DataFrame) -> Figure:
    """Step over skew: a panel per case."""
    cases = list(dict.fromkeys(table.case))
    figure = Figure(figsize=(4.2 * len(cases), 3.6), layout="constrained")
    for panel, case in zip(figure.subplots(1, len(cases), squeeze=False)[0], cases, strict=True):
        own = table[table.case == case]
        for plan, rows in own.groupby("plan", sort=False):
            style = "--" if plan == "robust" else "-"
            panel.plot(rows["skew"], 1e3 * rows.quantile_s, "o" + style, color=COLOURS.get(str(plan)), label=plan, markersize=4)
        panel.set(ylim=(0, None), xlabel="skew: busiest expert over even load", ylabel="ms of a step, quantile 0.9 (sim)")
        panel.set_title(case, fontsize=9)
        panel.legend(fontsize=7)
    return figure


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--redraw", action="store_true")
    parser.add_argument(
        "--smoke", action="store_true", help="a small model and two skews; for experiments.reproduce --smoke, which writes elsewhere"
    )
    asked = parser.parse_args()
    if asked.smoke:
        refuse_over_committed(parser, CSV)
    if not asked.redraw:
        skews, clusters, source, runs = SKEWS, CLUSTERS, program(1024, 64, 1024), 20
        if asked.smoke:
            skews, clusters, source, runs = (1.0, 5.0), CLUSTERS[:1], program(64, 8, 64), 2
        rows = [row for cluster in clusters for row in plan_rows(source, cluster, skews, runs)]
        rows += job_rows(skews, PARTS[-1:] if asked.smoke else PARTS)
        pd.DataFrame(rows).to_csv(CSV, index=False, lineterminator="\n", float_format="%.9g")
    table = pd.read_csv(CSV)
    print(table.drop(columns=["kind", "plan_id"]).to_string(index=False, float_format="%.4g"))
    draw(table).savefig(PICTURE, dpi=120)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
