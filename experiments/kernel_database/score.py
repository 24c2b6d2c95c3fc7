"""Errors of products and attention on points that were left out: surfaces are fitted and tables filled without them.

a fifth     of all points of a device, at random: what the tables were measured on, with holes
a slice     one m, n or k of the grid (one number of tokens or heads) with all its points: shapes between the measured ones
a device    all points of it: another device's table with this one's data sheet
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pandas as pd

from experiments.kernel_database.surfaces import SEED, Stored, fit_attention, fit_products, seconds
from planner.cost.kernels.devices import Precision, device_sheet
from planner.cost.kernels.surface import attention_s, product_s
from planner.cost.kernels.tables import ATTENTION_SCALE, Grid, Scattered, constants, surface_of, without_holes

__all__ = ["left_out_attention", "left_out_products", "summary"]

Floats = npt.NDArray[np.float64]
Marks = npt.NDArray[np.bool_]

SHARE = 0.2
LIKE = {"h200-sxm": "h100-sxm", "gb200": "b200-sxm", "gb300": "b200-sxm", "h100-sxm": "a100-80gb-sxm", "b200-sxm": "h100-sxm"}
"""Device -> the one whose table stands for it where it is left out."""


def left_out_products(stored: Stored) -> Iterator[pd.DataFrame]:
    """Per device and way of leaving out: rows of device, left_out, m, n, k, measured_s, predicted_s."""
    axes = tuple(stored[f"products/{axis}"].astype(np.float64) for axis in "mnk")
    logs = np.log2(axes[0]), np.log2(axes[1]), np.log2(axes[2])
    shapes = np.meshgrid(*axes, indexing="ij")
    rng = np.random.default_rng(SEED)
    grids = {
        name.partition("/")[2]: seconds(ticks) for name, ticks in stored.items() if name.startswith("products/") and name[9:] not in "mnk"
    }
    for device, measured_s in grids.items():
        for what, out in _left_out(measured_s, rng):
            known = ~out & ~np.isnan(measured_s)
            rows = np.stack([np.ones(known.sum()), *(shape[known] for shape in shapes)], axis=-1)
            surface = surface_of(
                device_sheet(device), fit_products(device, rows, measured_s[known], Precision.BFLOAT16), Precision.BFLOAT16
            )
            on_surface = product_s(surface, (np.ones(1), *shapes), 2)
            log_ratio = np.where(known, np.log(measured_s / on_surface), np.nan)
            if what == "a fifth":
                predicted = (on_surface * np.exp(without_holes(logs, log_ratio)))[out]
            else:
                predicted = _between(what, axes, log_ratio, shapes, out) * on_surface[out]
            yield _rows(device, what, {axis: shape[out] for axis, shape in zip("mnk", shapes, strict=True)}, measured_s[out], predicted)
        if device in LIKE:
            like, known = LIKE[device], ~np.isnan(measured_s)
            fitted = constants()[like]["bfloat16"]
            ours, theirs = (
                product_s(surface_of(device_sheet(name), fitted, Precision.BFLOAT16), (np.ones(1), *shapes), 2) for name in (device, like)
            )
            predicted = (ours * grids[like] / theirs)[known]
            yield _rows(device, "a device", {a: s[known] for a, s in zip("mnk", shapes, strict=True)}, measured_s[known], predicted)


def _left_out(measured_s: Floats, rng: np.random.Generator) -> Iterator[tuple[str, Marks]]:
    measured = ~np.isnan(measured_s)
    yield "a fifth", (rng.random(measured_s.shape) < SHARE) & measured
    for number, axis in enumerate("mnk"):
        out = np.zeros(measured_s.shape, dtype=bool)
        for place in range(2, measured_s.shape[number] - 2, 6):
            np.moveaxis(out, number, 0)[place] = True
        yield f"slices of {axis}", out & measured


def _between(what: str, axes: tuple[Floats, Floats, Floats], log_ratio: Floats, shapes: list[Floats], out: Marks) -> Floats:
    """Ratios on a grid without the slices, as Grid interpolates them."""
    number = "mnk".index(what[-1])
    kept = ~np.isnan(np.moveaxis(log_ratio, number, 0)).all(axis=(1, 2))
    fewer = [axis[kept] if i == number else axis for i, axis in enumerate(axes)]
    logs = np.log2(fewer[0]), np.log2(fewer[1]), np.log2(fewer[2])
    grid = Grid(logs, without_holes(logs, np.compress(kept, log_ratio, axis=number)))
    return np.array([np.exp(grid.at(m, n, k)) for m, n, k in zip(*(shape[out] for shape in shapes), strict=True)])


def left_out_attention(stored: Stored) -> Iterator[pd.DataFrame]:
    """Per device, head and way of leaving out: rows of device, left_out, seq, batch, heads, kv_heads, dim, measured_s, predicted_s."""
    rng = np.random.default_rng(SEED)
    for name in sorted(name for name in stored if name.startswith("attention/")):
        _, device, dim = name.split("/")
        rows, measured_s = stored[name].astype(np.float64), seconds(stored[f"attention_ticks/{device}/{dim}"])
        for what in ("a fifth", "slices of seq", "slices of heads"):
            column = rows[:, 0 if what.endswith("seq") else 2]
            sizes = np.unique(column)
            out = rng.random(len(rows)) < SHARE if what == "a fifth" else np.isin(column, sizes[2:-1:4])
            if not out.any() or out.all():
                continue
            fitted = fit_attention(device, int(dim), rows[~out], measured_s[~out])
            surface = surface_of(device_sheet(device), fitted, Precision.BFLOAT16)
            seq, batch, heads, kv_heads = rows.T
            on_surface = attention_s(surface, (batch, heads, kv_heads, seq, seq, np.full(len(seq), float(dim))), True, 2)
            features = np.log2(rows) * ATTENTION_SCALE
            points = Scattered(features[~out], np.log(measured_s / on_surface)[~out])
            predicted = on_surface[out] * np.exp([points.at(query) for query in features[out]])
            shape = {
                "seq": seq[out],
                "batch": batch[out],
                "heads": heads[out],
                "kv_heads": kv_heads[out],
                "dim": np.full(out.sum(), int(dim)),
            }
            yield _rows(device, what, shape, measured_s[out], predicted)


def _rows(device: str, what: str, shape: dict[str, Floats], measured_s: Floats, predicted_s: Floats) -> pd.DataFrame:
    whole = {name: sizes.astype(np.int64) for name, sizes in shape.items()}
    return pd.DataFrame({"device": device, "left_out": what, **whole, "measured_s": measured_s, "predicted_s": predicted_s})


def summary(rows: pd.DataFrame, kernel: str) -> pd.DataFrame:
    """Absolute relative errors per way of leaving out, of all devices and of each.  Small kernels, below 10 us, are counted too."""
    rows = rows.assign(error=(rows["predicted_s"] / rows["measured_s"] - 1).abs(), bias=np.log(rows["predicted_s"] / rows["measured_s"]))
    parts = [(what, "all", part) for what, part in rows.groupby("left_out", sort=False)]
    parts += [(what, device, part) for (what, device), part in rows.groupby(["left_out", "device"], sort=False)]
    return pd.DataFrame(
        [
            {
                "label": f"{kernel}, {what}, {device}",
                "kernel": kernel,
                "left_out": what,
                "device": device,
                "points": len(part),
                "median_error": part["error"].median(),
                "mean_error": part["error"].mean(),
                "p90_error": part["error"].quantile(0.9),
                "bias": part["bias"].median(),
            }
            for what, device, part in parts
        ]
    )
