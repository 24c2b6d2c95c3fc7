"""A machine's constants from published seconds: few, bounded, and held to what is known before.

minimise  sum_i w_i rho(log(sim_i / paper_i)) + sum_c (log(c / start_c) / spread_c)^2 / (2 strength)     over the logarithms of the constants c

w: one over the points of a group, so that a model that was run often speaks once.  How: experiments.common.robust_fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from experiments.common import robust_fit
from experiments.common.robust_fit import Floats, Prior
from experiments.fidelity.jobs.cases import Case
from regista.jobs.job import Job
from regista.jobs.machines import CONSTANTS, Machine

__all__ = ["Floats", "Free", "fitted", "log_errors", "refitted", "slopes"]

Free = Sequence[tuple[str, str]]
"""(environment or "", constant) that may change."""

APART, REACH = 0.02, 0.5
PRIOR = 0.05
"""What a constant's spread weighs: as much as an error of so many logarithms of one group."""


def log_errors(cases: Sequence[Case], machine: Machine) -> Floats:
    """log(sim / paper), shape [cases].  Cases of one Plan are simulated once."""
    seconds: dict[Job, float] = {}
    for case in cases:
        if case.nameless not in seconds:
            seconds[case.nameless] = case.sim_s(machine)
    return np.log([seconds[case.nameless] / case.paper_s for case in cases])


def slopes(cases: Sequence[Case], machine: Machine, free: Free) -> Floats:
    """Derivatives of log_errors by the logarithms of the free constants, shape [cases, constants]."""
    x, (_, high) = _logs(machine, free), _bounds(free)
    return robust_fit.derivatives(_errors(cases, machine, free), x, log_errors(cases, machine), high, APART)


def _weights(cases: Sequence[Case]) -> Floats:
    sizes = Counter(case.group for case in cases)
    return np.sqrt([1.0 / sizes[case.group] ** 0.7 for case in cases])


def refitted(cases: Sequence[Case], error: Floats, slope: Floats, machine: Machine, free: Free) -> Machine:
    """The machine that fits these cases best by the derivatives at ``machine``: no simulation.   error, slope: of the cases, at ``machine``."""
    x = _logs(machine, free)
    found = robust_fit.nearest(x, error, slope, *_bounds(free), weight=_weights(cases), prior=_prior(x, free), reach=REACH)
    return with_logs(machine, free, found)


def _errors(cases: Sequence[Case], machine: Machine, free: Free) -> robust_fit.Errors:
    return lambda x: log_errors(cases, with_logs(machine, free, x))


def _prior(centre: Floats, free: Free) -> Prior:
    return Prior(centre, np.array([PRIOR / CONSTANTS[name].spread for _, name in free]))


def _bounds(free: Free) -> tuple[Floats, Floats]:
    low, high = (np.log([getattr(CONSTANTS[name], side) for _, name in free]) for side in ("low", "high"))
    return low, high


def _logs(machine: Machine, free: Free) -> Floats:
    return np.log([_get(machine, where, name) for where, name in free])


def _get(machine: Machine, where: str, name: str) -> float:
    return machine.within(where).values[name]


def with_logs(machine: Machine, free: Free, logs: Floats) -> Machine:
    values, environments = dict(machine.values), {k: dict(v) for k, v in machine.environments.items()}
    for (where, name), log in zip(free, logs, strict=True):
        target = environments.setdefault(where, {}) if where else values
        target[name] = float(np.exp(log))
    return replace(machine, values=values, environments=environments)


def fitted(cases: Sequence[Case], machine: Machine, free: Free, *, start: Machine | None = None, rounds: int = 6) -> Machine:
    """The machine with the constants that fit best; ``start``: what the prior holds them to (None: machine as it is).

    Derivatives are simulated ``rounds`` times, at most.
    """
    found = robust_fit.fitted(
        _errors(cases, machine, free),
        _logs(machine, free),
        *_bounds(free),
        weight=_weights(cases),
        prior=_prior(_logs(start or machine, free), free),
        apart=APART,
        rounds=2 * rounds,
        slopes=rounds,
        least_gain=1e-3,
        reach=REACH,
    )
    return with_logs(machine, free, found.x)
