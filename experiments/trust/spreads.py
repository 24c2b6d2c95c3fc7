"""How far single constants may be off: the 90th percentile of the errors of left-out points, per device and interconnect."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from experiments.trust.sets import RESULTS
from planner.ir.text import save_text
from regista.trust.constants import FILE

__all__ = ["save_spreads"]

COLUMNS = ("key", "name", "spread", "origin")
NEVER_MEASURED = ""
"""The name of a device or interconnect that no table has: what a whole device that was left out shows."""


def save_spreads(path: Path = FILE) -> None:
    """Write regista/trust/spreads.csv from the committed errors."""
    rows = []
    kernels = pd.read_csv(RESULTS / "kernel_summary.csv")
    for kernel, key in (("product", "device.product_times"), ("attention", "device.attention_times")):
        for _, row in kernels[(kernels["kernel"] == kernel) & (kernels["left_out"] == "a fifth") & (kernels["device"] != "all")].iterrows():
            rows.append((key, row["device"], row["p90_error"], "90 % of left-out points"))
        whole = kernels[(kernels["kernel"] == kernel) & (kernels["left_out"] == "a device") & (kernels["device"] == "all")]
        for _, row in whole.iterrows():
            rows.append((key, NEVER_MEASURED, row["p90_error"], "90 % of a device left out"))
    nccl = pd.read_csv(RESULTS / "nccl_score.csv")
    own = nccl[nccl["interconnect"].notna()]
    for name, part in own[own["left_out"] == "20 % of the points"].groupby("interconnect", sort=True):
        rows.append(("links.collective_times", name, part.sort_values("rows")["p90_error"].iloc[-1], "90 % of left-out points"))
    save_text(path, pd.DataFrame(rows, columns=list(COLUMNS)).to_csv(index=False, float_format="%.4g"))
