"""The actors of the OneFlow articles, act by act: who acts when, and what a waiting actor waits for.

    python -m experiments.oneflow.actor_timeline              simulate, write results/actor_timeline.csv, draw figures/actor_timeline.svg
    python -m experiments.oneflow.actor_timeline --redraw     draw from the CSV

    three actors        a -> b -> c, unit times, two blocks each: from time 2 on all three act at once (design article, figure 2)
    ... one block       neighbours take turns
    data to training    load -> preprocess -> copy -> train, two blocks each: the longest sets the pace of all (runtime article, RegstNum 2)
    ... one block       the same with RegstNum 1
    device to device    compute -> copy to host -> network -> copy to device -> compute, without GPU-Direct (design article, figure 3)

An actor's state machine (design article, figure 1) is read off the acts: between two acts an actor waits, for a block of its input that is
not readable yet (``input``) or for a free block of its output (``block``); ``waits_for`` names the one that came last.
Times are units of the articles, so no machine stands behind them.  ``theory``: the period of the chain in closed form.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from experiments.common.actor_plans import actor_plan, actor_regst, actor_task, compute_streams, ports
from experiments.common.table_prices import TablePrices
from planner.ir.cluster import Cluster, DeviceSpec, LinkSpec
from planner.ir.plan import (
    Plan,
    TaskKind,
)
from planner.ir.traces.trace import Act, check_trace
from regista.views.pictures.gantt import save_figure
from simulator import simulate
from simulator.theory import chain_period_s

__all__ = ["main"]

HERE = Path(__file__).parents[1]
CSV, PICTURE = HERE / "results/actor_timeline.csv", HERE / "figures/actor_timeline.svg"
ACTS = 6
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9")


@dataclass(frozen=True)
class Case:
    """actors: name -> time of one act.   blocks: quota of every Regst."""

    name: str
    actors: dict[str, float]
    blocks: int


CASES = (
    Case("three actors, 2 blocks", {"a": 1.0, "b": 1.0, "c": 1.0}, 2),
    Case("three actors, 1 block", {"a": 1.0, "b": 1.0, "c": 1.0}, 1),
    Case("data to training, 2 blocks", {"load": 1.0, "preprocess": 1.0, "copyH2D": 1.0, "train": 3.0}, 2),
    Case("data to training, 1 block", {"load": 1.0, "preprocess": 1.0, "copyH2D": 1.0, "train": 3.0}, 1),
    Case("device to device, 2 blocks", {"op on GPU 0": 2.0, "copyD2H": 1.0, "network": 2.0, "copyH2D": 1.0, "op on GPU 1": 2.0}, 2),
)


def chain(case: Case) -> Plan:
    """The actors in a row on one rank, each on a stream of its own, each filling a Regst of its own."""
    device = DeviceSpec(kind="unit", memory_bytes=10**9, rate_flop_per_s=1e9, memory_bandwidth_bytes_per_s=1e9)
    link = LinkSpec(latency_s=0.0, bandwidth_bytes_per_s=1e9)
    names = list(case.actors)
    tasks = [
        actor_task(
            name,
            name,
            ACTS,
            ports(f"Regst_{before}" if before else None),
            ports(f"Regst_{name}"),
            kind=TaskKind.FORWARD if before else TaskKind.SOURCE,
        )
        for before, name in zip([None, *names], names, strict=False)
    ]
    regsts = [actor_regst(f"Regst_{name}", name, case.blocks, name, 256) for name in names]
    cluster = Cluster(name="unit", source="the articles' unit times", num_nodes=1, devices_per_node=1, device=device, node=link)
    return actor_plan(case.name, cluster, compute_streams(names), regsts, tasks, ACTS, cost_model="articles")


def waits_for(acts: dict[str, list[Act]], names: list[str], name: str, number: int, blocks: int) -> str:
    """What the actor waited for between its act before and this one: an input, a free block, or nothing.

    Act n needs act n of the actor before it, and act n - blocks of the actor behind it, whose end gives a block back.
    """
    own, here = acts[name], names.index(name)
    start = own[number].start_s
    if start <= (own[number - 1].end_s if number else 0.0):
        return "nothing"
    readable = acts[names[here - 1]][number].end_s if here else 0.0
    free = acts[names[here + 1]][number - blocks].end_s if here + 1 < len(names) and number >= blocks else 0.0
    return "input" if readable >= free else "block"


def measure() -> None:
    rows = []
    for case in CASES:
        plan = chain(case)
        trace = simulate(plan, TablePrices(case.actors), steps=1)
        check_trace(plan, trace)
        names = list(case.actors)
        acts = {name: sorted((a for a in trace.acts if a.task == name), key=lambda a: a.number) for name in names}
        period = chain_period_s(list(case.actors.values()), [case.blocks] * len(names))
        last = acts[names[-1]]
        for name in names:
            for act in acts[name]:
                about = {"case": case.name, "blocks": case.blocks, "actor": name, "act_number": act.number}
                times = {
                    "sim_start_s": act.start_s,
                    "sim_end_s": act.end_s,
                    "sim_waits_for": waits_for(acts, names, name, act.number, case.blocks),
                }
                periods = {"sim_period_s": last[-1].end_s - last[-2].end_s, "theory_period_s": period, "plan_id": plan.plan_id}
                rows.append(about | times | periods)
    CSV.parent.mkdir(exist_ok=True)
    pd.DataFrame(rows).to_csv(CSV, index=False)


def show() -> None:
    table = pd.read_csv(CSV)
    with mpl.rc_context({"svg.hashsalt": "regista", "font.size": 9}):
        figure = Figure(figsize=(9, 8.5), layout="constrained")
        cases = list(dict.fromkeys(table.case))
        panels = figure.subplots(len(cases), 1, height_ratios=[len(set(table[table.case == c].actor)) + 1 for c in cases])
        for axes, case in zip(panels, cases, strict=True):
            part = table[table.case == case]
            names = list(dict.fromkeys(part.actor))
            for row in part.itertuples():
                y = names.index(row.actor)
                axes.barh(y, row.sim_end_s - row.sim_start_s, left=row.sim_start_s, height=0.8, color=COLOURS[y], edgecolor="white")
                axes.text((row.sim_start_s + row.sim_end_s) / 2, y, row.act_number, ha="center", va="center", fontsize=8, color="white")
            axes.set_yticks(range(len(names)), names)
            axes.invert_yaxis()
            period = part.iloc[0]
            axes.set_title(f"{case}: period {period.sim_period_s:g} (sim), {period.theory_period_s:g} (theory)", fontsize=9, loc="left")
            axes.spines[["top", "right"]].set_visible(False)
            axes.set_xlim(0, table.sim_end_s.max())
        panels[-1].set_xlabel("time, in units; a number is the batch that the actor works on")
        PICTURE.parent.mkdir(exist_ok=True)
        save_figure(figure, PICTURE)
    report = Table("case", "period, sim", "period, theory", "waits for input", "waits for a block")
    for case in cases:
        part = table[table.case == case]
        counts = part.sim_waits_for.value_counts()
        report.add_row(
            case,
            f"{part.sim_period_s.iloc[0]:g}",
            f"{part.theory_period_s.iloc[0]:g}",
            str(counts.get("input", 0)),
            str(counts.get("block", 0)),
        )
    Console().print(report)
    Console().print(f"{CSV}, {PICTURE}", markup=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--redraw", action="store_true", help="draw from the CSV")
    if not parser.parse_args().redraw:
        measure()
    show()


if __name__ == "__main__":
    main()
