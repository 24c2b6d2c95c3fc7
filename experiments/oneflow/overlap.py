"""Loading beside computing: the step time with quota 1 and quota 2 of the loader's Regst, predicted from a calibrated table and measured.

    python -m experiments.oneflow.overlap             calibrate, predict and perform; write results/overlap.csv, draw figures/overlap.png
    python -m experiments.oneflow.overlap --redraw    draw from the CSVs
    python -m experiments.oneflow.overlap --quick     one repeat and few steps, to see that it works

    quota 1      load |####|      |####|             a step takes load + compute: the block is taken until the backward pass has read it
                 compute    |####|      |####|
    quota 2      load |####|####|####|               a step takes the longer of the two
                 compute    |####|####|####|

One rank, so that loader and compute have a core each on a machine of two.  Cases:

images    the loader decodes, crops and normalises image files: real work, in C, without Python's lock.  The files are made as large as it takes
          for loading to last as long as computing, which the first calibration says.
waiting   the loader sleeps as long as computing lasts, as storage that answers late.  Not work: it needs no core.

Ways: ``actor``, one SOURCE that reads and prepares, with one Regst to compute; ``chain``, SOURCE -> PREPARE with a Regst in between.
Prices (kind sim) come from `regista calibrate` with this data; ``load_s`` and ``compute_s`` are the medians of what the loader's acts, and forward
and backward, take per step.  Everything is measured anew in each repeat, variants in turn, forwards and backwards.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter, sleep

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from PIL import Image
from rich.console import Console
from rich.table import Table

import regista
from backend.data import Source
from backend.data.describe import Images, Order, Synthetic, SyntheticTensor
from planner.cost import MeasuredCost
from planner.frontend import Program
from planner.ir.plan import Plan, TaskKind
from planner.ir.tensor import DType
from planner.ir.traces.trace import Trace, check_trace
from planner.lower.data_actors.loading import with_loading
from regista.api import program_of
from regista.calibrate import calibrate_plan
from regista.data import loader
from regista.views.pictures.gantt import COLOURS, LABELS

__all__ = ["main"]

HERE = Path(__file__).parents[1]
CSV, ACTS, PICTURE = HERE / "results/overlap.csv", HERE / "results/overlap_acts.csv", HERE / "figures/overlap.png"
BATCH, SIZE, CLASSES, FILES = 16, 64, 4, 64
MODEL = f"zoo:convnet?batch={BATCH}&size={SIZE}&channels=12&classes={CLASSES}"
WARMUP, SHOWN = 3, 4
VARIANTS = (("actor", 1), ("actor", 2), ("chain", 1), ("chain", 2))
WITHIN = 0.05


def make_images(folder: Path, side: int) -> Source:
    """JPEG files of smooth noise (as photographs, neither flat nor white noise), ``side`` pixels square."""
    rng = np.random.default_rng(0)
    for number in range(FILES):
        where = folder / f"class{number % CLASSES}"
        where.mkdir(parents=True, exist_ok=True)
        small = Image.fromarray(rng.integers(0, 256, (max(side // 8, 1), max(side // 8, 1), 3), np.uint8))
        small.resize((side, side), Image.Resampling.BICUBIC).save(where / f"{number:03}.jpg", quality=90)
    return Images(folder=str(folder), size=SIZE)


def waiting(seconds: float) -> Source:
    tensors = (
        SyntheticTensor(dtype=DType.FLOAT32, shape=(3, SIZE, SIZE), high=1.0),
        SyntheticTensor(dtype=DType.INT64, shape=(), high=CLASSES),
    )
    return Synthetic(tensors=tensors, samples=FILES, wait_s=seconds, order=Order(shuffle=False))


def variant(plan: Plan, data: Source, way: str, quota: int) -> Plan:
    raw = loader(plan, data).reader.raw if way == "chain" else ()
    return with_loading(plan, raw, load_quota=quota)


def spent_s(plan: Plan, trace: Trace) -> tuple[float, float]:
    """Medians over the steps after the warm-up: what loading acts take per step, and what forward and backward do."""
    load, compute = [0.0] * trace.steps, [0.0] * trace.steps
    for act in trace.acts:
        task = plan.task[act.task]
        if task.kind.is_loading:
            load[act.number // task.acts] += act.duration_s
        elif task.kind in (TaskKind.FORWARD, TaskKind.BACKWARD):
            compute[act.number // task.acts] += act.duration_s
    return median(load[WARMUP:]), median(compute[WARMUP:])


def priced_s(plan: Plan, cost: MeasuredCost) -> tuple[float, float]:
    """The same, of the table."""
    load = sum(cost.act_s(plan, task, 0) * task.acts for task in plan.tasks if task.kind.is_loading)
    compute = sum(cost.act_s(plan, t, 0) * t.acts for t in plan.tasks if t.kind in (TaskKind.FORWARD, TaskKind.BACKWARD))
    return load, compute


def balanced_images(plan: Plan, program: Program, folder: Path, rounds: int) -> Source:
    """Files whose loading takes as long as computing; decoding time grows with the number of pixels."""
    side = 256
    for attempt in range(4):
        data = make_images(folder / str(attempt), side)
        variant_plan = variant(plan, data, "actor", 2)
        load_s, compute_s = priced_s(variant_plan, calibrate_plan(variant_plan, program, rounds=rounds, data=data))
        if abs(load_s / compute_s - 1) < WITHIN:
            break
        side = max(SIZE, round(side * (compute_s / load_s) ** 0.5))
    Console(stderr=True).print(f"images of {side} x {side} pixels: loading {load_s * 1e3:.1f} ms, computing {compute_s * 1e3:.1f} ms")
    return data


def measure(repeats: int, steps: int, rounds: int) -> None:
    program = program_of(MODEL)
    plan = regista.plan(program, "local:1")
    rows: list[dict[str, object]] = []
    acts: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as name:
        images = balanced_images(plan, program, Path(name), rounds)
        base = calibrate_plan(plan, program, rounds=rounds)
        compute_s = priced_s(plan, base)[1]
        for repeat in range(repeats):
            for case, data in (("images", images), ("waiting", waiting(compute_s))):
                plans = {v: variant(plan, data, *v) for v in VARIANTS if case == "images" or v[0] == "actor"}
                costs = {way: calibrate_plan(plans[way, 2], program, rounds=rounds, data=data) for way in {way for way, _ in plans}}
                for way, quota in plans if repeat % 2 == 0 else reversed(plans):
                    varied, cost = plans[way, quota], costs[way]
                    about = {"case": case, "way": way, "quota": quota, "repeat": repeat, "plan_id": varied.plan_id, "cost_model": cost.id}
                    about |= {"machine": platform.machine(), "cores": os.cpu_count(), "torch": torch.__version__}
                    load_s, busy_s = priced_s(varied, cost)
                    sim = regista.simulate(varied, cost, steps=steps)
                    rows.append(about | {"kind": "sim"} | _times(varied, sim) | {"load_s": load_s, "compute_s": busy_s})
                    other_cores = _other_cores()
                    run = regista.run(varied, program, steps=steps, data=data, timeout_s=120.0).trace
                    check_trace(varied, run)
                    load_s, busy_s = spent_s(varied, run)
                    rows.append(
                        about | {"kind": "run"} | _times(varied, run) | {"load_s": load_s, "compute_s": busy_s, "other_cores": other_cores}
                    )
                    if repeat == repeats - 1 and way == "actor":
                        acts += _acts(case, quota, varied, sim) + _acts(case, quota, varied, run)
                CSV.parent.mkdir(exist_ok=True)
                pd.DataFrame(rows).to_csv(CSV, index=False)
                pd.DataFrame(acts).to_csv(ACTS, index=False)


def _times(plan: Plan, trace: Trace) -> dict[str, object]:
    times = sorted(trace.step_times_s(plan)[WARMUP:])
    return {
        "steps": len(times),
        "step_s": median(times),
        "min_s": times[0],
        "p10_s": times[len(times) // 10],
        "p90_s": times[(9 * len(times)) // 10],
    }


def _acts(case: str, quota: int, plan: Plan, trace: Trace) -> list[dict[str, object]]:
    """Of some steps before the last ones, in which the loader has nothing left to do."""
    ends = trace.step_ends_s(plan)
    begin_s, end_s = ends[-SHOWN - 3], ends[-3]
    return [
        {
            "case": case,
            "quota": quota,
            "kind": trace.source.value,
            "task": act.task,
            "task_kind": plan.task[act.task].kind.value,
            "stream": plan.task[act.task].stream,
            "number": act.number,
            "start_s": max(act.start_s - begin_s, 0.0),
            "end_s": min(act.end_s, end_s) - begin_s,
        }
        for act in trace.acts
        if act.end_s > begin_s and act.start_s < end_s and plan.task[act.task].kind is not TaskKind.FETCH
    ]


def _other_cores(seconds: float = 0.5) -> float:
    """Cores that the rest of the machine keeps busy while this process sleeps; the workers of a run do not exist then.  Linux only."""

    def busy_s() -> float:
        user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
        return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")

    began, before_s = perf_counter(), busy_s()
    sleep(seconds)
    return (busy_s() - before_s) / (perf_counter() - began)


def report() -> None:
    table = pd.read_csv(CSV)
    shown = Table(
        "case", "way", "quota", "kind", "load ms", "compute ms", "step in ms, median (p10 .. p90), n", "step / longer", "step / sum"
    )
    console = Console(width=150)
    for (case, way, kind), group in table.groupby(["case", "way", "kind"]):
        # As they are when they take turns; side by side each may slow the other down, and that would be a cost of overlapping.
        alone = group[group.quota == 1]
        load_s, compute_s = float(alone.load_s.median()), float(alone.compute_s.median())
        for quota, part in group.groupby("quota"):
            step_s = float(part.step_s.median())
            spread = f"{step_s * 1e3:.1f} ({part.p10_s.median() * 1e3:.1f} .. {part.p90_s.median() * 1e3:.1f}), {len(part)}"
            own = (f"{part.load_s.median() * 1e3:.1f}", f"{part.compute_s.median() * 1e3:.1f}")
            ratios = f"{step_s / max(load_s, compute_s):.3f}", f"{step_s / (load_s + compute_s):.3f}"
            shown.add_row(str(case), str(way), str(quota), str(kind), *own, spread, *ratios)
    console.print(shown)
    console.print(
        f"longer, sum: of load and compute as they take turns (quota 1).  Wanted: quota 2 at most {1 + WITHIN:.2f} of the longer, quota 1 the sum."
    )
    busy = table.other_cores.dropna()
    console.print(f"the rest of the machine kept {busy.median():.2f} cores busy just before the runs (median; up to {busy.max():.2f})")


def draw() -> None:
    table, acts = pd.read_csv(CSV), pd.read_csv(ACTS)
    cases = list(dict.fromkeys(table.case))
    figure = Figure(figsize=(13.0, 4.4 * len(cases)), layout="constrained", facecolor="white")
    grids = figure.subfigures(len(cases), 1, squeeze=False)[:, 0]
    for case, part in zip(cases, grids, strict=True):
        grid = part.add_gridspec(4, 2, width_ratios=(3.2, 1.0))
        here = acts[acts.case == case]
        length_ms = float(here.end_s.max()) * 1e3
        panels = [(quota, kind) for quota in (1, 2) for kind in ("sim", "run")]
        for row, (quota, kind) in enumerate(panels):
            axes = part.add_subplot(grid[row, 0])
            _gantt(
                axes,
                here[(here.quota == quota) & (here.kind == kind)],
                f"quota {quota}, {'predicted (sim)' if kind == 'sim' else 'measured (run)'}",
            )
            axes.set_xlim(0, length_ms)
            if row < len(panels) - 1:
                axes.set_xticklabels([])
        axes.set_xlabel(f"time in {SHOWN} steady steps [ms]")
        _bars(part.add_subplot(grid[:, 1]), table[(table.case == case) & (table.way == "actor")])
        what = "loader decodes images: real work" if case == "images" else "loader waits for storage: a sleep, no work"
        part.suptitle(f"{what}, as long as forward and backward; {MODEL}, 1 rank", fontsize=10, x=0.01, ha="left", fontweight="bold")
    kinds = [kind for kind in COLOURS if kind.value in set(acts.task_kind)]
    handles = [Patch(facecolor=COLOURS[kind], label=LABELS.get(kind, kind.value)) for kind in kinds]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=130)
    Console().print(f"-> {PICTURE}")


def _gantt(axes: Axes, acts: pd.DataFrame, title: str) -> None:
    streams = sorted(set(acts.stream), key=lambda stream: (not stream.endswith("disk"), stream))
    for line, stream in enumerate(streams):
        for kind, part in acts[acts.stream == stream].groupby("task_kind"):
            spans = [(a * 1e3, (b - a) * 1e3) for a, b in zip(part.start_s, part.end_s, strict=True)]
            axes.broken_barh(spans, (line - 0.4, 0.8), facecolor=COLOURS[TaskKind(kind)], edgecolor="white", linewidth=0.5)
    axes.set_yticks(range(len(streams)), streams, fontsize=8)
    axes.set_ylim(len(streams) - 0.5, -0.5)
    axes.set_title(title, loc="left", fontsize=8.5)
    axes.tick_params(length=0, labelsize=8)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _bars(axes: Axes, table: pd.DataFrame) -> None:
    """Step times of every repeat, medians joined; grey: the longer of loading and computing (run), and their sum."""
    run = table[table.kind == "run"]
    load_ms, compute_ms = (run[run.quota == 1][c].median() * 1e3 for c in ("load_s", "compute_s"))
    for level, name in ((max(load_ms, compute_ms), "the longer (run)"), (load_ms + compute_ms, "the sum (run)")):
        axes.axhline(level, color="#999999", linewidth=0.8, linestyle=(0, (4, 3)))
        axes.text(2.45, level, name, fontsize=7, color="#666666", va="bottom", ha="right")
    for kind, mark, colour, shift in (("sim", "o", "#0072B2", -0.06), ("run", "x", "#D55E00", 0.06)):
        part = table[table.kind == kind]
        axes.plot(part.quota + shift, part.step_s * 1e3, mark, color=colour, alpha=0.6, markerfacecolor="none")
        middle = part.groupby("quota").step_s.median() * 1e3
        axes.plot(middle.index + shift, middle, "-", color=colour, label=kind)
    axes.set_xticks([1, 2], ["quota 1", "quota 2"])
    axes.set_xlim(0.5, 2.5)
    axes.set_ylim(0, 1.15 * max(load_ms + compute_ms, table.step_s.max() * 1e3))
    axes.set_ylabel("step [ms]")
    axes.legend(fontsize=8, frameon=False)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--redraw", action="store_true", help="draw from the CSVs")
    parser.add_argument("--quick", action="store_true", help="one repeat and few steps")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args(argv)
    if not args.redraw:
        measure(1 if args.quick else args.repeats, steps=10 if args.quick else 24, rounds=5 if args.quick else 15)
    draw()
    report()


if __name__ == "__main__":
    main()
