"""Measured seconds of kernels, as the package ships them (tables.npz), and interpolation between them.

A table holds log(measured / surface); between its points that ratio is interpolated, so that a surface gives the steps of tiles and waves
and the table what the surface does not know.

    products    a grid over log m, log n, log k: linear along each                                                    -> Grid
    others      scattered points: a linear fit to the nearest NEIGHBOURS, weighted by distance; far away, 0           -> Scattered

Stored are int16 of TICKS log(microseconds), half a thousandth each.  Built by ``python -m experiments.kernel_database``, which fits the
surfaces (constants.toml) and says how large the errors are on points that were left out.  Float32 was timed one kernel at a time by events
that the host records; ``event_us`` is what that adds, and no prediction has it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

import numpy as np
import numpy.typing as npt

from planner.cost.kernels.devices import DeviceSheet, Precision, device_sheet
from planner.cost.kernels.surface import Floats, Surface, attention_s, product_s

__all__ = [
    "Grid",
    "Scattered",
    "attention_features",
    "attention_ratios",
    "constants",
    "product_ratios",
    "scattered_products",
    "surface_of",
    "without_holes",
]

TICKS = 2000.0
NEIGHBOURS = 12
RIDGE = 0.05
ATTENTION_SCALE = np.array([1.0, 0.7, 0.7, 0.35])
PRODUCT_SCALE = np.array([0.5, 1.0, 1.0, 1.0])
REACH = 2.0
"""Distance of a query from the nearest point, in doublings, from which on the surface alone counts."""

EQUALLY_FAR = 1e-9
"""Two squared distances count as equal if they differ by less than this, since the last bit of a logarithm depends on the processor."""

HOLE_ROUNDS = 60
HOLE_WEIGHTS = (0.5, 1.0, 1.0)
"""Along m, n and k: the m of the tables lie close together and share their noise with nothing."""

GENERIC = "generic"


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """log(measured / surface) on a grid of products.  axes: log2 of m, n and k, rising.   log_ratio: shape [m, n, k]."""

    axes: tuple[Floats, Floats, Floats]
    log_ratio: Floats

    def at(self, m: float, n: float, k: float) -> float:
        """log(measured / surface) of a product, interpolated linearly along each axis; outside of the grid, that of the grid's edge.

        A product with fewer rows than the grid has is looked up as its transpose, if that lies inside.  Measured products differ from their
        transposes by 2 to 6 % (median by device).
        """
        if np.log2(m) < self.axes[0][0] <= np.log2(n):
            m, n = n, m
        value = self.log_ratio
        for axis, size in zip(self.axes, (m, n, k), strict=True):
            here = float(np.clip(np.log2(size), axis[0], axis[-1]))
            high = int(np.clip(np.searchsorted(axis, here), 1, len(axis) - 1))
            part = (here - axis[high - 1]) / (axis[high] - axis[high - 1])
            value = (1 - part) * value[high - 1] + part * value[high]
        return float(value)


@dataclass(frozen=True, slots=True, eq=False)
class Scattered:
    """log(measured / surface) at points.  features: shape [points, features], in doublings.   log_ratio: shape [points]."""

    features: Floats
    log_ratio: Floats

    def at(self, query: Floats) -> float:
        """log(measured / surface) at a query of shape [features], from a weighted linear fit to the NEIGHBOURS nearest points; 0 beyond REACH.

        Of points that are equally far, those that stand first in the table count.
        """
        away = ((self.features - query) ** 2).sum(axis=1)
        count = min(NEIGHBOURS, len(away))
        near = np.flatnonzero(away <= np.partition(away, count - 1)[count - 1] + EQUALLY_FAR)
        near = near[np.argsort(np.round(away[near] / EQUALLY_FAR), kind="stable")][:count]
        weight = np.exp(-0.5 * away[near] / (np.median(away[near]) + 1e-9))
        line = np.concatenate([np.ones((count, 1)), self.features[near] - query], axis=1)
        normal = line.T @ (weight[:, None] * line) + np.diag([1e-9] + [RIDGE] * self.features.shape[1])
        value = float(np.linalg.solve(normal, line.T @ (weight * self.log_ratio[near]))[0])
        low, high = float(self.log_ratio[near].min()), float(self.log_ratio[near].max())
        closeness = max(0.0, 1.0 - max(0.0, float(np.sqrt(away[near].min())) - 1.0) / (REACH - 1.0))
        return closeness * min(max(value, low), high)


@lru_cache(maxsize=1)
def constants() -> Mapping[str, Mapping[str, Mapping[str, float]]]:
    """constants.toml: device -> what (a precision, ``attention-DIM``) -> constant -> value."""
    text = resources.files(__package__).joinpath("constants.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@lru_cache(maxsize=1)
def _stored() -> Mapping[str, npt.NDArray[np.generic]]:
    with resources.as_file(resources.files(__package__).joinpath("tables.npz")) as path, np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def surface_of(sheet: DeviceSheet, fitted: Mapping[str, float], precision: Precision) -> Surface:
    """The surface of a device under constants that were fitted to it, or to another device."""
    return Surface(
        units=sheet.units,
        peak_flop_per_s=sheet.peak_flop_per_s(precision),
        bandwidth_bytes_per_s=sheet.bandwidth_bytes_per_s,
        launch_s=fitted["launch_us"] * 1e-6,
        share=fitted.get("share", 1.0),
        tile0=fitted.get("tile0", 0.0),
        k0=fitted.get("k0", 0.0),
        stream_share=fitted["stream_share"],
        attention_share=fitted.get("attention_share", 1.0),
        seq0=fitted.get("seq0", 0.0),
    )


def _seconds(ticks: npt.NDArray[np.generic]) -> Floats:
    """Not a number where nothing was measured."""
    return np.asarray(np.where(ticks == np.iinfo(np.int16).min, np.nan, np.exp(ticks.astype(np.float64) / TICKS) * 1e-6))


@lru_cache(maxsize=16)
def product_ratios(device: str) -> Grid:
    """The grid of a device with measured products in bfloat16, by its name."""
    stored, sheet = _stored(), device_sheet(device)
    m, n, k = (stored[f"products/{axis}"].astype(np.float64) for axis in "mnk")
    surface = surface_of(sheet, constants()[sheet.name]["bfloat16"], Precision.BFLOAT16)
    at_points = product_s(surface, (np.ones(1), m[:, None, None], n[None, :, None], k[None, None, :]), 2)
    axes = np.log2(m), np.log2(n), np.log2(k)
    return Grid(axes, without_holes(axes, np.log(_seconds(stored[f"products/{sheet.name}"]) / at_points)))


def without_holes(axes: tuple[Floats, Floats, Floats], log_ratio: Floats) -> Floats:
    """The grid with what was not measured (nan) filled in: each hole is the mean of its neighbours along the axes, near ones counting more."""
    holes = np.isnan(log_ratio)
    filled = np.where(holes, np.nanmean(log_ratio), log_ratio)
    for _ in range(HOLE_ROUNDS if holes.any() else 0):
        total, weights = np.zeros_like(filled), np.zeros_like(filled)
        for number, (axis, weight) in enumerate(zip(axes, HOLE_WEIGHTS, strict=True)):
            near = (weight / np.maximum(np.diff(axis), 0.15)).reshape(-1, 1, 1)
            here, sums, counts = (np.moveaxis(array, number, 0) for array in (filled, total, weights))
            sums[:-1] += near * here[1:]
            sums[1:] += near * here[:-1]
            counts[:-1] += near
            counts[1:] += near
        filled = np.where(holes, total / weights, filled)
    return filled


@lru_cache(maxsize=16)
def scattered_products(device: str) -> Scattered | None:
    """The scattered float32 products of a device, by (batch, m, n, k); None if there are none."""
    stored, sheet = _stored(), device_sheet(device)
    if f"float32/{sheet.name}" not in stored:
        return None
    rows = stored[f"float32/{sheet.name}"].astype(np.float64)
    fitted = constants()[sheet.name]["float32"]
    on_surface = product_s(surface_of(sheet, fitted, Precision.FLOAT32), list(rows.T), 4) + fitted["event_us"] * 1e-6
    return Scattered(np.log2(rows) * PRODUCT_SCALE, np.log(_seconds(stored[f"float32_ticks/{sheet.name}"]) / on_surface))


def attention_features(seq: float, batch: float, heads: float, kv_heads: float) -> Floats:
    """Where an attention lies among the measured ones, in doublings; keys and values matter less than the rest."""
    return np.asarray(np.log2(np.array([seq, batch, heads, kv_heads])) * ATTENTION_SCALE)


@lru_cache(maxsize=32)
def attention_ratios(device: str, dim: int) -> Scattered:
    """The measured forward attentions of a device with heads of ``dim`` elements."""
    stored, sheet = _stored(), device_sheet(device)
    rows = stored[f"attention/{sheet.name}/{dim}"].astype(np.float64)
    seconds = _seconds(stored[f"attention_ticks/{sheet.name}/{dim}"])
    seq, batch, heads, kv_heads = rows.T
    surface = surface_of(sheet, constants()[sheet.name][f"attention-{dim}"], Precision.BFLOAT16)
    on_surface = attention_s(surface, (batch, heads, kv_heads, seq, seq, np.full(len(seq), float(dim))), True, 2)
    return Scattered(np.log2(rows) * ATTENTION_SCALE, np.log(seconds / on_surface))
