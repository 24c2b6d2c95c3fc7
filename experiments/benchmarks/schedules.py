"""What --schedule auto chooses, beside every schedule asked for by name on the same shape.

    python -m experiments.benchmarks.schedules [--cases 24]      writes results/schedules.csv

Each case is planned once with ``auto`` and once per schedule by name, and each of these plans is simulated by itself.  Columns:

    step_sim, bubble_sim           of the chosen schedule
    best_step_sim, best            the shortest step of the schedules asked for by name, and which that is
    least_bubble_sim, least        the least bubble of them, and which that is; whoever splits the backward pass reads more from memory, so a
                                   smaller share of idle time may be a longer step

The bubble of a case is the share of a step in which no compute stream works, mean over devices, so it holds waits for messages.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from pathlib import Path

from rich.console import Console

import regista
from planner.cost import AnalyticCost
from planner.ir.cluster import Cluster
from planner.ir.errors import RegistaError
from regista.clusters import resolve_cluster
from regista.schedules import compared_schedules
from simulator.analysis.forecast import Forecast, forecast

__all__ = ["main", "steps_by_name"]

FILE = Path(__file__).parents[1] / "results" / "schedules.csv"
MODELS = ("zoo:mlp?depth=8&width=1024&hidden=4096&batch={batch}", "zoo:gpt?layers=8&width=512&heads=8&vocab=1024&seq=128&batch={batch}")
SAMPLES = {"mlp": 256, "gpt": 2}
"""Samples of a micro-batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    model: str
    stages: int
    micro_batches: int
    links: str
    chosen: str
    step_sim: float
    best: str
    best_step_sim: float
    bubble_sim: float
    least: str
    least_bubble_sim: float


def cases() -> Iterator[tuple[str, int, int, str]]:
    """Model, stages, micro-batches, links: as they are, or ten times slower."""
    for model, stages, per_stage, links in product(MODELS, (2, 4), (1, 2, 4), ("node", "slow")):
        yield model, stages, per_stage * stages, links


def _cluster(stages: int, links: str) -> Cluster:
    cluster = replace(resolve_cluster("p3.16xlarge:1"), devices_per_node=stages)
    if links == "node":
        return cluster
    return replace(cluster, node=replace(cluster.node, bandwidth_bytes_per_s=cluster.node.bandwidth_bytes_per_s / 10))


def steps_by_name(session: regista.PlannerSession, cluster: Cluster, *, stages: int, micro_batches: int) -> dict[str, Forecast]:
    """What is simulated under each schedule that can be asked for by name and planned, on stages of one device each."""
    found: dict[str, Forecast] = {}
    asked: list[tuple[str, dict[str, int]]] = [(schedule, {}) for schedule in ("1f1b", "gpipe", "zb-h1", "zb-h2", "zb-auto")]
    asked += [("zb-auto", {"hold": 2 * stages}), ("interleaved", {"interleave": 2}), ("interleaved", {"interleave": 4})]
    for schedule, more in asked:
        with suppress(RegistaError):
            plan = session.plan(cluster, schedule=schedule, stages=stages, mesh=(1,), micro_batches=micro_batches, **more)
            found[" ".join([schedule, *(f"{key} {value}" for key, value in more.items())])] = forecast(plan, AnalyticCost(cluster))
    return found


def row_of(model: str, stages: int, micro_batches: int, links: str) -> Row:
    kind = model.partition(":")[2].partition("?")[0]
    name, cluster = model.format(batch=SAMPLES[kind] * micro_batches), _cluster(stages, links)
    session = regista.PlannerSession(name)
    chosen = session.plan(cluster, schedule="auto", stages=stages, mesh=(1,), micro_batches=micro_batches)
    seen = forecast(chosen, AnalyticCost(cluster))
    by_name = steps_by_name(session, cluster, stages=stages, micro_batches=micro_batches)
    best = min(by_name, key=lambda key: by_name[key].step_s)
    least = min(by_name, key=lambda key: by_name[key].mean("bubble"))
    return Row(
        model=name,
        stages=stages,
        micro_batches=micro_batches,
        links=links,
        chosen=compared_schedules(chosen)[0].name,
        step_sim=seen.step_s,
        best=best,
        best_step_sim=by_name[best].step_s,
        bubble_sim=seen.mean("bubble"),
        least=least,
        least_bubble_sim=by_name[least].mean("bubble"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="what --schedule auto chooses, beside every schedule by name")
    parser.add_argument("--cases", type=int, default=24, help="the first so many")
    args, console = parser.parse_args(), Console()
    rows = []
    for case in list(cases())[: args.cases]:
        rows.append(row := row_of(*case))
        console.print(f"{row.chosen:>16} {row.step_sim:.4g} s, best {row.best} {row.best_step_sim:.4g} s; bubble {row.bubble_sim:.1%}")
        with FILE.open("w", newline="") as file:
            writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
            writer.writeheader()
            writer.writerows(asdict(one) for one in rows)
    quickest = sum(row.step_sim <= row.best_step_sim * (1 + 1e-9) for row in rows)
    fullest = sum(row.bubble_sim <= row.least_bubble_sim + 1e-9 for row in rows)
    console.print(
        f"{quickest} of {len(rows)} cases: no schedule asked for by name is quicker; {fullest} of them: none has a smaller bubble"
    )


if __name__ == "__main__":
    main()
