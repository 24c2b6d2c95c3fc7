"""A machine's constants from published seconds: few, bounded, and held to what is known before.

minimise  sum_i w_i rho(log(sim_i / paper_i)) + sum_c (log(c / start_c) / spread_c)^2 / (2 strength)     over the logarithms of the constants c

w: one over the points of a group, so that a model that was run often speaks once.  rho: Huber.  Gauss and Newton with numerical derivatives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from experiments.fidelity.jobs.cases import Case
from regista.jobs.job import Job
from regista.jobs.machines import CONSTANTS, Machine

__all__ = ["Floats", "Free", "fitted", "log_errors", "refitted", "slopes"]

Floats = NDArray[np.float64]
Free = Sequence[tuple[str, str]]
"""(environment or "", constant) that may change."""

STEP, SCALE = 0.02, 0.05
PRIOR = 0.02
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
    x, error = np.log([_get(machine, where, name) for where, name in free]), log_errors(cases, machine)
    return np.stack([(log_errors(cases, with_logs(machine, free, x + STEP * unit)) - error) / STEP for unit in np.eye(len(x))], axis=1)


def _weights(cases: Sequence[Case]) -> Floats:
    sizes = Counter(case.group for case in cases)
    return np.sqrt([1.0 / sizes[case.group] ** 0.7 for case in cases])


def refitted(cases: Sequence[Case], error: Floats, slope: Floats, machine: Machine, free: Free) -> Machine:
    """The machine that fits these cases best by the derivatives at ``machine``: no simulation.   error, slope: of the cases, at ``machine``."""
    spread = np.array([CONSTANTS[name].spread for _, name in free])
    x = np.log([_get(machine, where, name) for where, name in free])
    weight, step = _weights(cases), np.zeros(len(x))
    for _ in range(20):
        now = error + slope @ step
        trust = weight * np.sqrt(np.minimum(1.0, SCALE / np.maximum(np.abs(now), 1e-9)))
        rows = np.vstack([slope * trust[:, None], np.diag(PRIOR / spread)])
        wanted = np.concatenate([-error * trust, np.zeros(len(x))])
        step = np.clip(np.linalg.lstsq(rows, wanted, rcond=None)[0], -0.5, 0.5)
    low, high = (np.log([getattr(CONSTANTS[name], side) for _, name in free]) for side in ("low", "high"))
    return with_logs(machine, free, np.clip(x + step, low, high))


def _get(machine: Machine, where: str, name: str) -> float:
    return machine.within(where).values[name]


def with_logs(machine: Machine, free: Free, logs: Floats) -> Machine:
    values, environments = dict(machine.values), {k: dict(v) for k, v in machine.environments.items()}
    for (where, name), log in zip(free, logs, strict=True):
        target = environments.setdefault(where, {}) if where else values
        target[name] = float(np.exp(log))
    return replace(machine, values=values, environments=environments)


def fitted(cases: Sequence[Case], machine: Machine, free: Free, *, start: Machine | None = None, rounds: int = 6) -> Machine:
    """The machine with the constants that fit best; ``start``: what the prior holds them to (None: machine as it is)."""
    low = np.log([CONSTANTS[name].low for _, name in free])
    high = np.log([CONSTANTS[name].high for _, name in free])
    centre = np.log([_get(start or machine, where, name) for where, name in free])
    spread = np.array([CONSTANTS[name].spread for _, name in free])
    x = np.clip(np.log([_get(machine, where, name) for where, name in free]), low, high)
    weight = _weights(cases)

    def loss(error: Floats, at: Floats) -> float:
        size = np.abs(error)
        rho = np.where(size < SCALE, error**2 / 2, SCALE * (size - SCALE / 2))
        return float(np.sum(weight**2 * rho) + np.sum((PRIOR * (at - centre) / spread) ** 2) / 2)

    error = log_errors(cases, machine := with_logs(machine, free, x))
    now, damping = loss(error, x), 1e-3
    for _ in range(rounds):
        slope = slopes(cases, with_logs(machine, free, x), free)
        trust = weight * np.sqrt(np.minimum(1.0, SCALE / np.maximum(np.abs(error), 1e-9)))
        better = False
        for _ in range(4):
            rows = np.vstack([slope * trust[:, None], np.diag(PRIOR / spread), np.sqrt(damping) * np.eye(len(x))])
            wanted = np.concatenate([-error * trust, PRIOR * (centre - x) / spread, np.zeros(len(x))])
            step = np.linalg.lstsq(rows, wanted, rcond=None)[0]
            tried = np.clip(x + np.clip(step, -0.5, 0.5), low, high)
            there = log_errors(cases, with_logs(machine, free, tried))
            if (after := loss(there, tried)) < now:
                better = now - after > 1e-3 * now
                x, error, now, damping = tried, there, after, damping / 3
                break
            damping = max(1e-4, damping * 10)
        if not better:
            break
    return with_logs(machine, free, x)
