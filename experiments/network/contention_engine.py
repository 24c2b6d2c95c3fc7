"""DLPerf's measured GPT steps on V100 against simulations of their whole Plans, with shared links and three fitted constants per system.

    python -m experiments.network.contention_engine              plan, fit, simulate, write results/contention_engine.csv, draw (3 minutes)
    python -m experiments.network.contention_engine --redraw     draw from the CSV
    (--smoke: OneFlow's three fitted rows and one more, for experiments.reproduce --smoke)

Plans      as the two scripts have them (experiments.fidelity.plans), for the cluster dlperf-v100: its kernels, one nic per node
constants  per system, each from one row: how many times longer kernels take than the cluster's tables say (the row with one GPU; the tables are
           scaled from an A100), bytes/s of a device inside its node (MP_1x8x1) and of a nic (MP_1x16x1).  The other rows are seen by no fit
shared     rows in which tensor-parallel groups lie in one node each, and their gradients cross nodes: 8 all-reduces meet at each nic

experiments.network.contention has the same rows from a formula for computing and flows of collectives alone; experiments.fidelity fits eight
constants to all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track
from rich.table import Table

from experiments.common.bisection import where_reached
from experiments.common.small_size import small_or_redrawn
from experiments.fidelity.dlperf import cluster_of
from experiments.fidelity.plans import plan_of
from experiments.fidelity.points import Point, System, points
from experiments.network.contention import NIC_ROW, NODE_ROW, PER_NODE, RATE_ROW
from planner.cost import AnalyticCost
from planner.ir.cluster import Cluster, LinkSpec
from planner.ir.graph import LogicalGraph
from planner.ir.plan import Fragment, Plan, Task
from simulator import simulate

__all__ = ["Constants", "main", "step_s"]

HERE = Path(__file__).parents[1]
CSV, PICTURE = HERE / "results/contention_engine.csv", HERE / "figures/contention_engine.png"
ROLES = {RATE_ROW: "fitted (kernels)", NODE_ROW: "fitted (node)", NIC_ROW: "fitted (nic)"}
SMALL = (*ROLES, "DP_8x1x1_16_1536x16")
ROUNDS = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """kernels: how many times longer than the cluster's tables say.   node, nic: bytes/s; None: the cluster's."""

    kernels: float = 1.0
    node: float | None = None
    nic: float | None = None

    def of(self, cluster: Cluster) -> Cluster:
        return replace(cluster, node=_at(cluster.node, self.node), nic=_at(cluster.nic, self.nic) if cluster.nic is not None else None)


def _at(link: LinkSpec, bytes_per_s: float | None) -> LinkSpec:
    return link if bytes_per_s is None else replace(link, bandwidth_bytes_per_s=bytes_per_s)


@dataclass(frozen=True)
class _SlowerKernels(AnalyticCost):
    kernels: float = 1.0

    def act_s(self, plan: Plan, task: Task, rank: int) -> float:
        return super().act_s(plan, task, rank) * (self.kernels if isinstance(task.body, Fragment) else 1.0)


def step_s(plan: Plan, constants: Constants) -> float:
    """Simulated seconds of one step."""
    cluster = constants.of(plan.cluster)
    trace = simulate(replace(plan, cluster=cluster), _SlowerKernels(cluster, constants.kernels), steps=1)
    return trace.step_ends_s(plan)[0]


def _case(point: Point) -> str:
    return point.name.partition(",")[0]


def _plans(rows: Sequence[Point]) -> dict[str, Plan]:
    graphs: dict[tuple[object, ...], LogicalGraph] = {}
    plans = {}
    for point in track(rows, description="plans"):
        plans[_case(point)] = plan_of(point, graphs, cluster_of(point.devices)).plan
    return plans


def _fitted(plans: dict[str, Plan], paper_s: dict[str, float]) -> Constants:
    """Each constant from its row, with those before it."""

    def found(case: str, constants: Callable[[float], Constants], low: float, high: float) -> float:
        return where_reached(lambda x: -step_s(plans[case], constants(x)), -paper_s[case], low, high, ROUNDS)

    kernels = 1 / found(RATE_ROW, lambda x: Constants(kernels=1 / x), 0.1, 10.0)
    node = found(NODE_ROW, lambda x: Constants(kernels=kernels, node=x), 1e9, 1e12)
    nic = found(NIC_ROW, lambda x: Constants(kernels=kernels, node=node, nic=x), 1e8, 1e11)
    return Constants(kernels=kernels, node=node, nic=nic)


def measure(systems: Sequence[System] = tuple(System), cases: Sequence[str] = ()) -> None:
    """Simulate the published rows of these systems and write the CSV.

    Args:
        cases: only rows of these names; none: all.
    """
    table: list[dict[str, object]] = []
    for system in systems:
        rows = [p for p in points("dlperf") if p.system is system and (not cases or _case(p) in cases)]
        plans, paper_s = _plans(rows), {_case(p): p.paper_s for p in rows}
        constants = _fitted(plans, paper_s)
        for point in rows:
            case = _case(point)
            simulated_s = step_s(plans[case], constants)
            nodes = max(1, point.devices // PER_NODE)
            table.append(
                {"row": point.name, "system": system.value, "case": case, "nodes": nodes, "dp": point.dp, "tp": point.tp, "pp": point.pp}
                | {"role": ROLES.get(case, "predicted"), "shared": nodes > 1 and point.tp == PER_NODE and point.dp > 1 and point.pp == 1}
                | {"paper_step_s": point.paper_s, "sim_shipped_step_s": step_s(plans[case], Constants())}
                | {"sim_step_s": simulated_s, "error": simulated_s / point.paper_s - 1, "fitted_kernels": constants.kernels}
                | {"fitted_node_bytes_per_s": constants.node, "fitted_nic_bytes_per_s": constants.nic}
            )
    CSV.parent.mkdir(exist_ok=True)
    pd.DataFrame(table).to_csv(CSV, index=False, float_format="%.6g")


def draw() -> None:
    table = pd.read_csv(CSV)
    report = Table("system", "case", "role", "paper, s", "sim, s", "error", "sim as shipped, s", title="GPT on V100, seconds per step")
    for row in table.itertuples():
        cells = (f"{row.paper_step_s:.3f}", f"{row.sim_step_s:.3f}", f"{row.error:+.1%}", f"{row.sim_shipped_step_s:.3f}")
        report.add_row(row.system, row.case, "shared nics" if row.shared else row.role, *cells)
    console = Console()
    console.print(report)
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    systems = table.groupby("system", sort=False)
    panels = figure.subplots(1, len(systems), sharey=True, squeeze=False)[0]
    for panel, (system, here) in zip(panels, systems, strict=True):
        held = here[here.role == "predicted"]
        parts = {"shared nics": held[held.shared], "other rows": held[~held.shared & (held.pp == 1)], "pipelines": held[held.pp > 1]}
        means = "; ".join(f"{name} {part.error.abs().mean():.1%} of {len(part)}" for name, part in parts.items() if len(part))
        first = here.iloc[0]
        console.print(
            f"{system}: kernels x {first.fitted_kernels:.2f}, node {first.fitted_node_bytes_per_s / 1e9:.1f} GB/s, "
            f"nic {first.fitted_nic_bytes_per_s / 1e9:.2f} GB/s; mean |error|: {means}"
        )
        panel.bar(range(len(here)), 100 * here.error, color=["#009E73" if shared else "#0072B2" for shared in here.shared])
        fitted = [place for place, role in enumerate(here.role) if role != "predicted"]
        panel.plot(fitted, [0] * len(fitted), "s", color="#D55E00", markerfacecolor="none")
        panel.axhspan(-10, 10, color="grey", alpha=0.15, linewidth=0)
        panel.axhline(0, color="black", linewidth=0.8)
        panel.set_xticks(
            range(len(here)), [f"{r.case.split('_')[0]} {r.dp}x{r.tp}x{r.pp}" for r in here.itertuples()], rotation=75, fontsize=8
        )
        panel.set_title(f"{system}: data x tensor x pipeline parallel", fontsize=10)
    panels[0].set_ylabel("sim over paper - 1 [%]\nsquare: fitted to, green: 8 rings share each nic", fontsize=9)
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=130)
    console.print(f"-> {CSV}, {PICTURE}")


def main() -> None:
    args = small_or_redrawn(__doc__, "OneFlow's fitted rows and one more", CSV)
    if not args.redraw:
        measure(*((System.ONEFLOW,), SMALL) if args.smoke else ())
    draw()


if __name__ == "__main__":
    main()
