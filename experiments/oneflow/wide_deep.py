"""DLPerf's rows of Wide & Deep on one to eight V100 under OneFlow, with one constant that is fitted to four of them.

    python -m experiments.oneflow.wide_deep      fit, predict, write results/wide_deep.csv and figures/wide_deep.png (1 minute)

layout     as OneFlow's script has it: the wide table split by rows, the deep table by columns, whose rows change hands in an all-to-all after
           the look-up and before the update; all else is data parallel  [Oneflow-Inc/models, RecommenderSystems/wide_and_deep]
constant   what a collective takes beside its bytes, links.node.latency_us.  NCCL alone takes 81 us on this machine (dlperf-v100.toml); OneFlow's
           host also has to hear that the block is ready on all devices, to launch, and to hear of the end.  Fitted to the rows with the least
           work for the devices: 8 GPUs, 2 hidden layers, batches of 512 to 4096.  All other rows are seen by no fit.
kernels    every op one of its own: dense, bias, relu and dropout are ops of their own in the script; that OneFlow fused none is assumed
tables     of 2,322,444 rows have 4 more here, so that 8 devices hold as many each
memory     what does not fit 16 GB in our format is priced all the same: OneFlow's runs did fit
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

import regista
from experiments.common.robust_fit import Floats, fitted
from experiments.common.small_size import small_or_redrawn
from experiments.common.unlimited import with_unlimited_memory
from experiments.fidelity.dlperf import predicted_s
from planner.cost.clusters import preset
from planner.ir.cluster import Cluster
from planner.ir.plan import Plan
from regista.analysis.whatif import changed_cluster
from regista.clusters import resolve_cluster

__all__ = ["PINS", "Run", "draw", "fit_latency_us", "main", "measure", "runs", "summary"]

HERE = Path(__file__).parent.parent
TABLE, RESULT = HERE / "paper_numbers/oneflow_dlperf_wide_deep_v100.csv", HERE / "results/wide_deep.csv"
PICTURE = HERE / "figures/wide_deep.png"
PINS = ("wide.weight=S(0)", "deep.weight=S(1)")
FITTED_BATCH = 4096
SHIPPED_US, LOW_US, HIGH_US = 1e6 * preset("dlperf-v100").node.latency_s, 20.0, 2000.0
"""SHIPPED_US: of NCCL alone; the column shipped_s is with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A row of the table.  paper_s: seconds per step."""

    gpus: int
    batch: int
    vocab: int
    embedding: int
    layers: int
    paper_s: float

    @property
    def fitted(self) -> bool:
        """Whether the constant is fitted to it."""
        return self.gpus == 8 and self.layers == 2 and self.batch <= FITTED_BATCH

    def cluster(self, latency_us: float) -> Cluster:
        """One of DLPerf's nodes with as many devices."""
        sets = (f"cluster.topology.devices_per_node={self.gpus}", f"cluster.links.node.latency_us={latency_us:.1f}")
        return with_unlimited_memory(changed_cluster(resolve_cluster("dlperf-v100:1"), sets))

    def plan(self, latency_us: float) -> Plan:
        """The Plan in the layout of OneFlow's script (see the module's text)."""
        rows = -(-self.vocab // 8) * 8
        model = f"zoo:wide_deep?batch={self.batch}&vocab={rows}&embedding={self.embedding}&layers={self.layers}"
        return regista.plan(
            f"{model}&dropout=0.5&sparse=1&optimizer=lazy_adam",
            self.cluster(latency_us),
            stages=1,
            mesh=(self.gpus,),
            micro_batches=1,
            zero=0,
            recompute=False,
            kernels="eager",
            pins=PINS if self.gpus > 1 else (),
        )


def runs() -> Iterator[Run]:
    """OneFlow's rows."""
    with TABLE.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["framework"] == "OneFlow":
                yield Run(
                    gpus=int(row["gpus"].removeprefix("n1g")),
                    batch=int(row["global_batch"]),
                    vocab=int(row["deep_vocab"]),
                    embedding=int(row["embed_dim"]),
                    layers=int(row["hidden_units_num"]),
                    paper_s=float(row["latency_ms"]) * 1e-3,
                )


def fit_latency_us(chosen: Sequence[Run]) -> float:
    """Microseconds of a collective beside its bytes, under which the rows come out best."""

    def errors(x: Floats) -> Floats:
        latency_us = float(np.exp(x[0]))
        return np.array([np.log(predicted_s(run.plan(latency_us)) / run.paper_s) for run in chosen])

    found = fitted(errors, np.log([SHIPPED_US]), np.log([LOW_US]), np.log([HIGH_US])).x
    return float(np.exp(found[0]))


def _part(run: Run) -> str:
    devices = f"{run.gpus} GPU" + "s" * (run.gpus > 1)
    return f"{devices}, {run.layers} hidden layers"


def draw(table: pd.DataFrame) -> Figure:
    """Two hidden layers against the batch, and every row's simulated time over its published one."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for place, (gpus, rows) in enumerate(table[table["layers"] == 2].groupby("gpus")):
        seen = rows[rows["fitted"] == 1]
        left.plot(rows["batch"], 1e3 * rows["sim_s"], color=f"C{place}", label=f"sim, {gpus} GPU")
        left.plot(rows["batch"], 1e3 * rows["paper_s"], "o", color=f"C{place}", label=f"paper, {gpus} GPU")
        if len(seen):
            left.plot(seen["batch"], 1e3 * seen["paper_s"], "o", color="white", mec=f"C{place}", label="fitted to")
    left.set(xscale="log", yscale="log", xlabel="global batch", ylabel="milliseconds per step", title="2 hidden layers")
    for place, (part, rows) in enumerate(table[table["fitted"] == 0].groupby("part", sort=False)):
        right.plot(1e3 * rows["paper_s"], 1 + rows["error"], "o", color=f"C{place}", label=part)
    right.axhspan(0.85, 1.15, color="0.92")
    right.axhline(1, color="0.5", linewidth=0.8)
    right.set(xscale="log", xlabel="paper: milliseconds per step", ylabel="sim / paper", title="rows that no fit saw (grey: 15 %)")
    for axes in (left, right):
        axes.legend(fontsize=8)
    return figure


def measure(chosen: Sequence[Run]) -> pd.DataFrame:
    """Fit and predict; writes RESULT."""
    latency_us = round(fit_latency_us([run for run in chosen if run.fitted]), 1)
    rows = []
    for number, run in enumerate(chosen, 1):
        sim_s = predicted_s(run.plan(latency_us))
        shipped_s = sim_s if run.gpus == 1 else predicted_s(run.plan(SHIPPED_US))
        rows.append(
            {
                "point": number,
                "part": _part(run),
                "gpus": run.gpus,
                "batch": run.batch,
                "vocab": run.vocab,
                "embedding": run.embedding,
                "layers": run.layers,
                "fitted": int(run.fitted),
                "latency_us": latency_us,
                "paper_s": run.paper_s,
                "sim_s": sim_s,
                "shipped_s": shipped_s,
                "error": sim_s / run.paper_s - 1,
            }
        )
        print(f"{_part(run)}, batch {run.batch}, {run.vocab} rows of {run.embedding}: {rows[-1]['error']:+.1%}", flush=True)
    table = pd.DataFrame(rows)
    table.to_csv(RESULT, index=False, float_format="%.5g")
    return table


def summary(table: pd.DataFrame) -> str:
    """What the constant is, and how far off the rows are that no fit saw."""
    seen, unseen = (table[table["fitted"] == kind] for kind in (1, 0))
    size = unseen["error"].abs()
    lines = (
        f"fitted to {len(seen)} rows: {table['latency_us'].iloc[0]:.1f} us per collective; they are {seen['error'].abs().mean():.1%} off in the mean",
        f"the other {len(unseen)} rows: {size.mean():.1%} in the mean, worst {size.max():.1%}",
        size.groupby(unseen["part"], sort=False).agg(["mean", "max", "size"]).to_string(),
    )
    return "\n".join(lines)


def main() -> None:
    args = small_or_redrawn(__doc__, "four rows", RESULT)
    if args.redraw:
        table = pd.read_csv(RESULT)
    else:
        every = list(runs())
        table = measure(every[:1] + [run for run in every if run.fitted][:2] + every[-1:] if args.smoke else every)
    print(summary(table))
    draw(table).savefig(PICTURE, dpi=110)
    if not args.redraw and not args.smoke:
        from experiments.trust import record

        record()


if __name__ == "__main__":
    main()
