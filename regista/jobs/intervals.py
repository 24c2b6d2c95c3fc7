"""How sure a prediction is: 90 % of the points that resemble a job, and that no fit saw when they were scored, lay within its interval.

Split conformal prediction on log(sim / paper), by machine (Lei et al. 2018): machines/residuals.csv holds, per machine, two residuals of each
published point: by constants that had not seen its model (or test case), and by constants that had not seen the point itself.  A job of a model that
was measured on the machine has the second kind, any other the first.  The k nearest points (by precision, experts, framework, devices and model
size; other machines' where the machine has few) give the interval; fewer than 9 of its own, a precision that nobody measured, or a
hybrid of Mamba, leave it wide.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import exp, isfinite, log
from pathlib import Path

from regista.jobs.job import Job, Precision
from regista.jobs.machines import Machine
from regista.trust.conformal import FEWEST, Place, conformal_width, nearest_errors

__all__ = [
    "COLUMNS",
    "FILE",
    "UNSEEN_FILE",
    "Features",
    "Pairs",
    "Residual",
    "family_of",
    "features",
    "interval",
    "is_like",
    "quantile_of_nearest",
]

FILE = Path(__file__).parent / "machines" / "residuals.csv"
UNSEEN_FILE = FILE.with_name("residuals_unseen.csv")
"""Of tables that constants were fitted to, each point left out; and of tables that were only predicted."""
UNKNOWN = 0.25
"""|log| error assumed where nobody has measured: the worst of GB200's 13 rows when they are predicted by H100's constants is 0.22."""
COLUMNS = ("machine", "environment", "group", "devices", "parameters", "low", "moe", "jax", "error", "near_error")
Features = Place
Pairs = Sequence[tuple[Features, float]]
LOW = 2
"""Which feature tells the precision."""


@dataclass(frozen=True, slots=True)
class Residual:
    """error, near_error: log(sim / paper) by constants that did not see the point's group, and by such that did not see the point."""

    machine: str
    environment: str
    features: Features
    error: float
    near_error: float


_LOWER = {Precision.FP8: 1, Precision.NVFP4: 2}


def features(job: Job) -> Features:
    """Where a job lies among others: logarithms of devices and parameters, and how few bits, experts, XLA."""
    return (
        log(job.devices) / 4,
        log(job.model.parameters) / 2,
        4.0 * _LOWER.get(job.running.precision, 0),
        2.0 * (job.model.experts > 0),
        2.0 * job.running.jax,
    )


def family_of(job: Job) -> str:
    """Points of continuous integration, small and bound by the host, are no neighbours of others."""
    return "ci" if job.running.environment.split(".")[0] == "ci" else "training"


@cache
def _residuals() -> tuple[Residual, ...]:
    return tuple(_residual(row) for path in (FILE, UNSEEN_FILE) if path.is_file() for row in _table(path))


def _table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _residual(row: dict[str, str]) -> Residual:
    return Residual(
        row["machine"],
        row["environment"],
        (
            log(float(row["devices"])) / 4,
            log(float(row["parameters"])) / 2,
            4 * float(row["low"]),
            2 * float(row["moe"]),
            2 * float(row["jax"]),
        ),
        float(row["error"]),
        float(row["near_error"]),
    )


def is_like(one: Features, other: Features) -> bool:
    """Whether two jobs are of one model, up to its vocabulary and rounding, in one precision and framework."""
    return all(abs(a - b) < 0.02 for a, b in zip(one[1:], other[1:], strict=True))


def quantile_of_nearest(at: Features, among: Pairs, elsewhere: Pairs = ()) -> float:
    """The conformal width (regista.trust.conformal) of the errors of the nearest points; where these are too few, UNKNOWN or the worst of them.

    Args:
        among: features and errors of the machine's own points.   elsewhere: of other machines', which are farther by OTHER and speak where the
            machine has points enough for its constants to be its own, and too few to speak alone.
    """

    errors = nearest_errors(at, among, elsewhere if len(among) >= FEWEST else ())
    width = conformal_width(errors)
    return width if isfinite(width) else max([UNKNOWN, *map(abs, errors)])


def interval(job: Job, machine: Machine, step_s: float) -> tuple[float, float]:
    """(low, high) seconds."""
    here, same = features(job), [r for r in _residuals() if r.environment == family_of(job)]
    own, others = ([r for r in same if (r.machine == machine.name) is mine] for mine in (True, False))
    known = any(is_like(here, r.features) for r in own)
    pairs, elsewhere = ([(r.features, r.near_error if known else r.error) for r in part] for part in (own, others))
    width = quantile_of_nearest(here, pairs, elsewhere)
    if job.model.pattern or not any(r.features[LOW] == here[LOW] for r in same):
        width = max(width, UNKNOWN)
    return step_s * exp(-width), step_s * exp(width)
