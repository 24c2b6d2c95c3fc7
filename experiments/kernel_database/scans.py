"""rates.csv of planner.cost.scans, from measured kernels of state-space layers (paper_numbers/aic_chunked_scans.csv.gz).

scan          mamba_chunk_scan_combined was measured on one device, chunk_gated_delta_rule on all, both Triton kernels that scan by pieces of a
              sequence: other devices take the median ratio of the second, over shapes of MANY_HEADS and more
convolution   causal_conv1d_fn, measured on each: the median of bytes read and written per second
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from planner.ir.text import save_text

__all__ = ["fitted_rates", "left_out", "scan_rows", "write_rates"]

TABLE = Path(__file__).parent.parent / "paper_numbers/aic_chunked_scans.csv.gz"
TARGET = Path(__file__).parents[2] / "planner/cost/scans/rates.csv"
MEASURED, MANY_HEADS, STATE = "gb200", 32, 128
SHAPE = ["tokens", "seq", "heads", "groups"]
Floats = NDArray[np.float64]


def scan_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Measured scans of Mamba-2 with the state that today's models have."""
    return table[(table.kernel == "mamba_chunk_scan_combined") & (table.state == STATE)]


def _law(rows: pd.DataFrame) -> Floats:
    """(launch, per token and head) in milliseconds: least squares of relative errors."""
    paper_ms = rows.latency_ms.to_numpy()
    columns = np.stack([np.ones(len(rows)), rows.tokens * rows.heads * rows.head_dim / 64], axis=1) / paper_ms[:, None]
    return np.asarray(np.linalg.lstsq(columns, np.ones(len(rows)), rcond=None)[0])


def left_out(table: pd.DataFrame) -> Floats:
    """Relative errors of the scan's law on each number of heads and groups, fitted to the others."""
    rows = scan_rows(table)
    errors = []
    for shape, part in rows.groupby(["heads", "groups"]):
        launch_ms, token_ms = _law(rows[(rows.heads != shape[0]) | (rows.groups != shape[1])])
        errors.append((launch_ms + part.tokens * part.heads * part.head_dim / 64 * token_ms) / part.latency_ms - 1)
    return np.concatenate(errors)


def fitted_rates(table: pd.DataFrame) -> pd.DataFrame:
    """One row per device."""
    launch_ms, token_ms = _law(scan_rows(table))
    other = table[(table.kernel == "chunk_gated_delta_rule") & (table.heads >= MANY_HEADS)]
    times = other.pivot_table(index=SHAPE, columns="device", values="latency_ms").dropna()
    ratio = times.div(times[MEASURED], axis=0).median()
    conv = table[(table.kernel == "causal_conv1d_fn") & (table.state == STATE) & (table.tokens >= 8192)]
    moved = 4.0 * conv.tokens * (conv.heads * conv.head_dim + 2 * conv.groups * conv.state)
    speed = (moved / (conv.latency_ms * 1e-3) / 1e9).groupby(conv.device).median()
    return pd.DataFrame(
        {
            "device": speed.index,
            "launch_us": 1e3 * launch_ms,
            "scan_ns": 1e6 * token_ms * ratio.reindex(speed.index).to_numpy(),
            "conv_GBps": speed.to_numpy(),
            "scan": ["measured" if device == MEASURED else "scaled" for device in speed.index],
            "points": other.groupby("device").size().reindex(speed.index).to_numpy() + conv.groupby("device").size().to_numpy(),
        }
    )


def write_rates() -> None:
    """Fit and write; prints the rates and the error of the scan's law."""
    table = pd.read_csv(TABLE)
    rates = fitted_rates(table)
    save_text(TARGET, rates.to_csv(index=False, float_format="%.4g"))
    errors = np.abs(left_out(table))
    print(rates.to_string(index=False, float_format=lambda value: f"{value:.3f}"))
    print(
        f"scan, heads and groups left out one after the other: {np.median(errors):.1%} median, {errors.mean():.1%} mean, {len(errors)} points"
    )
