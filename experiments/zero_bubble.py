"""Bubble rates of 1F1B, interleaved 1F1B and the zero-bubble schedules, against those that arXiv:2401.10241 publishes.

    python -m experiments.zero_bubble            compute, write results/zero_bubble.csv, draw figures/zero_bubble.png
    python -m experiments.zero_bubble --redraw   draw from the CSV
    (--smoke: the first configuration, for experiments.reproduce --smoke)

The paper profiles T_F, T_B, T_W and T_comm in 12 configurations (table 9), computes bubble rates from them (table 5) and measures the throughput
(table 4).  Here each schedule is made by planner.schedule and timed with the profiled times.  Columns, one kind of number each:

    bubble_theory    closed form without T_comm; for the automatic schedules the bound that none under the memory limit can beat
    bubble_sim       planner.schedule.timing
    bubble_paper     table 5
    samples_sim      samples per GPU and second, if nothing but the schedule took time
    samples_paper    measured (table 4);  bias = samples_paper / samples_sim - 1: optimizer, gradient norms, embedding, loss, jitter

What the published rows are.  1F1B, ZB-H1 and ZB-H2 are the schedules made by hand.  ZB-1p and ZB-2p are automatic, under a limit of p and 2p
M_B per device, so the automatic search of planner.schedule.automatic answers them, with M_B = (34 h + 5 a s) s b and M_W = 32 h s b per layer.
Interleaving gives each device one layer per chunk, embedding and head counting as a layer each.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from experiments.common.small_size import small_or_redrawn
from planner.schedule import PipelineSchedule, check_schedule
from planner.schedule.automatic import zb_auto
from planner.schedule.classic import interleaved, one_f_one_b
from planner.schedule.greedy import MemoryLimit
from planner.schedule.timing import PassTimes, bubble_rate
from planner.schedule.zero_bubble import zb_h1, zb_h2

__all__ = ["deviations", "main"]

HERE = Path(__file__).parent
CSV, PICTURE = HERE / "results/zero_bubble.csv", HERE / "figures/zero_bubble.png"
PROFILED, PUBLISHED = HERE / "paper_numbers/zero_bubble_table9_profiled_times.csv", HERE / "paper_numbers/zero_bubble_tables_3_4_5.csv"
SCHEDULES = ("1F1B", "1F1B-I", "ZB-H1", "ZB-H2", "ZB-1p", "ZB-2p")
TOLERANCE = {"1F1B": 5.0001e-5} | dict.fromkeys(SCHEDULES[1:], 5e-3)
KEY = ["schedule", "model", "num_microbatches"]


def compute(models: set[str] | None = None, most: int | None = None) -> pd.DataFrame:
    """One row per schedule and configuration; of these models alone, the first ``most`` configurations."""
    published, profiled = pd.read_csv(PUBLISHED), pd.read_csv(PROFILED)
    rows = []
    wanted = [config for config in profiled.to_dict("records") if models is None or config["model"] in models]
    for config in wanted[:most]:
        p, m = int(config["pp"]), int(config["num_microbatches"])
        for name in SCHEDULES:
            same = (published.schedule == name) & (published.model == config["model"]) & (published.num_microbatches == m)
            (paper,) = published[same].to_dict("records")
            v = (int(paper["layers"]) + 2) // p if name == "1F1B-I" else 1
            seconds = [float(config[f"T_{part}_ms"]) * 1e-3 for part in ("F", "B", "W")]
            times = PassTimes.even(p * v, *(s / v for s in seconds), comm_s=float(config["T_comm_ms"]) * 1e-3)
            h, a, s = int(paper["hidden"]), int(paper["heads"]), int(paper["seq"])
            memory = MemoryLimit(
                limit=(2 if name == "ZB-2p" else 1) * p * (34.0 * h + 5 * a * s),
                activation=34.0 * h + 5 * a * s,
                weight_activation=32.0 * h,
            )
            schedule, least_s = _schedule(name, p, m, v, times, memory)
            check_schedule(schedule)
            work_s = m * sum(seconds)
            rate = bubble_rate(schedule, times)
            samples_sim = m * int(config["micro_batch"]) * (1 - rate) / work_s / p
            rows.append(
                {key: paper[key] for key in KEY}
                | {"pp": p, "stages_per_device": v}
                | {f"T_{part}_s": float(config[f"T_{part}_ms"]) * 1e-3 for part in ("F", "B", "W", "comm")}
                | {"bubble_theory": 1 - work_s / least_s, "bubble_sim": rate, "bubble_paper": float(paper["bubble_rate_computed"])}
                | {"samples_sim": samples_sim, "samples_paper": paper["samples_per_gpu_s"], "source": paper["source"]}
            )
    return pd.DataFrame(rows)


def _schedule(name: str, p: int, m: int, v: int, times: PassTimes, memory: MemoryLimit) -> tuple[PipelineSchedule, float]:
    """The schedule and the cost in seconds that theory gives it."""
    forward_s, input_s, weight_s = (sum(t) / p for t in (times.forward_s, times.backward_input_s, times.backward_weight_s))
    work_s = m * (forward_s + input_s + weight_s)
    match name:
        case "1F1B":
            return one_f_one_b(p, m), work_s + (p - 1) * (forward_s + input_s + weight_s)
        case "1F1B-I":
            return interleaved(p, m, v), work_s + (p - 1) * (forward_s + input_s + weight_s) / v
        case "ZB-H1":
            return zb_h1(p, m), work_s + (p - 1) * (forward_s + input_s - weight_s)
        case "ZB-H2":
            return zb_h2(p, m), work_s + (p - 1) * max(0.0, forward_s + input_s - 2 * weight_s)
        case _:
            searched = zb_auto(m, times, memory)
            return searched.schedule, searched.bound_s


def deviations(table: pd.DataFrame) -> pd.DataFrame:
    """The table with ``deviation`` (sim - paper), ``hops`` (the same in T_comm) and ``bias`` (measured over predicted throughput - 1)."""
    work_s = table.num_microbatches * (table.T_F_s + table.T_B_s + table.T_W_s)
    idle = {kind: work_s / (1 - table[f"bubble_{kind}"]) - work_s for kind in ("sim", "paper")}
    return table.assign(
        deviation=table.bubble_sim - table.bubble_paper,
        hops=(idle["sim"] - idle["paper"]) / table.T_comm_s,
        bias=table.samples_paper / table.samples_sim - 1,
    )


def report(table: pd.DataFrame) -> None:
    """Print bubble rates by configuration, then deviation and bias by schedule."""
    table = deviations(table)
    rates = Table(title="bubble rate: sim (paper)", title_justify="left")
    rates.add_column("model, m")
    for name in SCHEDULES:
        rates.add_column(name, justify="right")
    for (model, m), rows in table.groupby(["model", "num_microbatches"], sort=False):
        by_name = rows.set_index("schedule")
        cells = [f"{by_name.bubble_sim[name]:.4f} ({by_name.bubble_paper[name]:.4f})" for name in SCHEDULES]
        rates.add_row(f"{model}, {m}", *cells)
    by_schedule = Table(title="by schedule", title_justify="left")
    for column in (
        "schedule",
        "largest |sim - paper|",
        "allowed",
        "equal to 4 decimals",
        "sim - paper, in p T_comm",
        "measured / predicted - 1",
    ):
        by_schedule.add_column(column, justify="left" if column == "schedule" else "right")
    for name in SCHEDULES:
        rows = table[table.schedule == name]
        hops = rows.hops / rows.pp
        equal = (rows.bubble_sim.round(4) == rows.bubble_paper).sum()
        bias = f"{rows.bias.mean():+.1%} ({rows.bias.min():+.1%} .. {rows.bias.max():+.1%})" if rows.bias.notna().all() else "not measured"
        worst = rows.deviation.abs().max()
        by_schedule.add_row(
            name, f"{worst:.4f}", f"{TOLERANCE[name]:.4f}", f"{equal} of {len(rows)}", f"{hops.min():+.2f} .. {hops.max():+.2f}", bias
        )
    console = Console(width=150)
    console.print(rates)
    console.print(by_schedule)
    console.print(
        "1F1B-I: in each configuration the published idle time is p T_comm less than the recurrence gives, to the rounding of the table:\n"
        "(p-1)(F+B+W)/v + (2vp - 2 - p) T_comm there, (p-1)(F+B+W)/v + (2vp - 2) T_comm here, the way of the first micro-batch there and back."
    )


def draw(table: pd.DataFrame) -> None:
    """Bubble rate per configuration, sim on paper; and the bias per schedule."""
    table = deviations(table)
    mpl.rcParams["svg.hashsalt"] = "regista"
    figure = Figure(figsize=(10.5, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2, 1))
    colours = dict(zip(SCHEDULES, ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#CC79A7", "#D55E00"), strict=True))
    labels = list(dict.fromkeys(f"{r.model}\nm={r.num_microbatches}" for r in table.itertuples()))
    for name in SCHEDULES:
        rows = table[table.schedule == name]
        left.plot(range(len(rows)), rows.bubble_sim * 100, "-", color=colours[name], linewidth=1, label=f"{name}, sim")
        left.plot(range(len(rows)), rows.bubble_paper * 100, "o", color=colours[name], fillstyle="none", markersize=6)
    left.plot([], [], "o", color="grey", fillstyle="none", label="paper")
    left.set_xticks(range(len(labels)), labels, fontsize=7)
    left.set_ylabel("bubble rate [%]")
    left.set_ylim(top=34)
    left.legend(frameon=False, fontsize=8, ncols=4, loc="upper center")
    measured = [name for name in SCHEDULES if table[table.schedule == name].bias.notna().all()]
    right.boxplot([table[table.schedule == name].bias * 100 for name in measured], tick_labels=measured)
    right.axhline(0, color="grey", linewidth=0.8)
    right.set_ylabel("measured / predicted throughput - 1 [%]")
    figure.suptitle("Zero-bubble paper: schedules timed with its profiled passes (12 configurations, p = 8, 16, 32)", fontsize=11)
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=150)


def main() -> None:
    args = small_or_redrawn(__doc__, "one configuration", CSV)
    if not args.redraw:
        CSV.parent.mkdir(exist_ok=True)
        compute(most=1 if args.smoke else None).to_csv(CSV, index=False, float_format="%.10g")
    table = pd.read_csv(CSV)
    report(table)
    draw(table)


if __name__ == "__main__":
    main()
