"""How the rows of experiments.buyer are shown: two tables, a picture, and the words for a configuration, a shape and a status."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from rich.console import Console
from rich.table import Table

__all__ = ["EARLY", "PLANNED", "configuration_text", "draw", "report", "shape_text"]

EARLY = "ended early"
"""Status of a row whose search was ended by --seconds: a plan and its bounds, to be replaced by a longer search."""
PLANNED = ("ok", EARLY)
COLOURS = ("#4C72B0", "#DD8452", "#55A868")
"""Of the memory sizes, in order."""


def configuration_text(row: Mapping[Any, Any]) -> str:
    """GPU, NIC and memory of a row."""
    return f"{row['gpu']}, {row['nic_Gbit_per_s']:g} Gb/s, {row['memory_GB']:g} GB"


def report(table: pd.DataFrame) -> None:
    out = Console()
    if not out.is_terminal:
        out.width = 200
    show = Table("gpu", "NIC, Gb/s", "memory, GB", title=f"{table.model.iloc[0]} on {table.num_gpus.iloc[0]} GPUs: the best plan of each")
    for name in ("best shape", "ZeRO", "objective, s (theory)", "gap", "step, s (sim)", "MFU (sim)", "peak, GB (sim)", "exposed (sim)"):
        show.add_column(name)
    for name in ("bubble (sim)", "days (sim)", "second best", "costs (theory)", "costs (sim)"):
        show.add_column(name)
    for row in table.to_dict("records"):
        head = [row["gpu"] + "*" * (row["status"] == EARLY), f"{row['nic_Gbit_per_s']}", f"{row['memory_GB']}"]
        if row["status"] not in PLANNED:
            show.add_row(*head, f"{row['status']}: {row['says']}")
            continue
        show.add_row(
            *head,
            shape_text(row),
            f"{row['zero']:.0f} ({row['zero_share']:.0%})",
            f"{row['theory_objective_s']:.4g}",
            f"{1 - row['theory_bound_s'] / row['theory_objective_s']:.2%}",
            f"{row['sim_step_s']:.4g}",
            f"{row['sim_mfu']:.1%}",
            f"{row['sim_peak_GB']:.1f}",
            f"{row['sim_exposed_share']:.1%}",
            f"{row['sim_bubble_share']:.1%}",
            f"{row['sim_days']:.0f}",
            *_second_texts(row),
        )
    out.print(show)
    if (table.status == EARLY).any():
        out.print("* the search was ended by --seconds; call again without it for the best plan and the second best")
    out.print(_worth_table(table))


def shape_text(row: Mapping[Any, Any], prefix: str = "") -> str:
    """Stages x mesh, micro-batches, R for recomputation."""
    again = " R" if row[prefix + "recompute"] else ""
    return f"{row[prefix + 'stages']:.0f} x ({row[prefix + 'mesh']}), {row[prefix + 'micro_batches']:.0f} mb{again}"


def _second_texts(row: Mapping[Any, Any]) -> tuple[str, str, str]:
    if pd.isna(row["theory_second_s"]):
        least = row["theory_least_other_s"] / row["theory_objective_s"] - 1
        return "none worked out", f"at least {least:+.1%}", ""
    return shape_text(row, "second_"), f"{row['theory_price']:+.1%}", f"{row['sim_price']:+.1%}"


def _worth_table(table: pd.DataFrame) -> Table:
    """How many times as fast as the cheapest configuration that fits (sim)."""
    fits = table[table.status.isin(PLANNED)]
    nics = sorted(table.nic_Gbit_per_s.unique())
    show = Table("gpu", "memory, GB", *(f"{nic} Gb/s" for nic in nics))
    if fits.empty:
        return show
    cheapest = fits.iloc[0]
    show.title = f"what it buys: speed (sim) over {configuration_text(cheapest.to_dict())}"
    for (gpu, memory), rows in table.groupby(["gpu", "memory_GB"]):
        by_nic = {row["nic_Gbit_per_s"]: row for row in rows.to_dict("records")}
        cells = [_speed(by_nic.get(nic), float(cheapest["sim_step_s"])) for nic in nics]
        show.add_row(str(gpu), str(memory), *cells)
    return show


def _speed(row: Mapping[Any, Any] | None, cheapest_s: float) -> str:
    if row is None or row["status"] not in PLANNED:
        return "" if row is None else row["status"]
    return f"{cheapest_s / row['sim_step_s']:.3f}"


def draw(table: pd.DataFrame, path: Path) -> None:
    """Bars by NIC, a panel per GPU, memory by colour; a ring where the second best plan ends."""
    gpus, nics, memories = (sorted(table[key].unique()) for key in ("gpu", "nic_Gbit_per_s", "memory_GB"))
    figure = Figure(figsize=(max(4.2 * len(gpus), 6.0), 4.6), layout="constrained")
    panels = figure.subplots(1, len(gpus), sharey=True, squeeze=False)[0]
    width = 0.8 / len(memories)
    for panel, gpu in zip(panels, gpus, strict=True):
        for row in table[table.gpu == gpu].to_dict("records"):
            number = memories.index(row["memory_GB"])
            at = nics.index(row["nic_Gbit_per_s"]) + (number - (len(memories) - 1) / 2) * width
            _bar(panel, row, at, 0.92 * width, COLOURS[number])
        panel.set_xticks(range(len(nics)), [f"{nic:g}" for nic in nics])
        panel.set_xlim(-0.5, len(nics) - 0.5)
        panel.margins(y=0.12)
        panel.set(title=f"{table.num_gpus.iloc[0]} {gpu.upper()}", xlabel="NIC [Gb/s per GPU]")
    panels[0].set_ylabel("step of the best plan [s] (sim)")
    handles: list[Any] = [Patch(color=COLOURS[number], label=f"{memory:g} GB") for number, memory in enumerate(memories)]
    handles.append(Line2D([], [], linestyle="", marker="o", markerfacecolor="none", color="black", label="second best shape"))
    figure.legend(handles=handles, frameon=False, loc="outside lower center", ncols=len(handles), fontsize=8)
    figure.suptitle(
        "The best plan of each configuration\nin a bar: stages x (mesh), micro-batches, R: recomputed, *: ended early; above: days for 300e9 tokens",
        fontsize=8,
    )
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=150)


def _bar(panel: Axes, row: Mapping[Any, Any], at: float, width: float, colour: str) -> None:
    """One configuration; what does not fit is a word."""
    inside: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "rotation": 90, "fontsize": 5.5}
    if row["status"] not in PLANNED:
        panel.annotate("does not fit", (at, 0), (0, 4), **inside)
        return
    panel.bar(at, row["sim_step_s"], width, color=colour)
    panel.annotate(shape_text(row) + " *" * (row["status"] == EARLY), (at, 0), (0, 4), color="white", **inside)
    top = max(row["sim_step_s"], 0.0 if pd.isna(row["sim_second_step_s"]) else row["sim_second_step_s"])
    panel.annotate(f"{row['sim_days']:.0f} d", (at, top), (0, 6), textcoords="offset points", ha="center", fontsize=7)
    if not pd.isna(row["sim_second_step_s"]):
        panel.plot(at, row["sim_second_step_s"], marker="o", markerfacecolor="none", color="black", markersize=5)
