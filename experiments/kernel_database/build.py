"""tables.npz of planner.cost.kernels from the published CSVs: every measured shape once, nothing thinned out, times as 16-bit logarithms."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from planner.cost.kernels.devices import device_sheet
from planner.cost.kernels.tables import TICKS

__all__ = ["build"]

AIC = {
    "a100_sxm": "a100-80gb-sxm",
    "h100_sxm": "h100-sxm",
    "h200_sxm": "h200-sxm",
    "b200_sxm": "b200-sxm",
    "gb200": "gb200",
    "gb300": "gb300",
    "l40s": "l40s",
}
"""aiconfigurator's names of systems -> ours."""

ABOUT = {
    "products": "aiconfigurator (github.com/ai-dynamo/aiconfigurator, commit 095f58a51, Apache-2.0), systems/data/*/gemm, bfloat16, m of 1024 and more",
    "attention": "aiconfigurator (the same commit, Apache-2.0), systems/data/*/attention, context phase (causal), bfloat16",
    "float32": "NeuSight (github.com/sitar-lab/NeuSight, MIT), scripts/asplos/data/dataset/test, linear and bmm",
    "ticks": "seconds = exp(ticks / 2000) 1e-6",
    "shapes": "attention: tokens, batch, heads, key-value heads; float32: batch, m, n, k",
}
"""Where each table comes from, under which licence, and how it is stored."""


def build(folder: Path, path: Path) -> int:
    """Write the tables; returns their size in bytes.

    Args:
        folder: where aic_gemm_bf16_m1024plus.csv.gz, aic_attention_forward_bf16.csv.gz and neusight_fp32_gemm_kernels.csv.gz lie.
    """
    arrays: dict[str, npt.NDArray[np.generic]] = {"about": np.array(json.dumps(ABOUT))}
    _add_products(arrays, pd.read_csv(folder / "aic_gemm_bf16_m1024plus.csv.gz"))
    _add_attention(arrays, pd.read_csv(folder / "aic_attention_forward_bf16.csv.gz"))
    _add_float32(arrays, pd.read_csv(folder / "neusight_fp32_gemm_kernels.csv.gz"))
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]
    return path.stat().st_size


def _ticks(latency_ms: npt.NDArray[np.float64]) -> npt.NDArray[np.int16]:
    return np.round(TICKS * np.log(latency_ms * 1e3)).astype(np.int16)


def _add_products(arrays: dict[str, npt.NDArray[np.generic]], rows: pd.DataFrame) -> None:
    """A full grid per device; points that were not measured (the largest n and k together) hold the least int16."""
    axes = {axis: np.sort(rows[axis].unique()) for axis in "mnk"}
    arrays |= {f"products/{axis}": sizes.astype(np.int32) for axis, sizes in axes.items()}
    for system, part in rows.groupby("gpu"):
        grid = np.full([len(axes[axis]) for axis in "mnk"], np.iinfo(np.int16).min, dtype=np.int16)
        grid[tuple(np.searchsorted(axes[axis], part[axis]) for axis in "mnk")] = _ticks(part["latency_ms"].to_numpy())
        arrays[f"products/{AIC[str(system)]}"] = grid


def _add_attention(arrays: dict[str, npt.NDArray[np.generic]], rows: pd.DataFrame) -> None:
    """A shape that was measured several times, or by several kernels, has the median."""
    shape = ["isl", "batch_size", "num_heads", "num_key_value_heads"]
    for (system, dim), part in rows.groupby(["gpu", "head_dim"]):
        once = part.groupby(shape, as_index=False)["latency"].median()
        arrays[f"attention/{AIC[str(system)]}/{dim}"] = once[shape].to_numpy().astype(np.uint16)
        arrays[f"attention_ticks/{AIC[str(system)]}/{dim}"] = _ticks(once["latency"].to_numpy())


def _add_float32(arrays: dict[str, npt.NDArray[np.generic]], rows: pd.DataFrame) -> None:
    for device, part in rows.groupby("device"):
        once = part.groupby(["B", "M", "N", "K"], as_index=False)["latency_ms"].median()
        name = device_sheet(str(device)).name
        arrays[f"float32/{name}"] = once[["B", "M", "N", "K"]].to_numpy().astype(np.uint32)
        arrays[f"float32_ticks/{name}"] = _ticks(once["latency_ms"].to_numpy())
