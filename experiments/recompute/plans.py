"""What a Plan computes again, and what that costs and keeps: a layer of the 22B GPT of Korthikanti et al. on 8 A100 (kind ``sim``, beside ``paper``).

    python -m experiments.recompute.plans               plan and simulate (15 s), write results/recompute_plans.csv, draw figures/recompute_plans.png
    python -m experiments.recompute.plans --redraw      draw from the CSV

A layer is an eighth of a model of 8 layers, with dropout, SGD, and Megatron's split of parameters over 8 devices; the layouts of activations are
searched, for each part that is computed again anew, and are split along the sequence between the products.  Memory does not bind, so layouts that
are quicker may hold more: a share is one of whole tensors, before layouts.

    sim_layer_ms     of a step, with the update                  sim_again      over that of ``none``
    sim_peak_MB      live on the fullest device                  sim_kept_MB    without the layer's parameters and gradients
    paper_layer_ms   Table 4, forward and backward: sequence parallel; with selective; full without sequence parallel
    paper_again      over the same without recomputation (19.0 ms; 19.6 ms without sequence parallel)
    theory_MB        Table 2, tensor and sequence parallel: s b h (34 + 5 a s / h) / t; 34 s b h / t; with full recomputation 2 s b h

Blocks cost less than the paper's full recomputation, which performs the whole forward pass of a layer once more: ours leaves out what nobody reads
again, as the second product of the MLP.  Ours keeps no mask of dropout, which is drawn again (SEMANTICS 7.2), so fewer bytes than the table.

Source: Korthikanti et al. 2022, arXiv:2205.05198.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

import regista.api as regista
from experiments.common.small_size import small_or_redrawn
from planner.ir.actors.peak import live_bytes
from zoo import ZOO

__all__ = ["draw", "main", "rows_of"]

HERE = Path(__file__).parents[1]
CSV, PICTURE = HERE / "results/recompute_plans.csv", HERE / "figures/recompute_plans.png"
ASKED = ("none", "80%", "60%", "40%", "20%", "attention", "blocks")
LAYERS = 8
SIZES = {"width": 6144, "heads": 64, "batch": 4, "seq": 2048}
_SMALL = {"width": 128, "heads": 8, "batch": 2, "seq": 64}
_SPLIT = ("attn.q.weight=S(0)", "attn.k.weight=S(0)", "attn.v.weight=S(0)", "attn.c_proj.weight=S(1)", "mlp.c_fc.weight=S(0)")
PINS = (*(f"h.*.{pin}" for pin in _SPLIT), "h.*.mlp.c_proj.weight=S(1)", "input.*=B")
_PAPER_MS = {"none": (19.0, 19.0), "attention": (20.3, 19.0), "blocks": (27.2, 19.6)}
"""[paper: Table 4] ms of a layer, and of what it is compared with."""
_DEVICES = 8
_LABEL_AT = {"attention": (-58, -2), "none": (-8, -16), "40%": (6, -8)}
"""Points from its mark."""


def rows_of(sizes: dict[str, int], asked: tuple[str, ...] = ASKED, layers: int = LAYERS) -> list[dict[str, object]]:
    """A row per part that is computed again."""
    rows: list[dict[str, object]] = []
    first_s = 0.0
    for what in asked:
        layer_s, peak_bytes = (whole / layers for whole in _measured(layers, sizes, what))
        first_s = first_s or layer_s
        paper_ms, base_ms = _PAPER_MS.get(what, (None, None)) if sizes == SIZES else (None, None)
        row: dict[str, object] = {
            "kind": "sim",
            "recompute": what,
            "sim_layer_ms": round(layer_s * 1e3, 3),
            "sim_again": round(layer_s / first_s - 1, 4),
            "sim_peak_MB": round(peak_bytes / 1e6, 1),
            "sim_kept_MB": round((peak_bytes - 2 * 2 * 12 * sizes["width"] ** 2 / _DEVICES) / 1e6, 1),
            "paper_layer_ms": paper_ms,
            "paper_again": round(paper_ms / base_ms - 1, 4) if paper_ms and base_ms else None,
            "theory_MB": _theory_mb(what, sizes),
        }
        print(row, flush=True)
        rows.append(row)
    return rows


def _measured(layers: int, sizes: dict[str, int], what: str) -> tuple[float, float]:
    """Seconds of a step, bytes of the fullest device."""
    source = ZOO["gpt"](layers=layers, vocab=1024, dtype="bf16", optimizer="sgd", dropout=0.1, **sizes)
    plan = regista.plan(source, "a100-80gb-sxm:1", mesh=(_DEVICES,), pins=PINS, recompute=what)
    return regista.simulate(plan).settled_step_s(plan), max(live_bytes(plan).values())


def _theory_mb(what: str, sizes: dict[str, int]) -> float | None:
    sbh = sizes["seq"] * sizes["batch"] * sizes["width"]
    match what:
        case "none":
            kept = sbh * (34 + 5 * sizes["heads"] * sizes["seq"] / sizes["width"]) / _DEVICES
        case "attention":
            kept = 34 * sbh / _DEVICES
        case "blocks":
            kept = 2 * sbh
        case _:
            return None
    return round(kept / 1e6, 1)


def draw(table: pd.DataFrame) -> Figure:
    """Seconds of a layer over its share of the peak, with the paper's overheads as levels."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axis = figure.subplots()
    for row in table.itertuples():
        named = row.recompute in _PAPER_MS
        axis.plot(row.sim_peak_MB, 100 * row.sim_again, marker="o" if named else ".", color="C0" if named else "C1")
        axis.annotate(
            row.recompute,
            (row.sim_peak_MB, 100 * row.sim_again),
            xytext=_LABEL_AT.get(row.recompute, (6, 4)),
            textcoords="offset points",
            fontsize="small",
        )
        if row.paper_again == row.paper_again and row.recompute != "none":  # not NaN
            axis.axhline(100 * row.paper_again, color="grey", linestyle=":", linewidth=1)
            axis.annotate(
                f"paper, {row.recompute}: {row.paper_again:.1%}",
                (1, 100 * row.paper_again),
                xycoords=("axes fraction", "data"),
                xytext=(-4, 3),
                textcoords="offset points",
                ha="right",
                fontsize="small",
                color="grey",
            )
    axis.set(xlabel="MB per layer, live on a device (sim)", ylabel="longer than without, % of a layer (sim)", ylim=(-4, 45), xlim=(0, 1300))
    axis.set_title("a layer of a 22B GPT on 8 A100, what is computed again", fontsize="small")
    return figure


def main() -> int:
    asked = small_or_redrawn(__doc__, "a small model", CSV)
    if not asked.redraw:
        rows = rows_of(_SMALL, ("none", "attention"), layers=1) if asked.smoke else rows_of(SIZES)
        pd.DataFrame(rows).to_csv(CSV, index=False, lineterminator="\n")
    draw(pd.read_csv(CSV)).savefig(PICTURE, dpi=120)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
