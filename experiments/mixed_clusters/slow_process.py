"""Two processes of which one is at half speed: layers by speed against as many layers on each, performed in turns (kinds ``run`` and ``sim``).

    python -m experiments.mixed_clusters.slow_process [--turns N]   calibrate, plan, perform, write results/slow_process.csv, print, draw
    python -m experiments.mixed_clusters.slow_process --redraw      draw figures/slow_process.png from the CSV

    turn      table even | table by speed | run even | run by speed

The cluster, two_speeds.toml beside this file, has two kinds of node: what ``regista calibrate`` measures here, SPEED times
slower, and the same with half the rates.
A table has the acts of STEPS steps on two workers of the usual speed (half_speed.py).  Columns, by turn and cut:

    layers    per stage                                theory_s   of the search, by the cluster's rates
    sim_s     simulated by the turn's table, compute acts of the slow rank TIMES as long
    run_s     median step, the first WARM left out     spread     90th over 10th percentile of the steps
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

import regista.api as regista
from backend.measure.profile import profile
from experiments.mixed_clusters.__main__ import layers_of
from experiments.mixed_clusters.half_speed import slowed_workers
from planner.cost import MeasuredCost
from planner.ir.cluster import Between, Cluster, DeviceSpec, load_cluster, save_cluster
from planner.ir.cluster.mixed import mixed_cluster
from planner.ir.plan import Plan, Task
from regista.calibrate import calibrate_machine, cost_of
from regista.clusters import resolve_cluster
from regista.programs import planned_program

__all__ = ["SlowRank", "main", "rows_of", "two_speeds"]

HERE = Path(__file__).parent.parent
CSV, PICTURE, CLUSTER = HERE / "results/slow_process.csv", HERE / "figures/slow_process.png", Path(__file__).parent / "two_speeds.toml"
LAYERS, MICRO_BATCHES, STEPS, WARM = 12, 8, 10, 2
MODEL = f"zoo:gpt?layers={LAYERS}&width=64&heads=4&vocab=512&seq=64&batch={MICRO_BATCHES}"
SPEED, TIMES, SLOW_RANK = 4.0, 2.0, 1
"""The usual worker's acts last SPEED times their processor time, so that a busy machine does not show; the slow one's TIMES as long as that."""
CUTS = {"even": (f"h.{LAYERS // 2}",), "by speed": ()}


@dataclass(frozen=True, kw_only=True)
class SlowRank:
    """A cost model's times, with compute acts of SLOW_RANK TIMES as long."""

    table: MeasuredCost

    @property
    def id(self) -> str:
        return f"{self.table.id}-rank{SLOW_RANK}x{TIMES:g}"

    @property
    def compute_slowdown(self) -> float:
        return self.table.compute_slowdown

    def message_s(self, src_rank: int, dst_rank: int) -> float:
        return self.table.message_s(src_rank, dst_rank)

    def act_s(self, plan: Plan, task: Task, rank: int) -> float:
        overhead_s = self.table.act_overhead_s
        times = TIMES if rank == SLOW_RANK and task.kind.is_compute else 1.0
        return overhead_s + times * (self.table.act_s(plan, task, rank) - overhead_s)


def two_speeds(machine: Cluster) -> Cluster:
    """A node of one device as measured, SPEED times slower, and one whose device has half its rates.

    Args:
        machine: one node of CPU devices, calibrated.
    """

    def slower(times: float) -> DeviceSpec:
        rates = tuple(replace(rate, flop_per_s=rate.flop_per_s / times) for rate in device.rates)
        flop_per_s, bytes_per_s = device.rate_flop_per_s / times, device.memory_bandwidth_bytes_per_s / times
        return replace(device, rate_flop_per_s=flop_per_s, memory_bandwidth_bytes_per_s=bytes_per_s, rates=rates)

    device = machine.device
    kinds = [
        replace(machine, name=name, devices_per_node=1, nic=machine.node, device=each)
        for name, each in (("usual", slower(SPEED)), ("half", slower(SPEED * TIMES)))
    ]
    return mixed_cluster("one process at half speed", machine.source, kinds, [Between(kinds=("usual", "half"), link=machine.node)])


def _table(plan: Plan) -> MeasuredCost:
    """Prices of the acts as they are in real steps."""
    source = planned_program(plan)
    measured = profile(plan, source.initial_state(plan.micro_batches), source.batch, rounds=STEPS, warmup=WARM, mode="run")
    return cost_of(plan, measured)


def rows_of(model: str, cluster: Cluster, turns: int) -> Iterator[dict[str, object]]:
    """A row per turn and cut of a GPT of LAYERS layers in the zoo."""
    plans = {
        cut: regista.plan(model, cluster, stages=2, mesh=(1,), micro_batches=MICRO_BATCHES, cuts=places) for cut, places in CUTS.items()
    }
    for turn in range(turns):
        with slowed_workers([SPEED, SPEED]):
            prices = {cut: SlowRank(table=_table(plan)) for cut, plan in plans.items()}
        for cut, plan in plans.items():
            with slowed_workers([SPEED, SPEED * TIMES]):
                outcome = regista.run(plan, steps=STEPS + WARM)
            times_s = outcome.trace.step_times_s(plan)[WARM:]
            low_s, run_s, high_s = np.quantile(times_s, (0.1, 0.5, 0.9))
            yield {
                "turn": turn,
                "cut": cut,
                "layers": " ".join(map(str, layers_of(plan))),
                "theory_s": plan.search.objective_s,
                "sim_s": regista.simulate(plan, prices[cut]).settled_step_s(plan),
                "run_s": run_s,
                "spread": high_s / low_s,
                "last_loss": outcome.losses[-1],
                "plan_id": plan.plan_id,
            }


def summary(table: pd.DataFrame) -> str:
    """Medians over turns, what was predicted against what ran, and what layers by speed save, with the spread over turns."""
    by_cut = table.pivot(index="turn", columns="cut", values="run_s")
    faster = by_cut["even"] / by_cut["by speed"]
    lines = [f"layers by speed: {faster.median():.2f} times as fast as the even cut ({faster.min():.2f} to {faster.max():.2f}; run)"]
    for cut, rows in table.groupby("cut", sort=False):
        error = rows.sim_s / rows.run_s - 1
        lines.append(
            f"{cut}: {rows.run_s.median():.3f} s (run), {rows.sim_s.median():.3f} s (sim); by turn predicted "
            f"{error.median():+.1%} ({error.min():+.1%} to {error.max():+.1%})"
        )
    return "\n".join(lines)


def draw(table: pd.DataFrame) -> Figure:
    """Steps of the two cuts, as performed and as simulated, turn by turn."""
    figure = Figure(figsize=(6.4, 3.4), layout="constrained")
    panel = figure.subplots()
    cuts = list(dict.fromkeys(table.cut))
    for column, marker, colour in (("run_s", "o", "C0"), ("sim_s", "_", "C1")):
        for at, cut in enumerate(cuts):
            seconds = table[table.cut == cut][column]
            x = np.linspace(at - 0.2, at + 0.2, len(seconds))
            panel.plot(x, seconds, marker, color=colour, markersize=9, label=f"by turn ({column[:-2]})" if at == 0 else None)
    panel.set_xticks(range(len(cuts)), [f"{cut}: layers {table[table.cut == cut].layers.iloc[0]}" for cut in cuts])
    panel.set(ylabel="seconds of a step", ylim=(0, None), xlim=(-0.5, len(cuts) - 0.5))
    panel.set_title(f"GPT of {LAYERS} layers on two processes, the second at half speed", fontsize=9)
    panel.legend(fontsize=8)
    return figure


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=4, metavar="N")
    parser.add_argument("--redraw", action="store_true")
    asked = parser.parse_args()
    if not asked.redraw:
        save_cluster(two_speeds(calibrate_machine(resolve_cluster("local:2"))), str(CLUSTER))
        rows: list[dict[str, object]] = []
        for row in rows_of(MODEL, load_cluster(str(CLUSTER)), asked.turns):
            rows.append(row)  # an interrupted measurement keeps the turns that it had
            pd.DataFrame(rows).to_csv(CSV, index=False, lineterminator="\n", float_format="%.6g")
    table = pd.read_csv(CSV)
    print(table.drop(columns=["plan_id"]).to_string(index=False, float_format="%.4g"))
    print(summary(table))
    draw(table).savefig(PICTURE, dpi=120)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
