"""constants.toml of planner.cost.kernels: the surfaces of every measured device, fitted to its table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from experiments.common.robust_fit import fitted
from planner.cost.kernels.devices import Precision, device_sheet
from planner.cost.kernels.surface import attention_s, product_s
from planner.cost.kernels.tables import GENERIC, TICKS, surface_of

__all__ = ["Stored", "fit_attention", "fit_products", "fit_surfaces", "save_constants", "seconds", "without_events"]

Floats = npt.NDArray[np.float64]
Stored = Mapping[str, npt.NDArray[np.generic]]
Constants = dict[str, float]

MOST_POINTS = 3000
SEED = 20261122

PRODUCT = {
    "launch_us": (3.0, 0.5, 100.0),
    "share": (0.85, 0.1, 1.3),
    "tile0": (10.0, 0.05, 200.0),
    "k0": (40.0, 1.0, 1000.0),
    "stream_share": (0.8, 0.2, 1.0),
}
ATTENTION = {
    "launch_us": (4.0, 0.5, 30.0),
    "attention_share": (0.5, 0.05, 1.0),
    "seq0": (300.0, 1.0, 5000.0),
    "stream_share": (0.5, 0.1, 1.0),
}
"""Constant -> where the fit begins, and its bounds."""

STREAM = {"launch_us": 2.0, "stream_share": 0.85}
"""Assumed for all devices: kernels that read and write reach 0.85 of the data sheet's bandwidth; a kernel takes 2 us on the device at least, which
is what the smallest measured products take."""


def seconds(ticks: npt.NDArray[np.generic]) -> Floats:
    """The times of a table; what was not measured is not a number."""
    values = np.exp(ticks.astype(np.float64) / TICKS) * 1e-6
    return np.asarray(np.where(ticks == np.iinfo(np.int16).min, np.nan, values))


def fit_products(name: str, rows: Floats, measured_s: Floats, precision: Precision) -> Constants:
    """Constants of a device's products.   rows: batch, m, n, k; shape [points, 4]."""
    sheet = device_sheet(name)
    chosen = np.random.default_rng(SEED).permutation(len(rows))[:MOST_POINTS]
    shape, measured = rows[chosen].T, measured_s[chosen]

    def errors(x: Floats) -> Floats:
        surface = surface_of(sheet, dict(zip(PRODUCT, np.exp(x).tolist(), strict=True)), precision)
        return np.asarray(np.log(product_s(surface, list(shape), precision.size_bytes) / measured))

    return _fit(PRODUCT, errors)


def fit_attention(name: str, dim: int, rows: Floats, measured_s: Floats) -> Constants:
    """Constants of a device's attention.   rows: tokens, batch, heads, key-value heads; shape [points, 4]."""
    sheet, (seq, batch, heads, kv_heads) = device_sheet(name), rows.T

    def errors(x: Floats) -> Floats:
        surface = surface_of(sheet, dict(zip(ATTENTION, np.exp(x).tolist(), strict=True)), Precision.BFLOAT16)
        on_surface = attention_s(surface, (batch, heads, kv_heads, seq, seq, np.full(len(seq), float(dim))), True, 2)
        return np.asarray(np.log(on_surface / measured_s))

    return _fit(ATTENTION, errors)


def _fit(begin: Mapping[str, tuple[float, float, float]], errors: object) -> Constants:
    start, low, high = (np.log([values[i] for values in begin.values()]) for i in range(3))
    found = fitted(errors, start, low, high).x  # type: ignore[arg-type]
    return {key: float(f"{value:.5g}") for key, value in zip(begin, np.exp(found).tolist(), strict=True)}


def without_events(found: Constants) -> Constants:
    """The constants of products that events timed: what the smallest take beyond a kernel's own least time is the events'."""
    least_us = STREAM["launch_us"]
    return found | {"launch_us": least_us, "event_us": float(f"{max(found['launch_us'] - least_us, 0.0):.5g}")}


def fit_surfaces(stored: Stored) -> dict[str, dict[str, Constants]]:
    """device -> what -> constants, of all tables."""
    axes = [stored[f"products/{axis}"].astype(np.float64) for axis in "mnk"]
    shapes = np.stack([np.ones([len(axis) for axis in axes]), *np.meshgrid(*axes, indexing="ij")], axis=-1).reshape(-1, 4)
    out: dict[str, dict[str, Constants]] = {}
    for table, ticks in stored.items():
        kind, _, name = table.partition("/")
        if kind == "products" and len(name) > 1:
            measured_s = seconds(ticks).ravel()
            known = ~np.isnan(measured_s)
            out.setdefault(name, {})["bfloat16"] = fit_products(name, shapes[known], measured_s[known], Precision.BFLOAT16)
        elif kind == "float32":
            rows = ticks.astype(np.float64)
            measured_s = seconds(stored[f"float32_ticks/{name}"])
            out.setdefault(name, {})["float32"] = without_events(fit_products(name, rows, measured_s, Precision.FLOAT32))
        elif kind == "attention":
            device, _, dim = name.partition("/")
            found = fit_attention(device, int(dim), ticks.astype(np.float64), seconds(stored[f"attention_ticks/{name}"]))
            out.setdefault(device, {})[f"attention-{dim}"] = found
    measured = [entry["float32"] for entry in out.values() if "float32" in entry]
    out[GENERIC] = {"float32": {key: float(f"{np.median([m[key] for m in measured]):.5g}") for key in measured[0]}, "stream": STREAM}
    return out


def save_constants(constants: Mapping[str, Mapping[str, Constants]], path: Path) -> None:
    """Write the TOML that planner.cost.kernels reads."""
    lines = [
        "# Constants of planner.cost.kernels.surface, fitted to tables.npz by 'python -m experiments.kernel_database --build'.",
        "# generic.float32: medians over the measured devices.   generic.stream: assumed (experiments/kernel_database/surfaces.py).",
    ]
    for name, parts in constants.items():
        for what, values in parts.items():
            lines += ["", f"[{name}.{what}]", *(f"{key} = {value!r}" for key, value in values.items())]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
