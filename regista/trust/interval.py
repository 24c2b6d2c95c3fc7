"""The interval of a Plan's predicted step, from points that were measured on the machine that the Plan is for.

points    residuals.csv (python -m experiments.trust): per device and prices, log(sim / paper or run) of points that no constant was fitted to
nearest   by devices, seconds and precision, at most NEAREST of them give a conformal half width            (regista.trust.conformal)
none      fewer than FEWEST points of this device with these prices, or a step on more than REACH times the devices of any of them
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from enum import Enum
from functools import cache
from math import exp, isfinite, log
from pathlib import Path

from planner.cost import AnalyticCost, MeasuredCost
from planner.ir.plan import Fragment, Plan
from planner.ir.protocols import CostModel
from planner.ir.units import show_s
from regista.trust.conformal import FEWEST, LEVEL, conformal_width

__all__ = [
    "COLUMNS",
    "Interval",
    "Prices",
    "device_of",
    "interval_text",
    "lead_text",
    "objective_interval",
    "plan_interval",
    "prices_of",
    "step_interval",
]

FILE = Path(__file__).parent / "residuals.csv"
COLUMNS = ("device", "prices", "set", "devices", "step_s", "low", "error")
NEAREST, REACH = 40, 4


class Prices(Enum):
    """Who prices acts: rates of a cluster's file, the device's kernels one by one, or a table that was measured act by act."""

    ROOFLINE = "roofline"
    KERNELS = "kernels"
    MEASURED = "measured"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """low_s, high_s: LEVEL of like points lay between them; None: there is no interval, and ``why_not`` says why.   points: that spoke."""

    low_s: float | None = None
    high_s: float | None = None
    points: int = 0
    why_not: str = ""

    def to_json(self) -> dict[str, object]:
        return {"level": LEVEL, "low_s": self.low_s, "high_s": self.high_s, "points": self.points, "why_not": self.why_not}


@dataclass(frozen=True, slots=True)
class _Residual:
    device: str
    prices: str
    devices: int
    at: tuple[float, float, float]
    error: float


@cache
def _residuals() -> tuple[_Residual, ...]:
    if not FILE.is_file():
        return ()
    with FILE.open(newline="", encoding="utf-8") as file:
        return tuple(
            _Residual(
                row["device"],
                row["prices"],
                int(row["devices"]),
                _place(int(row["devices"]), float(row["step_s"]), float(row["low"])),
                float(row["error"]),
            )
            for row in csv.DictReader(file)
        )


def _place(devices: int, step_s: float, low: float) -> tuple[float, float, float]:
    """Where a step lies among others."""
    return log(devices) / 4, log(max(step_s, 1e-9)) / 4, low


def prices_of(cost: CostModel) -> Prices:
    """Who made the prices."""
    if isinstance(cost, MeasuredCost):
        return Prices.MEASURED
    if isinstance(cost, AnalyticCost):
        return Prices.KERNELS if cost.cluster.device.kernels else Prices.ROOFLINE
    return Prices.OTHER


def device_of(plan: Plan, prices: Prices) -> str:
    """The device's name in residuals.csv: its kernel table's where kernels are priced, else its kind."""
    return plan.cluster.device.kernels if prices is Prices.KERNELS else plan.cluster.device.kind


def plan_interval(plan: Plan, prices: Prices, step_s: float) -> Interval:
    """The interval of a Plan whose step was predicted to take ``step_s``."""
    low_flop = flop = 0.0
    for task in plan.tasks:
        if isinstance(task.body, Fragment):
            flop += task.acts * task.body.flop
            low_flop += task.acts * sum(
                part.flop for part in task.body.flop_by_dtype if part.dtype is not None and part.dtype.size_bytes < 4
            )
    return step_interval(device_of(plan, prices), prices, plan.num_ranks, low=2 * low_flop > flop > 0, step_s=step_s)


def objective_interval(plan: Plan) -> Interval:
    """Of what the search minimised, at the prices of the Plan's cluster."""
    if "robust" in plan.options:
        return Interval(why_not="the objective is at pessimistic prices; 'regista simulate' predicts the step, with its interval")
    return plan_interval(plan, prices_of(AnalyticCost(plan.cluster)), plan.search.objective_s)


def step_interval(device: str, prices: Prices, devices: int, *, low: bool, step_s: float) -> Interval:
    """The interval of a step of so many devices.   low: most of it is computed in less than 32 bits."""
    own = [r for r in _residuals() if (r.device, r.prices) == (device, prices.value)]
    what = f"no measured points of this device ({device}, prices: {prices.value})"
    if not own:
        return Interval(why_not=f"{what}: no interval")
    if len(own) < FEWEST:
        return Interval(points=len(own), why_not=f"only {len(own)} measured points of {device}, prices: {prices.value}: no interval")
    most = max(r.devices for r in own)
    if devices > REACH * most:
        return Interval(why_not=f"no measured points of so many devices ({devices:,}; at most {most} {device}): no interval")
    here = _place(devices, step_s, float(low))
    near = sorted(own, key=lambda r: sum((a - b) ** 2 for a, b in zip(here, r.at, strict=True)))[:NEAREST]
    width = conformal_width([r.error for r in near])
    assert isfinite(width), "there are FEWEST of them"
    return Interval(low_s=step_s * exp(-width), high_s=step_s * exp(width), points=len(near))


def interval_text(interval: Interval) -> str:
    """In words."""
    if interval.low_s is None or interval.high_s is None:
        return interval.why_not
    return (
        f"{show_s(interval.low_s)} to {show_s(interval.high_s)}: {LEVEL:.0%} of the {interval.points} nearest measured points lay so close"
    )


def lead_text(better_s: float, other_s: float, interval: Interval, *, of: str) -> str:
    """Whether a lead over another prediction can be told from the errors of predictions.   of: whose lead, as the subject of a sentence."""
    lead = 1 - better_s / other_s if other_s > 0 else 0.0
    if interval.high_s is None:
        return f"{of} leads by {lead:.1%}; {interval.why_not}, so nothing says whether that is more than the error of a prediction"
    if other_s <= interval.high_s:
        return f"{of} leads by {lead:.1%}, which is inside the noise: the interval of its step reaches {show_s(interval.high_s)}"
    return f"{of} leads by {lead:.1%}, which is outside of its interval"
