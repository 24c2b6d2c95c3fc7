"""How sure a prediction is: 90 % of the points that resemble a job, and that no fit saw when they were scored, lay within its interval.

Split conformal prediction on log(sim / paper), by machine (Lei et al. 2018): machines/residuals.csv holds, per machine, the residuals of
left-out points.  The k nearest of them (by devices, model size, precision and framework) give the interval; fewer than 8 leave it wide.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from math import ceil, exp, log
from pathlib import Path

from regista.jobs.job import Job, Precision
from regista.jobs.machines import Machine

__all__ = ["COLUMNS", "Residual", "family_of", "features", "interval", "quantile_of_nearest"]

FILE = Path(__file__).parent / "machines" / "residuals.csv"
LEVEL, NEAREST, UNKNOWN = 0.9, 40, 0.5
"""The level of the interval; how many neighbours speak; |log| error assumed where nobody has measured."""
COLUMNS = ("machine", "environment", "group", "devices", "parameters", "low", "moe", "jax", "error")
Features = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Residual:
    """error: log(sim / paper) of a point that the constants did not see."""

    machine: str
    environment: str
    features: Features
    error: float


def features(job: Job) -> Features:
    """Where a job lies among others: logarithms of devices and parameters, and whether it has 8 bits, experts, XLA."""
    return (
        log(job.devices) / 4,
        log(job.model.parameters) / 2,
        float(job.running.precision is Precision.FP8),
        2.0 * (job.model.experts > 0),
        2.0 * job.running.jax,
    )


def family_of(job: Job) -> str:
    """Points of continuous integration, small and bound by the host, are no neighbours of others."""
    return "ci" if job.running.environment.split(".")[0] == "ci" else "training"


@cache
def _residuals() -> tuple[Residual, ...]:
    if not FILE.is_file():
        return ()
    with FILE.open(newline="", encoding="utf-8") as file:
        return tuple(
            Residual(
                row["machine"],
                row["environment"],
                (
                    log(float(row["devices"])) / 4,
                    log(float(row["parameters"])) / 2,
                    float(row["low"]),
                    2 * float(row["moe"]),
                    2 * float(row["jax"]),
                ),
                float(row["error"]),
            )
            for row in csv.DictReader(file)
        )


def quantile_of_nearest(at: Features, among: list[tuple[Features, float]]) -> float:
    """The conformal quantile of |error| of the nearest points."""

    def distance(there: Features) -> float:
        return sum((a - b) ** 2 for a, b in zip(at, there, strict=True))

    near = sorted(among, key=lambda pair: distance(pair[0]))[:NEAREST]
    errors = sorted(abs(error) for _, error in near)
    place = ceil(LEVEL * (len(errors) + 1)) - 1
    return errors[place] if len(errors) >= 8 and place < len(errors) else max([UNKNOWN, *errors])


def interval(job: Job, machine: Machine, step_s: float) -> tuple[float, float]:
    """(low, high) seconds."""
    same = [(r.features, r.error) for r in _residuals() if (r.machine, r.environment) == (machine.name, family_of(job))]
    width = quantile_of_nearest(features(job), same)
    return step_s * exp(-width), step_s * exp(width)
