"""Residuals of simulated Plans, which intervals of ``regista simulate``, ``plan`` and ``whatif`` are made of.

roofline    DLPerf's models on dlperf-v100 without its kernel table (manifests/roofline.toml): nothing was fitted to them
kernels     DLPerf's models and ZeRO's on dlperf-v100 as it is shipped, Wide & Deep without the constant that is fitted to it; NeuSight's float32
            models: their device's products are in the tables, no model was seen
measured    own_gpt: acts measured one by one on this project's machine
"""

from __future__ import annotations

from collections.abc import Iterator
from math import log, prod
from pathlib import Path

import pandas as pd

from experiments.trust.sets import PRESETS, RESULTS
from planner.cost import parse_mesh
from planner.cost.clusters import preset
from planner.ir.text import save_text
from regista.trust.interval import COLUMNS, FILE, Prices

__all__ = ["save_residuals"]

LOW = {"float16", "bfloat16", "fp16", "bf16"}
LOW_MIXED = {"fp16-mixed", "bf16-mixed"}


def save_residuals(path: Path = FILE) -> None:
    """Write regista/trust/residuals.csv from the committed rows."""
    rows = [*_presets(), *_wide_deep(), *_kernels(), *_measured()]
    pd.DataFrame(rows, columns=list(COLUMNS)).pipe(lambda table: save_text(path, table.to_csv(index=False, float_format="%.4g")))


def _row(device: str, prices: Prices, name: str, devices: int, step_s: float, low: bool, ratio: float) -> dict[str, object]:
    return {
        "device": device,
        "prices": prices.value,
        "set": name,
        "devices": devices,
        "step_s": step_s,
        "low": int(low),
        "error": log(ratio),
    }


def _devices(row: pd.Series[object]) -> int:
    return int(str(row["stages"])) * prod(parse_mesh(str(row["mesh"])))


def _presets() -> Iterator[dict[str, object]]:
    for name in PRESETS:
        table = pd.read_csv(RESULTS / f"{name}.csv")
        for _, row in table[table["status"] == "ok"].iterrows():
            device = preset(str(row["cluster"])).device
            paper = (
                row["sim_step_s"] / row["paper_step_s"]
                if "paper_step_s" in table
                else row["paper_throughput_per_s"] / row["sim_throughput_per_s"]
            )
            if pd.isna(paper):
                continue
            low = str(row.get("dtype", "")) in LOW or str(row.get("precision", "")) in LOW_MIXED
            prices = Prices.ROOFLINE if name == "roofline" else Prices.KERNELS
            yield _row(device.kind if name == "roofline" else device.kernels, prices, name, _devices(row), row["sim_step_s"], low, paper)


def _wide_deep() -> Iterator[dict[str, object]]:
    device = preset("dlperf-v100").device.kernels
    for _, row in pd.read_csv(RESULTS / "wide_deep.csv").iterrows():
        yield _row(device, Prices.KERNELS, "wide_deep", row["gpus"], row["shipped_s"], False, row["shipped_s"] / row["paper_s"])


def _kernels() -> Iterator[dict[str, object]]:
    for _, row in pd.read_csv(RESULTS / "kernel_models.csv").iterrows():
        sim_s = row["kernels_known_s"] if pd.notna(row["kernels_known_s"]) else row["left_out_s"]
        yield _row(str(row["device"]), Prices.KERNELS, "NeuSight", 1, sim_s, False, sim_s / row["paper_s"])


def _measured() -> Iterator[dict[str, object]]:
    merged = pd.read_csv(RESULTS / "own_gpt.csv").groupby("point_id", sort=False).last()
    for _, row in merged[merged["run_step_s"].notna() & merged["sim_step_s"].notna()].iterrows():
        yield _row("cpu", Prices.MEASURED, "own_gpt", _devices(row), row["sim_step_s"], False, row["sim_step_s"] / row["run_step_s"])
