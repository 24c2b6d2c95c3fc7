"""How sure a prediction is: 90 % of the points that resemble a job, and that no fit saw when they were scored, lay within its interval.

Split conformal prediction on log(sim / paper), by machine (Lei et al. 2018): machines/residuals.csv holds, per machine, two residuals of each
published point: by constants that had not seen its model (or test case), and by constants that had not seen the point itself.  A job of a model that
was measured on the machine has the second kind, any other the first.  The k nearest points (by devices, model size, precision and framework) give
the interval; fewer than 8 leave it wide.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from math import ceil, exp, log
from pathlib import Path

from regista.jobs.job import Job, Precision
from regista.jobs.machines import Machine

__all__ = ["COLUMNS", "Residual", "family_of", "features", "interval", "is_like", "quantile_of_nearest"]

FILE = Path(__file__).parent / "machines" / "residuals.csv"
LEVEL, NEAREST, UNKNOWN = 0.9, 80, 0.25
"""The level of the interval; how many neighbours speak; |log| error assumed where nobody has measured: the worst of GB200's 13 rows when they
are predicted by H100's constants is 0.22."""
COLUMNS = ("machine", "environment", "group", "devices", "parameters", "low", "moe", "jax", "error", "near_error")
Features = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Residual:
    """error, near_error: log(sim / paper) by constants that did not see the point's group, and by such that did not see the point."""

    machine: str
    environment: str
    features: Features
    error: float
    near_error: float


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
                float(row["near_error"]),
            )
            for row in csv.DictReader(file)
        )


def is_like(one: Features, other: Features) -> bool:
    """Whether two jobs are of one model, up to its vocabulary and rounding, in one precision and framework."""
    return all(abs(a - b) < 0.02 for a, b in zip(one[1:], other[1:], strict=True))


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
    here, same = features(job), [r for r in _residuals() if (r.machine, r.environment) == (machine.name, family_of(job))]
    known = any(is_like(here, r.features) for r in same)
    width = quantile_of_nearest(here, [(r.features, r.near_error if known else r.error) for r in same])
    return step_s * exp(-width), step_s * exp(width)
