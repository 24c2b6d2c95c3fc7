"""What a cluster buyer asks: GPT-3 175B on 128 GPUs, which GPU, which NIC, how much memory; the best plan of each, and what the second best costs.

    python -m experiments.buyer                plan and simulate what results/buyer.csv does not hold yet, check, draw figures/buyer.png
    python -m experiments.buyer --redraw       table, check and picture from the CSV
    (--smoke: two layers on 16 GPUs, two points; for experiments.reproduce --smoke, which writes elsewhere)

A point is a preset (dgx-a100 or dgx-h100, 8 GPUs per node) with two numbers changed.  The NIC is sold by the port: a node has one port per
GPU, 8 in all, so that N Gb/s means N / 8 GB/s per GPU; the preset's ``links.nic`` is the whole node's, 0.94 of 8 ports, as its file says.
Memory is changed alone: the bandwidth to it stays that of the 80 GB part, and an H100 of 40 GB is not sold.

Training is that of the program, not of any other one: parameters, gradients and both moments of AdamW in bfloat16, 8 bytes per parameter (with
float32 master copies it would be 16 to 18), attention written out as matrix products, sequences of 2,048, 1,536 of them per step.

Columns (kinds of numbers never share one):

    theory_objective_s, theory_bound_s    the best plan's step as the search prices it, and what no plan of the shapes searched goes below
    sim_step_s, ..                        the simulator's, of the same plan: compute, collectives and sends as actors
    sim_mfu                               (1) over the data sheet's dense bfloat16 rate, work that is done twice not counted
    sim_exposed_share, sim_bubble_share   of a step, mean of devices: collectives or sends with no compute beside them; no compute at all
    zero, zero_share                      ZeRO level that most bytes of the parameters have (planner.search.zero), and how many have it
    second_..                             the plan of another shape (stages, mesh, micro-batches, recompute);  price = second / best - 1
    theory_least_other_s                  what no plan of them but those of the lesser objective's shape goes below
    status                                ok; OutOfMemory, with what it would need; ended early: --seconds came before the proof of both plans
    run_search_s                          processor time of the search here

    flop per step = 72 B s l h^2 (1 + s / (6 h) + V / (12 l h))       forward and backward, B sequences of s tokens              (1)
                                                                      [Narayanan et al. 2021, section 5.1: 96 with recomputation]

The two plans are the search's: the two shapes of least objective, proven.  Best is the one that is quicker in the simulator, which knows what the
objective leaves out (quotas that memory keeps small, order); where the search saw it the other way round, theory_price is below 0.

The check (exit code 1): more NIC or more memory never makes the best plan worse by more than its gap, an H100 is no slower than an A100.
A manifest cannot say this table: it knows one plan per point, and no relation between a bound and another point's objective.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from math import inf, prod
from pathlib import Path
from time import perf_counter, process_time

import pandas as pd
from rich.console import Console

from experiments.common.buyer_view import EARLY, PLANNED, configuration_text, draw, report
from experiments.common.small_size import refuse_over_committed
from planner.cost import AnalyticCost
from planner.frontend import Program
from planner.ir.cluster import Cluster
from planner.ir.errors import OutOfMemory
from planner.ir.plan import Boxing, Plan, RegstKind
from planner.ir.sbp import NdSbp
from planner.ir.text import content_id
from planner.parallelism.make import FoundPlans, PlanOptions, search_plans
from planner.search.zero import num_splits
from regista.analysis.whatif import changed_cluster
from regista.api import program_of
from regista.clusters import resolve_cluster
from regista.sweep.rows import DONE, load_rows
from regista.sweep.rows import Table as Rows
from simulator import dry_run
from simulator.analysis.forecast import forecast

__all__ = ["Point", "broken", "measure", "model_flop", "points", "zero_level"]

HERE = Path(__file__).parent
CSV, PICTURE = HERE / "results/buyer.csv", HERE / "figures/buyer.png"

GPUS = ("a100", "h100")
NICS_GBIT_PER_S, MEMORIES_GB = (100, 200, 400), (40, 80)
GPUS_PER_NODE = 8
PORT_SHARE = 0.94
"""Of a port's rate: 46 to 48 of 50 GB/s are reported, as the presets say."""
PEAK_FLOP_PER_S = {"a100": 312e12, "h100": 989e12}
"""Dense bfloat16, data sheets of A100-SXM4 and H100-SXM5."""
TRAINING_TOKENS = 300e9
"""What GPT-3 was trained on: Brown et al. 2020, table 2.1."""
SEARCH_GAP = 0.01
"""What the shape search leaves unproven: a shape that can be better by no more than this share is not worked out."""
VERSION = 2
COLUMNS = (
    "point_id", "phase", "gpu", "num_gpus", "nic_Gbit_per_s", "memory_GB", "model", "status", "says",
    "stages", "mesh", "micro_batches", "recompute", "zero", "zero_share", "theory_objective_s", "theory_bound_s",
    "sim_step_s", "sim_mfu", "sim_peak_GB", "sim_exposed_share", "sim_bubble_share", "sim_days",
    "second_stages", "second_mesh", "second_micro_batches", "second_recompute", "second_zero",
    "theory_second_s", "theory_least_other_s", "sim_second_step_s", "theory_price", "sim_price", "plan_id", "second_plan_id", "run_search_s",
)  # fmt: skip
TEXTS = dict.fromkeys(("point_id", "gpu", "model", "status", "says", "mesh", "second_mesh", "plan_id", "second_plan_id"), str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One configuration to buy.  nic_Gbit_per_s: of one port, one port per GPU."""

    gpu: str
    nic_Gbit_per_s: int
    memory_GB: int
    num_nodes: int = 16
    model: str = "zoo:gpt3?batch=1536&dtype=bf16"

    @property
    def point_id(self) -> str:
        return content_id(asdict(self) | {"version": VERSION})

    @property
    def num_gpus(self) -> int:
        return self.num_nodes * GPUS_PER_NODE

    def cluster(self) -> Cluster:
        """The preset with the point's NIC and memory."""
        nic_GBps = PORT_SHARE * self.nic_Gbit_per_s / 8 * GPUS_PER_NODE
        sets = (f"cluster.links.nic.bandwidth_GBps={nic_GBps}", f"cluster.device.memory_GB={float(self.memory_GB)}")
        return changed_cluster(resolve_cluster(f"dgx-{self.gpu}:{self.num_nodes}"), sets)


SMALL = tuple(
    Point(gpu="a100", nic_Gbit_per_s=nic, memory_GB=40, num_nodes=2, model="zoo:gpt3?size=13B&layers=2&batch=32&dtype=bf16")
    for nic in (100, 400)
)


def points() -> tuple[Point, ...]:
    """The roomiest first: the more memory, the sooner the search ends."""
    return tuple(Point(gpu=g, nic_Gbit_per_s=n, memory_GB=m) for m, g, n in product(MEMORIES_GB[::-1], GPUS, NICS_GBIT_PER_S))


def measure(point: Point, program: Program, seconds: float = inf) -> dict[str, object]:
    """The row of a point.  A model that does not fit is an answer: its row says what it would need.

    Args:
        seconds: the search begins nothing new after that; the row's status is then EARLY, its bounds hold all the same.
    """
    row: dict[str, object] = {
        "point_id": point.point_id,
        "phase": "predicted",
        "gpu": point.gpu,
        "num_gpus": point.num_gpus,
        "nic_Gbit_per_s": point.nic_Gbit_per_s,
        "memory_GB": point.memory_GB,
        "model": point.model,
    }
    began, began_here = perf_counter(), process_time()
    try:
        searched = search_plans(
            program.graph,
            model=point.model,
            batch_size=program.batch_size,
            cluster=point.cluster(),
            options=PlanOptions(stages=None, micro_batches=None, seconds=seconds),
            dry_run=dry_run,
            runner_up=True,
        )
    except OutOfMemory as error:
        return row | {"status": "OutOfMemory", "says": str(error), "run_search_s": process_time() - began_here}
    proven = perf_counter() - began < seconds or _is_proven(searched)
    row |= {"status": "ok" if proven else EARLY, "run_search_s": process_time() - began_here}
    plans = [plan for plan in (searched.plan, searched.second) if plan is not None]
    played = sorted(((forecast(plan, AnalyticCost(plan.cluster)), plan) for plan in plans), key=lambda pair: pair[0].step_s)
    seen, best = played[0]
    row |= _shape(best, "") | {"theory_objective_s": best.search.objective_s, "theory_bound_s": searched.plan.search.lower_bound_s}
    row |= {
        "plan_id": best.plan_id,
        "sim_step_s": seen.step_s,
        "sim_peak_GB": max(group.peak_bytes for group in seen.rank_groups) / 1e9,
        "sim_exposed_share": seen.mean("exposed"),
        "sim_bubble_share": seen.mean("bubble"),
        "theory_least_other_s": searched.least_other_s,
    } | _worth(point, best, seen.step_s)
    for other, second in played[1:]:
        row |= _shape(second, "second_") | {"theory_second_s": second.search.objective_s, "sim_second_step_s": other.step_s}
        row["theory_price"] = second.search.objective_s / best.search.objective_s - 1
        row["sim_price"] = other.step_s / seen.step_s - 1
        row["second_plan_id"] = second.plan_id
    return row


def _is_proven(searched: FoundPlans) -> bool:
    """Whether a longer search would leave both plans as they are: each is within the search's gap of what is left."""
    if searched.second is None:
        return False
    bounds = ((searched.plan, searched.plan.search.lower_bound_s), (searched.second, searched.least_other_s))
    return all(plan.search.objective_s * (1 - SEARCH_GAP) <= bound_s for plan, bound_s in bounds)


def _shape(plan: Plan, prefix: str) -> dict[str, object]:
    level, share = zero_level(plan)
    shape: dict[str, object] = {
        "stages": len(plan.placements),
        "mesh": "x".join(map(str, plan.placements[0].mesh)),
        "micro_batches": plan.micro_batches,
        "recompute": int(plan.options["recompute"] == "blocks"),
        "zero": level,
    }
    return {prefix + name: value for name, value in shape.items()} | ({} if prefix else {"zero_share": share})


def zero_level(plan: Plan) -> tuple[int, float]:
    """(the ZeRO level that most bytes of the parameters have, the share of them that have it).

    A parameter has level 3 if it is gathered anew in every micro-batch; else 2 or 1 if its moments are split along more axes than it, with
    its gradient split as they are or not; else 0, which a parameter that tensor parallelism num_splits along every axis has as well.
    """
    regst = plan.regst
    again = {
        port.regst
        for task in plan.tasks
        if isinstance(task.body, Boxing) and task.acts == plan.micro_batches > 1
        for port in task.consumes
        if regst[port.regst].kind is RegstKind.STATE
    }
    layout: dict[str, NdSbp] = {s.name: regst[s.regst].tensors[s.index].sbp for s in plan.states}
    bytes_of = dict.fromkeys(range(4), 0)
    for state in plan.states:
        if f"{state.name}:exp_avg" not in layout:
            continue
        tensor = regst[state.regst].tensors[state.index]
        moment, here = num_splits(layout[f"{state.name}:exp_avg"]), num_splits(tensor.sbp)
        access = plan.gradients.get(state.name)
        gradient = here if access is None else num_splits(regst[access.regst].tensors[access.index].sbp)
        level = 3 if state.regst in again else 0 if moment <= here else 2 if gradient >= moment else 1
        bytes_of[level] += prod(tensor.shape) * tensor.dtype.size_bytes
    level = max(bytes_of, key=lambda key: (bytes_of[key], -key))
    total = sum(bytes_of.values())
    return level, bytes_of[level] / total if total else 1.0


def model_flop(layers: int, width: int, vocab: int, sequences: int, tokens: int) -> float:
    """(1): flop of one step's forward and backward pass; ``tokens`` per sequence."""
    return 72 * sequences * tokens * layers * width**2 * (1 + tokens / (6 * width) + vocab / (12 * layers * width))


def _worth(point: Point, plan: Plan, step_s: float) -> dict[str, object]:
    """What the step is worth: utilisation of the data sheet's rate, days of a training."""
    shape_of = {s.name: plan.regst[s.regst].tensors[s.index].shape for s in plan.states}
    vocab, width = shape_of["wte.weight"]
    tokens, _ = shape_of["wpe.weight"]
    layers = sum(name.endswith("ln_1.weight") for name in shape_of)
    flop = model_flop(layers, width, vocab, plan.batch_size, tokens)
    return {
        "sim_mfu": flop / (step_s * point.num_gpus * PEAK_FLOP_PER_S[point.gpu]),
        "sim_days": TRAINING_TOKENS / (plan.batch_size * tokens) * step_s / 86400,
    }


def broken(table: pd.DataFrame) -> list[str]:
    """The relations that do not hold, in words; see the module's text."""
    contradictions = []
    rows = list(table.to_dict("records"))
    for a, b in product(rows, rows):
        if a is b or a["status"] not in PLANNED or a["model"] != b["model"]:
            continue
        more = b["nic_Gbit_per_s"] >= a["nic_Gbit_per_s"] and b["memory_GB"] >= a["memory_GB"]
        if not more or (a["gpu"], b["gpu"]) == ("h100", "a100"):
            continue
        if b["status"] not in PLANNED:
            contradictions.append(f"{configuration_text(a)} fits, {configuration_text(b)} does not: {b['says']}")
        elif b["theory_bound_s"] > a["theory_objective_s"] * (1 + _ROUNDING):
            contradictions.append(
                f"{configuration_text(b)} takes at least {b['theory_bound_s']:.4g} s, {configuration_text(a)} only {a['theory_objective_s']:.4g} s"
            )
        elif a["gpu"] != b["gpu"] and b["status"] == "ok" and b["theory_objective_s"] > a["theory_objective_s"]:
            contradictions.append(
                f"{configuration_text(b)} takes {b['theory_objective_s']:.4g} s, {configuration_text(a)} only {a['theory_objective_s']:.4g} s"
            )
    return contradictions


_ROUNDING = 1e-9


def load(path: Path) -> pd.DataFrame:
    """The rows of a CSV, the last of each configuration, the cheapest first."""
    table = pd.read_csv(path, dtype=TEXTS)
    table = table.drop_duplicates(["gpu", "nic_Gbit_per_s", "memory_GB"], keep="last")
    return table.sort_values(["gpu", "memory_GB", "nic_Gbit_per_s"], ignore_index=True)


def compute(wanted: Sequence[Point], path: Path, seconds: float = inf) -> None:
    """Append the rows that are missing, and those that a time limit ended early, each at once."""
    rows = Rows(path, COLUMNS)
    try:
        done_ids = {row["point_id"] for row in load_rows(path) if row["status"] in DONE}
        programs: dict[str, Program] = {}
        for point in wanted:
            if point.point_id not in done_ids:
                rows.append(measure(point, programs.setdefault(point.model, program_of(point.model)), seconds))
                Console(stderr=True).print(f"{configuration_text(asdict(point))}: done", highlight=False)
    finally:
        rows.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--redraw", action="store_true", help="table, check and picture from the CSV")
    parser.add_argument("--smoke", action="store_true", help="two small points; for experiments.reproduce --smoke, which writes elsewhere")
    parser.add_argument("--seconds", type=float, default=inf, help="per point, then the best so far (default: until it is proven)")
    args = parser.parse_args()
    if args.smoke:
        refuse_over_committed(parser, CSV)
    if not args.redraw:
        compute(SMALL if args.smoke else points(), CSV, args.seconds)
    table = load(CSV)
    report(table)
    draw(table, PICTURE)
    Console().print(f"-> {CSV}, {PICTURE}")
    if wrong := broken(table):
        sys.exit("does not hold: " + "; ".join(wrong))


if __name__ == "__main__":
    main()
