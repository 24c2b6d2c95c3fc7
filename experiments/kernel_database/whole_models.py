"""NeuSight's measured float32 models against sums of kernels, with every kind of GPU left out once.

kernels known    the device's float32 products are in the tables; its models are seen by no fit
left out         nothing of the device is seen: its share of the peak comes from its watts per flop/s, by a law fitted to the other kinds

share = min(most, c (watt / peak TFLOP/s)^a)         small boards, and float32 on AMD's matrix units, run out of power before arithmetic
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from experiments.common.robust_fit import fitted
from experiments.kernel_database.models import MODELS, launches
from planner.cost.kernels import KernelModel, Precision
from planner.cost.kernels.devices import DeviceSheet, device_sheet
from planner.cost.kernels.model import Basis
from planner.cost.kernels.surface import product_s
from planner.cost.kernels.tables import GENERIC, constants, surface_of

__all__ = ["PAPER", "law_of_all", "share_law", "shares", "whole_models"]

PAPER = Path(__file__).parent.parent / "paper_numbers/neusight_model_latencies.csv"
START, LOW, HIGH = (0.2, 0.5, 0.85), (0.02, 0.05, 0.5), (2.0, 2.0, 1.0)
"""c, a, most."""
SCATTER = 0.1
"""Kinds of devices lie so far from the law; what is further off counts linearly."""

Law = tuple[float, float, float]


def _measured() -> pd.DataFrame:
    """Rows on one device of models whose sizes are known."""
    rows = pd.read_csv(PAPER).fillna({"option": ""})
    rows = rows[rows["model"].isin(MODELS) & rows["option"].isin(["", "fusion"])].reset_index(drop=True)
    return rows.assign(device=[device_sheet(name.replace("_", " ")).name for name in rows["device"]])


def _work(row: pd.Series[object]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], list[tuple[int, float]]]:
    """(products: batch, m, n, k in rows; how often each; (times, bytes) of the passes over memory)."""
    model = MODELS[str(row["model"])]
    every = list(launches(model, int(row["batch"]), int(row["seq"]), train=row["mode"] == "train", fused=row["option"] == "fusion"))  # type: ignore[call-overload]
    products = [(launch.product, launch.times) for launch in every if launch.product is not None]
    shapes = np.array([shape for shape, _ in products], dtype=np.float64)
    return (
        shapes,
        np.array([times for _, times in products], dtype=np.float64),
        [(x.times, 4 * x.swept) for x in every if x.product is None],
    )


def whole_models() -> pd.DataFrame:
    """A row per measured model: its shape, paper_s, kernels_known_s (nan where the device's kernels were not measured), left_out_s."""
    rows = _measured()
    works = [_work(row) for _, row in rows.iterrows()]
    whole_share_s, sweep_s = _at_whole_share(rows["device"], works)
    implied = shares(rows, whole_share_s, sweep_s)
    out = []
    for (_, row), (shapes, times, _), whole_s, rest_s in zip(rows.iterrows(), works, whole_share_s, sweep_s, strict=True):
        name = str(row["device"])
        model = KernelModel.for_device(name)
        known_s = float("nan")
        if model.gemm_basis(Precision.FLOAT32) is Basis.MEASURED:
            known = (model.gemm_s(*map(int, shape[1:]), Precision.FLOAT32, batch=int(shape[0])) for shape in shapes)
            known_s = float(sum(t * s for t, s in zip(times, known, strict=True))) + rest_s
        share = share_law({device: value for device, value in implied.items() if device != name}, device_sheet(name))
        out.append({"paper_s": float(row["e2e_ms"]) * 1e-3, "kernels_known_s": known_s, "left_out_s": whole_s / share + rest_s})
    return pd.concat([rows[["device", "model", "mode", "seq", "batch", "option"]], pd.DataFrame(out)], axis=1)


def _at_whole_share(devices: Sequence[str], works: Sequence[object]) -> tuple[list[float], list[float]]:
    """Seconds of the products at the whole peak, with the other devices' median constants of tiles, and of everything else."""
    whole, rest = [], []
    for name, (shapes, times, swept) in zip(devices, works, strict=True):  # type: ignore[misc]
        sheet = device_sheet(name)
        surface = surface_of(sheet, _of_others(name) | {"share": 1.0}, Precision.FLOAT32)
        whole.append(float(product_s(surface, list(shapes.T), 4) @ times))
        rest.append(sum(count * KernelModel.for_device(name).stream_s(size) for count, size in swept))
    return whole, rest


def _of_others(name: str) -> dict[str, float]:
    others = [entry["float32"] for device, entry in constants().items() if device not in (GENERIC, name) and "float32" in entry]
    return {key: float(np.median([entry[key] for entry in others])) for key in others[0]}


def law_of_all() -> Law:
    """c, a and most of all devices whose models were measured."""
    rows = _measured()
    whole_share_s, sweep_s = _at_whole_share(rows["device"], [_work(row) for _, row in rows.iterrows()])
    return fitted_law(shares(rows, whole_share_s, sweep_s))


def shares(rows: pd.DataFrame, whole_share_s: Sequence[float], sweep_s: Sequence[float]) -> dict[str, float]:
    """Device -> the median share of the peak that its models' times imply."""
    implied = np.array(whole_share_s) / np.maximum(rows["e2e_ms"].to_numpy() * 1e-3 - np.array(sweep_s), 1e-9)
    return pd.Series(implied).groupby(rows["device"]).median().to_dict()


def fitted_law(implied: dict[str, float]) -> Law:
    """c, a and most, from the shares of some devices."""
    watts = np.array([_watts(device_sheet(name)) for name in implied])
    goal = np.log(list(implied.values()))

    def errors(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.asarray(np.minimum(x[2], x[0] + np.exp(x[1]) * np.log(watts)) - goal)

    c, a, most = np.exp(fitted(errors, np.log(START), np.log(LOW), np.log(HIGH), scale=SCATTER).x).tolist()
    return c, a, most


def share_law(implied: dict[str, float], sheet: DeviceSheet) -> float:
    """The share of a device by the law of others."""
    c, a, most = fitted_law(implied)
    return float(min(most, c * _watts(sheet) ** a))


def _watts(sheet: DeviceSheet) -> float:
    return sheet.watt / (sheet.peak_flop_per_s(Precision.FLOAT32) / 1e12)
