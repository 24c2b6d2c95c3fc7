"""A sequence of 131,072 tokens on 8 to 64 devices: attention by gathered keys, by heads, by a ring, and what the search finds (kind ``sim``).

    python -m experiments.context_parallel [--devices N ...]     plan, validate, simulate, write results/context_parallel.csv, print, draw
    python -m experiments.context_parallel --redraw              draw figures/context_parallel.png from the CSV

Llamas of 2 layers, of 32 heads that share 8 of keys and of 12 heads, which 8 devices do not divide; a single sample, on H100.  sent_GB: by a
device, for attention and the embedding, counted in the Plan's collectives; closed_form_GB: by theory (planner.search.context).   objective_s: of
the search.   step_s: simulated.   memory_GB: live on the fullest device.  A way that a mesh cannot go has no row.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

import regista.api as regista
from planner.frontend import Program
from planner.ir.actors.peak import live_bytes
from planner.ir.collective import sent_bytes
from planner.ir.errors import Unsupported
from planner.ir.plan import Boxing, Fragment, Plan
from planner.ir.sbp import Split
from planner.opset.layers import BLOCK
from planner.search.context import Context
from planner.validate import validate
from zoo import ZOO

__all__ = ["main", "measured"]

HERE = Path(__file__).parent
CSV, PICTURE = HERE / "results/context_parallel.csv", HERE / "figures/context_parallel.png"
DEVICES = (8, 16, 32, 64)
LAYERS, ROWS, WIDTH, BYTES = 2, 131_072, 128, 2
HEADS = ((32, 8), (12, 12))
"""(of queries, of keys)"""
COLOURS = {"gathered": "C0", "heads": "C1", "ring": "C2", "found": "black"}


def program(heads: int, key_heads: int) -> Program:
    width = heads * WIDTH
    return ZOO["llama3"](
        layers=LAYERS, width=width, heads=heads, kv_heads=key_heads, hidden=3 * width, vocab=32_000, batch=1, seq=ROWS, dtype="bf16"
    )


def measured(source: Program, heads: tuple[int, int], devices: int) -> Iterator[dict[str, object]]:
    """A row per way, and one of what the search finds."""
    for way in (None, *Context):
        try:
            plan = regista.plan(source, f"h100-sxm:{devices // 8}", mesh=(devices,), context=None if way is None else way.value)
        except Unsupported:
            continue
        validate(plan, source)
        taken = way if way is not None else _taken(plan)
        trace = regista.simulate(plan)
        yield {
            "kind": "sim",
            "heads": heads[0],
            "key_heads": heads[1],
            "devices": devices,
            "way": "found" if way is None else way.value,
            "taken": taken.value,
            "sent_GB": _sent_bytes(plan) / 1e9,
            "closed_form_GB": _closed_form_bytes(taken, heads, devices) / 1e9,
            "objective_s": plan.search.objective_s,
            "bound_s": plan.search.lower_bound_s,
            "step_s": trace.settled_step_s(plan),
            "memory_GB": max(live_bytes(plan).values()) / 1e9,
            "plan_id": plan.plan_id,
        }


def _taken(plan: Plan) -> Context:
    """The way of attention in a Plan whose mesh has one axis."""
    ops = [op for task in plan.tasks if isinstance(task.body, Fragment) for op in task.body.ops]
    if any(op.target == BLOCK for op in ops):
        return Context.RING
    by_rows = any(op.target == "regista.attention" and op.args[-1] == (2,) for op in ops)
    return Context.GATHERED if by_rows else Context.HEADS


def _sent_bytes(plan: Plan) -> float:
    """Bytes that a device sends in the forward and the backward part, beside losses and gradients of parameters."""
    (placement,) = plan.placements
    (parts,) = placement.mesh
    total = 0.0
    for task in plan.tasks:
        body = task.body
        if isinstance(body, Boxing) and (".fwd" in task.id or ".bwd" in task.id):
            held = sum(plan.regst[read.regst].tensors[read.index].local_bytes(placement) for read in task.reads)
            total += sent_bytes(body.collective, held * (parts if isinstance(body.src[0], Split) else 1), parts)
    return total


def _closed_form_bytes(way: Context, heads: tuple[int, int], devices: int) -> float:
    """Of all layers, and of the embedding, whose table is cut by features: an all-to-all each way."""
    queries, keys = (ROWS * WIDTH * number * BYTES for number in heads)
    return LAYERS * way.sent_bytes(queries, keys, devices) + 2 * queries * (devices - 1) / devices**2


def draw(table: pd.DataFrame) -> Figure:
    """Bytes sent and seconds of a step over devices, by way; what the search finds is ringed."""
    figure = Figure(figsize=(11, 6.4), layout="constrained")
    panels = figure.subplots(len(HEADS), 3)
    for (sent, step, memory), (heads, key_heads) in zip(panels, HEADS, strict=True):
        own = table[(table.heads == heads) & (table.key_heads == key_heads)]
        for way, rows in own[own.way != "found"].groupby("way", sort=False):
            colour = COLOURS[str(way)]
            sent.plot(rows.devices, rows.closed_form_GB, color=colour, label=f"{way}: closed form (theory)")
            sent.plot(rows.devices, rows.sent_GB, "o", color=colour)
            step.plot(rows.devices, rows.step_s, "-o", color=colour, label=way)
            memory.plot(rows.devices, rows.memory_GB, "-o", color=colour)
        found, devices = own[own.way == "found"], sorted(set(own.devices))
        for panel, column in ((sent, found.sent_GB), (step, found.step_s), (memory, found.memory_GB)):
            panel.plot(found.devices, column, "o", markersize=11, markerfacecolor="none", color="black", label="found by the search")
            panel.set(xscale="log", ylim=(0, None), xlabel="devices", xticks=devices, xticklabels=devices)
            panel.minorticks_off()
        sent.set_ylabel(f"{heads} heads, {key_heads} of keys\nGB sent by a device (points: the Plan's)", fontsize=8)
        step.set_ylabel("seconds of a step (sim)", fontsize=8)
        memory.set_ylabel("GB live on the fullest device", fontsize=8)
        sent.legend(fontsize=7)
    figure.suptitle(f"{ROWS:,} tokens, {LAYERS} layers, H100", fontsize=10)
    return figure


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, nargs="+", default=DEVICES, metavar="N", help="multiples of 8")
    parser.add_argument("--redraw", action="store_true")
    asked = parser.parse_args()
    if not asked.redraw:
        rows = [row for heads in HEADS for devices in asked.devices for row in measured(program(*heads), heads, devices)]
        pd.DataFrame(rows).to_csv(CSV, index=False, lineterminator="\n", float_format="%.9g")
    table = pd.read_csv(CSV)
    print(table.drop(columns=["kind", "plan_id"]).to_string(index=False, float_format="%.4g"))
    draw(table).savefig(PICTURE, dpi=120)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
