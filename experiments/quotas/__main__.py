"""Register memory that certified quotas save at equal throughput, against "2 everywhere", OneFlow's 2S rule and others, on five pipelines.

    python -m experiments.quotas            plan, optimise, judge and simulate; write results/quotas.csv, draw figures/quotas.png
    python -m experiments.quotas --redraw   draw from the CSV (also with --run)
    python -m experiments.quotas --run      perform points of a curve on 2 CPU devices, write results/quotas_run.csv, draw it
    python -m experiments.quotas --speed    time the optimisers on random problems, write results/quotas_speed.csv

For each rule: its quotas on the Plan, the period that they give (theory: Howard on the marked graph; sim: the simulator's steady steps), and the
least register bytes that give that very period or a shorter one.  "full" is the least memory at the period of unlimited quotas.
Prices are those of the cluster preset (roofline and alpha-beta), so nothing here depends on the machine that runs it, except `seconds`.
"""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, process_time, sleep
from typing import TypeVar

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

import regista
from experiments.common.small_size import refuse_over_committed
from experiments.quotas.instances import layered, training
from experiments.quotas.settle import smallest_settled
from planner.cost import AnalyticCost
from planner.ir.errors import DeadLock, Unsupported
from planner.ir.plan import Plan
from regista.api import program_of
from regista.calibrate import calibrate_plan
from simulator.quotas import full_throughput, pareto
from simulator.quotas.least_bytes import least_bytes
from simulator.quotas.plans import register_bytes
from simulator.quotas.rules import QuotaRule, rule_quotas
from simulator.steady import steady_state

__all__ = ["main"]

T = TypeVar("T")

HERE = Path(__file__).parent.parent
CSV, CURVE, SPEED = HERE / "results/quotas.csv", HERE / "results/quotas_pareto.csv", HERE / "results/quotas_speed.csv"
RUN, PERFORMED = HERE / "results/quotas_run.csv", "zoo:gpt?layers=4&batch=16&seq=128&vocab=512&tied=0"
PICTURE, RUN_PICTURE = HERE / "figures/quotas.png", HERE / "figures/quotas_run.png"
CLUSTER = "dgx-a100:1"
PIPELINES = {
    "gpt, 4 stages": ("zoo:gpt?layers=8&batch=32&seq=128&vocab=512&tied=0", 4, 16),
    "bert, 8 stages": ("zoo:bert?layers=8&width=256&heads=4&vocab=1024&seq=64&batch=32", 8, 16),
    "t5, 4 stages": ("zoo:t5?layers=4&width=256&heads=4&hidden=512&vocab=1024&seq=64&batch=32", 4, 16),
    "vit, 4 stages": ("zoo:vit?layers=8&width=256&heads=4&image=64&classes=100&batch=32", 4, 16),
    "mlp, 2 stages": ("zoo:mlp?depth=4&width=512&hidden=2048&batch=256", 2, 16),
}
SMALL = {"mlp, 2 stages": ("zoo:mlp?depth=2&width=16&hidden=32&batch=16", 2, 4)}
STEPS = 6
SAME = 1e-9
"""Periods whose relative difference is less are one period."""
OTHERS = 0.35
"""Of a core; a run beside more work of others is no run on two cores."""


def measure(pipelines: Mapping[str, tuple[str, int, int]], seconds: float, points: int = 7) -> None:
    """Rows of each pipeline (model, stages, micro-batches) to CSV, the ``points`` of its curve to CURVE; ``seconds`` for each optimisation."""
    rows: list[dict[str, object]] = []
    curve: list[dict[str, object]] = []
    for name, (model, stages, micro_batches) in pipelines.items():
        plan = regista.plan(model, CLUSTER, stages=stages, mesh=(8 // stages,), micro_batches=micro_batches)
        cost = AnalyticCost(plan.cluster)
        about = {"pipeline": name, "model": model, "stages": stages, "micro_batches": micro_batches, "cluster": CLUSTER}
        about |= {"plan_id": plan.plan_id, "regsts": len(plan.regsts)}

        def add(
            what: str, candidate: Plan, period_s: float, about: dict[str, object] = about, cost: AnalyticCost = cost, **more: object
        ) -> None:
            size = {"quotas": what, "register_bytes": register_bytes(candidate)}
            rows.append(about | size | {"kind": "theory", "period_s": period_s} | more)
            sim_s = regista.simulate(candidate, cost, steps=STEPS).settled_step_s(candidate)
            rows.append(about | size | {"kind": "sim", "period_s": sim_s} | more)

        began = perf_counter()
        best = full_throughput(plan, cost, seconds=seconds)
        best_seconds = perf_counter() - began
        more = {"bound_bytes": best.bound_bytes, "bound_any_order_bytes": best.bound_any_order_bytes, "seconds": best_seconds}
        add("full", best.plan, best.period_s, certified=best.is_certified, **more)
        for rule in QuotaRule:
            ruled = plan.with_quotas(rule_quotas(plan, rule, cost))
            try:
                period_s = steady_state(ruled, cost).period_s
            except (DeadLock, Unsupported) as error:
                rows.append(about | {"quotas": rule.value, "kind": "theory", "refused": str(error)[:120]})
                continue
            add(rule.value, ruled, period_s)
            began = perf_counter()
            if period_s <= best.goal_s * (1 + SAME):  # as fast as with unlimited quotas: that question is answered
                equal, spent = best, best_seconds
            else:
                equal = full_throughput(plan, cost, period_s=period_s, seconds=seconds)
                spent = perf_counter() - began
            more = {"bound_bytes": equal.bound_bytes, "bound_any_order_bytes": equal.bound_any_order_bytes, "seconds": spent}
            add(f"as fast as {rule.value}", equal.plan, equal.period_s, certified=equal.is_certified, **more)
        for point in pareto(plan, cost, points=points, seconds=4 * seconds):
            size = {"kind": "theory", "period_s": point.period_s, "register_bytes": point.after_bytes, "certified": point.is_certified}
            curve.append(about | size | {"bound_bytes": point.bound_bytes})
        _save(rows, CSV)
        _save(curve, CURVE)
        Console(stderr=True).print(f"{name}: {len(plan.regsts)} regsts done")


def _save(rows: list[dict[str, object]], path: Path) -> None:
    """Rows of pipelines that were not measured now stay."""
    path.parent.mkdir(exist_ok=True)
    table = pd.DataFrame(rows)
    if path.exists():
        before = pd.read_csv(path)
        table = pd.concat([before[~before.pipeline.isin(table.pipeline)], table])
    table.to_csv(path, index=False)


def speed(repeats: int = 3) -> None:
    """Processor and wall seconds of the optimisers at a period of 2 s; medians and ranges, compilation left out."""
    kinds = {
        "exact, training": (lambda: training(200, 1), lambda p: least_bytes(p, 2.0, seconds=60.0)),
        "exact, layered": (lambda: layered(200, 380, 1), lambda p: least_bytes(p, 2.0, seconds=60.0)),
        "settled, training": (lambda: training(4000, 1), lambda p: smallest_settled(p, 2.0)),
        "settled, layered": (lambda: layered(5000, 10000, 1), lambda p: smallest_settled(p, 2.0)),
    }
    smallest_settled(layered(60, 70, 1), 2.0)
    rows: list[dict[str, object]] = []
    for repeat in range(repeats):
        for kind, (make, solve) in kinds.items():
            problem = make()
            wall_s, cpu_s = perf_counter(), process_time()
            solution = solve(problem)
            wall_s, cpu_s = perf_counter() - wall_s, process_time() - cpu_s
            assert solution is not None
            size = {"regsts": len(problem.buffers), "bytes": solution.total_bytes, "bound_bytes": solution.bound_bytes, "gap": solution.gap}
            here = {"cores": os.cpu_count(), "machine": platform.machine(), "load_1min": os.getloadavg()[0]}
            rows.append({"solver": kind, "repeat": repeat, "kind": "run", "wall_s": wall_s, "cpu_s": cpu_s} | size | here)
            pd.DataFrame(rows).to_csv(SPEED, index=False)
    table = pd.DataFrame(rows)
    report = Table("solver", "regsts", "gap", "cpu in s, median (range)", "wall in s, median (range)")
    for kind, part in table.groupby("solver"):
        times = [f"{part[c].median():.2f} ({part[c].min():.2f} .. {part[c].max():.2f})" for c in ("cpu_s", "wall_s")]
        report.add_row(str(kind), str(part.regsts.iloc[0]), f"{part.gap.max():.3%}", *times)
    Console(width=140).print(report)


def perform(repeats: int, steps: int) -> None:
    """The certified curve of a two-stage pipeline with measured prices, predicted and performed.

    The machine does not stay the same, so each repeat measures the prices anew, predicts with them, and then performs all points, in turn
    forwards and backwards.  Two processes on two cores can only overlap where nobody else computes: each measurement waits for a quiet moment,
    and ``other_cores`` says how many cores the rest of the machine kept busy during it (of theory and sim: while prices were measured).
    ``min_s``: the fastest step of a run.
    """
    program = program_of(PERFORMED)
    plan = regista.plan(program, "local:2", stages=2, micro_batches=8)
    points = pareto(plan, calibrate_plan(plan, program), points=4, seconds=20.0)
    rows: list[dict[str, object]] = []
    for repeat in range(repeats):
        cost, calibrated = _beside(lambda: calibrate_plan(plan, program))
        for point in points if repeat % 2 == 0 else points[::-1]:
            about = {"model": PERFORMED, "plan_id": point.plan.plan_id, "register_bytes": point.after_bytes, "repeat": repeat}
            about |= {"cores": os.cpu_count(), "load_1min": os.getloadavg()[0], "cost_model": cost.id}
            sim_s = regista.simulate(point.plan, cost, steps=STEPS).settled_step_s(point.plan)
            rows.append(about | {"kind": "theory", "period_s": steady_state(point.plan, cost).period_s, "other_cores": calibrated})
            rows.append(about | {"kind": "sim", "period_s": sim_s, "other_cores": calibrated})
            done, other_cores = _beside(partial(regista.run, point.plan, program, steps=steps, timeout_s=120.0))
            run = done.trace.step_times_s(point.plan)[2:]
            rows.append(about | {"kind": "run", "period_s": median(run), "min_s": min(run), "other_cores": other_cores})
            pd.DataFrame(rows).to_csv(RUN, index=False)


def _beside(work: Callable[[], T], patience_s: float = 15.0) -> tuple[T, float]:
    """What ``work`` returns, and how many cores others kept busy meanwhile; begins when they leave the machine alone, or patience ends."""
    began = perf_counter()
    while perf_counter() - began < patience_s:
        before_s = _others_s()
        sleep(0.5)
        if _others_s() - before_s <= OTHERS * 0.5:
            break
    began, before_s = perf_counter(), _others_s()
    result = work()
    return result, (_others_s() - before_s) / (perf_counter() - began)


def _others_s() -> float:
    """Processor seconds that the whole machine has spent, without those of this process and its ended children.  Linux only."""
    user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    own = os.times()
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK") - sum(own[:4])


def draw_run() -> None:
    """Steps per second against register bytes: predicted and performed, each measurement, and medians joined; ratios of medians in a table.

    Measurements that the rest of the machine disturbed (OTHERS) are drawn faintly and left out of medians and table.
    """
    every = pd.read_csv(RUN)
    table = every[every.other_cores <= OTHERS]
    for kind in ("sim", "run"):
        used = f"{(table.kind == kind).sum()} of {(every.kind == kind).sum()}"
        Console().print(f"{kind}: {used} rows were measured beside at most {OTHERS} of a core of other work")
    figure = Figure(figsize=(5.2, 3.6), layout="constrained")
    axes = figure.subplots()
    report = Table(
        "registers in MB", "sim: step in ms, median (range), n", "run: step in ms, median (range), n", "slower, sim", "slower, run"
    )
    sizes = sorted(table.register_bytes.unique(), reverse=True)
    columns: dict[str, list[str]] = {}
    slower: dict[str, list[str]] = {}
    for kind, mark, colour in (("sim", "o", "#0072B2"), ("run", "x", "#D55E00")):
        part, faint = table[table.kind == kind], every[(every.kind == kind) & (every.other_cores > OTHERS)]
        axes.plot(faint.register_bytes / 1e6, 1 / faint.period_s, mark, color=colour, alpha=0.25, label=f"{kind}, disturbed")
        axes.plot(part.register_bytes / 1e6, 1 / part.period_s, mark, color=colour, markerfacecolor="none")
        by_size = part.groupby("register_bytes").period_s.agg(["median", "min", "max", "count"]).reindex(sizes)
        axes.plot(by_size.index / 1e6, 1 / by_size["median"], "-", color=colour, label=f"{kind}, medians")
        ms = by_size * 1e3
        columns[kind] = [f"{ms['median'][s]:.0f} ({ms['min'][s]:.0f} .. {ms['max'][s]:.0f}), {by_size['count'][s]:.0f}" for s in sizes]
        slower[kind] = [f"{by_size['median'][s] / by_size['median'][sizes[0]]:.2f}" for s in sizes]  # nan: not measured undisturbed
    for row in zip((f"{s / 1e6:.2f}" for s in sizes), columns["sim"], columns["run"], slower["sim"], slower["run"], strict=True):
        report.add_row(*row)
    axes.set_xlabel("registers [MB]")
    axes.set_ylabel("steps per second")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8, frameon=False)
    figure.savefig(RUN_PICTURE, dpi=150)
    Console(width=140).print(report)
    Console().print(f"-> {RUN_PICTURE}")


def draw() -> None:
    table, curve = pd.read_csv(CSV), pd.read_csv(CURVE)
    theory = table[table.kind == "theory"]
    names = list(dict.fromkeys(theory.pipeline))
    mpl.rcParams["svg.hashsalt"] = "regista"
    figure = Figure(figsize=(3.1 * len(names), 3.6), layout="constrained")
    report = Table("pipeline", "rule", "period in ms", "registers in MB", "least at that period", "saved", title="theory (steady state)")
    looks = {"1f1b": "o", "gpipe": "s", "link-aware": "^", "2S": "D", "2 everywhere": "v"}
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        here = theory[theory.pipeline == name]
        answers = pd.concat([curve[curve.pipeline == name], here[here.certified.notna()]]).sort_values(["register_bytes", "period_s"])
        line = answers[answers.period_s < answers.period_s.cummin().shift(fill_value=float("inf"))]
        axes.step(line.register_bytes / 1e6, 1 / line.period_s, where="post", color="#0072B2", label="optimised")
        axes.plot(line.register_bytes / 1e6, 1 / line.period_s, ".", color="#0072B2")
        for rule, mark in looks.items():
            row, least = here[here.quotas == rule], here[here.quotas == f"as fast as {rule}"]
            if row.empty or least.empty:
                continue
            axes.plot(row.register_bytes / 1e6, 1 / row.period_s, mark, color="#D55E00", markerfacecolor="none", label=rule)
            used, needed = float(row.register_bytes.iloc[0]), float(least.register_bytes.iloc[0])
            period_ms = float(row.period_s.iloc[0]) * 1e3
            report.add_row(name, rule, f"{period_ms:.3f}", f"{used / 1e6:.1f}", f"{needed / 1e6:.1f}", f"{1 - needed / used:.1%}")
        axes.set_title(name, fontsize=10)
        axes.set_xlabel("registers [MB]")
    figure.axes[0].set_ylabel("steps per second (theory)")
    figure.axes[0].legend(fontsize=7, frameon=False)
    figure.savefig(PICTURE, dpi=150)
    Console(width=140).print(report)
    Console().print(f"-> {PICTURE}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--redraw", action="store_true", help="draw from the CSV")
    parser.add_argument("--seconds", type=float, default=30.0, help="for each optimisation (default 30)")
    parser.add_argument("--only", action="append", choices=sorted(PIPELINES), help="these pipelines (default: all)")
    parser.add_argument("--smoke", action="store_true", help="a tiny pipeline; for experiments.reproduce --smoke, which writes elsewhere")
    parser.add_argument("--run", action="store_true", help="perform points of a curve on 2 CPU devices instead")
    parser.add_argument("--speed", action="store_true", help="time the optimisers instead")
    args = parser.parse_args()
    if args.run:
        if not args.redraw:
            perform(repeats=6, steps=8)
        draw_run()
        return
    if args.speed:
        speed()
        return
    if args.smoke:
        refuse_over_committed(parser, CSV)
        measure(SMALL, 0.5, points=3)
    elif not args.redraw:
        measure({name: PIPELINES[name] for name in args.only or PIPELINES}, args.seconds)
    draw()


if __name__ == "__main__":
    main()
