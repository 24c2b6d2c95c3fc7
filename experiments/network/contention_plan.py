"""A real Plan with and without contention: what it costs when two communications need one nic.

    python -m experiments.network.contention_plan              plan, simulate, write results/contention_plan.csv, draw figures/contention_plan.png
    python -m experiments.network.contention_plan --redraw     draw from the CSV
    (--smoke: two nics, for experiments.reproduce --smoke)

A GPT of four layers as a pipeline of two stages, each on two nodes of one device, 4 micro-batches, for nics from 0.25 to 16 GB/s (latency
10 us).  The Plan is the planner's own for each nic.  Step times (all ``sim``) in the long run, of four simulated steps:

    alone       every act has its links to itself and takes its price
    shared      max-min fair: gradients' all-reduces meet the transfers between the stages.  This is what simulator.simulate says by default
    shared and slowed   the same, and compute takes 1.15 times as long while its rank communicates (an example, not measured)

``equal_traces``: the compiled engine, ranks folded, gave each of these three traces as SimPy did, act for act and bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

import regista
from experiments.common.small_size import small_or_redrawn
from planner.cost import AnalyticCost
from planner.ir.cluster import Cluster, DeviceSpec, LinkSpec
from planner.ir.traces.trace import Trace, check_trace
from regista.api import program_of
from simulator import Engine, simulate, simulate_shared
from simulator.network import Sharing

__all__ = ["main"]

HERE = Path(__file__).parents[1]
CSV, PICTURE = HERE / "results/contention_plan.csv", HERE / "figures/contention_plan.png"
MODEL, STAGES, MICRO_BATCHES, STEPS, SLOWDOWN = "zoo:gpt?layers=4&batch=32&seq=128&vocab=512&tied=0", 2, 4, 4, 1.15
NICS_BYTES_PER_S = (0.25e9, 0.5e9, 1e9, 2e9, 4e9, 8e9, 16e9)


def cluster(nic_bytes_per_s: float) -> Cluster:
    device = DeviceSpec(kind="gpu", memory_bytes=16 * 10**9, rate_flop_per_s=1e12, memory_bandwidth_bytes_per_s=9e11)
    node, nic = LinkSpec(latency_s=5e-6, bandwidth_bytes_per_s=5e10), LinkSpec(latency_s=1e-5, bandwidth_bytes_per_s=nic_bytes_per_s)
    return Cluster(name="four", source="", num_nodes=4, devices_per_node=1, device=device, node=node, nic=nic)


def slowed(shared: Trace, alone: Trace) -> str:
    """The tasks whose acts took longest relative to alone, with the factor."""
    alone_s = {(act.task, act.rank, act.number): act.duration_s for act in alone.acts}
    worst: dict[str, float] = {}
    for act in shared.acts:
        before_s = alone_s[act.task, act.rank, act.number]
        if before_s > 0:
            worst[act.task] = max(worst.get(act.task, 1.0), act.duration_s / before_s)
    return "; ".join(f"{task} x{factor:.2f}" for task, factor in sorted(worst.items(), key=lambda e: -e[1])[:3] if factor > 1.001)


def measure(nics_bytes_per_s: Sequence[float] = NICS_BYTES_PER_S) -> None:
    program = program_of(MODEL)
    rows: list[dict[str, object]] = []
    for nic_bytes_per_s in nics_bytes_per_s:
        place = cluster(nic_bytes_per_s)
        plan = regista.plan(program, place, stages=STAGES, micro_batches=MICRO_BATCHES)
        cost = AnalyticCost(place)
        ways = {"alone": (Sharing.NONE, 1.0), "shared": (Sharing.MAX_MIN, 1.0), "shared_slowed": (Sharing.MAX_MIN, SLOWDOWN)}
        traces, equal = dict[str, Trace](), True
        for name, (sharing, slowdown) in ways.items():
            play = partial(simulate_shared, plan, cost, steps=STEPS, sharing=sharing, compute_slowdown=slowdown)
            trace, compiled = play(engine=Engine.SIMPY), play(engine=Engine.COMPILED)
            check_trace(plan, trace)
            equal = equal and (trace.acts, trace.peak_bytes) == (compiled.acts, compiled.peak_bytes)
            traces[name] = trace
        equal = equal and simulate(plan, cost, steps=STEPS).acts == traces["shared"].acts
        rows.append(
            {"nic_bytes_per_s": nic_bytes_per_s, "plan_id": plan.plan_id, "equal_traces": equal}
            | {f"sim_{name}_step_s": trace.settled_step_s(plan) for name, trace in traces.items()}
            | {"slowed_by_sharing": slowed(traces["shared"], traces["alone"])}
        )
    CSV.parent.mkdir(exist_ok=True)
    pd.DataFrame(rows).to_csv(CSV, index=False, float_format="%.6g")


def draw() -> None:
    table = pd.read_csv(CSV, keep_default_na=False)
    report = Table("nic, GB/s", "alone, ms", "engines agree", "shared", "shared and slowed", "slowed most by sharing")
    for row in table.itertuples():
        relative = (row.sim_shared_step_s / row.sim_alone_step_s - 1, row.sim_shared_slowed_step_s / row.sim_alone_step_s - 1)
        longer = [f"{share:+.1%}" for share in relative]
        report.add_row(
            f"{row.nic_bytes_per_s / 1e9:g}", f"{1e3 * row.sim_alone_step_s:.2f}", str(row.equal_traces), *longer, row.slowed_by_sharing
        )
    Console().print(report)
    figure = Figure(figsize=(6.5, 4), layout="constrained")
    panel = figure.subplots()
    for name, label in (("shared", "links shared"), ("shared_slowed", f"links shared, compute x{SLOWDOWN:g} meanwhile")):
        longer = 100 * (table[f"sim_{name}_step_s"] / table.sim_alone_step_s - 1)
        panel.plot(table.nic_bytes_per_s / 1e9, longer, marker="o", label=f"{label} (sim)")
    panel.set(
        xscale="log",
        xlabel="nic [GB/s]",
        ylabel="step longer than with links of its own [%]",
        title="GPT, 2 stages x 2 nodes, 4 micro-batches",
    )
    panel.set_ylim(bottom=0)
    panel.legend(frameon=False)
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=130)
    Console().print(f"-> {CSV}, {PICTURE}")


def main() -> None:
    args = small_or_redrawn(__doc__, "two nics", CSV)
    if not args.redraw:
        measure(NICS_BYTES_PER_S[:2] if args.smoke else NICS_BYTES_PER_S)
    draw()


if __name__ == "__main__":
    main()
