"""Shapes that their authors published, pinned, beside the plan that the search finds; both at the planner's prices (``sim``).

    python -m experiments.search_space.published_shapes [--only llama,deepseek] [--seconds N]      e.g. --seconds 120

authors    stages, mesh, micro-batches, layouts of the experts and ZeRO level as published; layouts that are not published, and how much is computed
           again where nothing else fits, are searched
searched   nothing is pinned; for Llama how much is computed again is searched, too, for DeepSeek all or nothing (with more to choose from the
           seconds are over before a good shape is worked out: in 240, 87.7 s where 42.0 were found)

Writes results/published_shapes.csv; rows of runs that were not asked for stay.
saves: the share of the authors' step that the searched plan does not take; negative: it takes longer.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import regista
from planner.ir.errors import RegistaError
from planner.ir.plan import Plan
from planner.parallelism.shape import Shape

CSV = Path(__file__).parent.parent / "results/published_shapes.csv"

Row = dict[str, str | float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A training run of which its authors say the shape.

    source: where.   options: of regista.plan, as published.   recompute: of the search in which nothing is pinned.
    """

    model: str
    cluster: str
    source: str
    options: Mapping[str, Any]
    recompute: str | None = None


RUNS: Mapping[str, Published] = {
    "llama": Published(
        model="zoo:llama3?size=405B&batch=2048&seq=8192&dtype=bf16",
        cluster="dgx-h100:2048",
        source="arXiv:2407.21783 table 4: tensor 8, pipeline 16, data 128, 16 sequences per data-parallel group",
        options={"stages": 16, "mesh": (128, 8), "micro_batches": 16, "recompute": "selective"},
        recompute="selective",
    ),
    "deepseek": Published(
        model="zoo:deepseek?batch=15360&dtype=bf16",
        cluster="h800-sxm:256",
        source="arXiv:2412.19437 section 3.2: pipeline 16, experts 64, ZeRO-1, no tensor parallelism, batch 15,360",
        options={
            "stages": 16,
            "mesh": (2, 64),
            "micro_batches": 120,
            "zero": 1,
            "pins": ["input.*=S(0),S(0)", "layers.*.mlp.w_*=B,S(0)"],
        },
    ),
}


def measured(name: str, way: str, run: Published, options: Mapping[str, Any]) -> Row:
    """One search, as a row; ``refused`` says why there is no plan."""
    began = perf_counter()
    row: Row = {"kind": "sim", "run": name, "way": way, "source": run.source}
    try:
        plan = regista.plan(run.model, run.cluster, **options)
    except RegistaError as error:
        return row | {"seconds": round(perf_counter() - began, 1), "refused": str(error)}
    return row | {"seconds": round(perf_counter() - began, 1), "refused": ""} | _found(plan)


def _found(plan: Plan) -> Row:
    shape = Shape(len(plan.placements), plan.micro_batches, plan.placements[0].mesh)
    step_s, bound_s = plan.search.objective_s, plan.search.lower_bound_s
    again = plan.options.get("recompute", "")
    return {
        "plan": plan.plan_id,
        "shape": str(shape),
        "kept": again,
        "step_s": round(step_s, 4),
        "lower_bound_s": round(bound_s, 4),
        "gap": round(1 - bound_s / step_s, 4),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.search_space.published_shapes", description="Published shapes beside ours."
    )
    parser.add_argument("--only", default="llama", metavar="RUN,...", help=f"of {', '.join(RUNS)} (default llama)")
    parser.add_argument("--seconds", type=float, default=300.0, help="of the search in which nothing is pinned")
    args = parser.parse_args(arguments)
    asked = args.only.split(",")
    with CSV.open(newline="", encoding="utf-8") as file:
        rows: list[Row] = [{**row} for row in csv.DictReader(file) if row["run"] not in asked]
    for name in asked:
        run = RUNS[name]
        authors = measured(name, "authors", run, run.options)
        free = {"stages": None, "micro_batches": None, "recompute": run.recompute, "seconds": args.seconds}
        searched = measured(name, "searched", run, free)
        if "step_s" in authors and "step_s" in searched:
            searched["saves"] = round(1 - float(searched["step_s"]) / float(authors["step_s"]), 4)
        for row in (authors, searched):
            print(row, flush=True)
            rows.append(row)
    names = list(dict.fromkeys(key for row in rows for key in row))
    with CSV.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
