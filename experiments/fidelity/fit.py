"""Calibration: the constants under which the simulated iterations differ least from the published ones.

minimise  sum_i w_i rho(log(sim_i / paper_i))    over the constants' logarithms, within bounds

rho is quadratic for errors far below 5 % and linear above (Huber), so single rows that no machine constant explains pull little.  The method
is Gauss and Newton's with weights that are worked out anew (iteratively reweighted least squares, Holland and Welsch 1977) inside a box.
Derivatives are finite differences of simulations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from experiments.fidelity.constants import CONSTANTS, Machine, step_s
from experiments.fidelity.points import Point
from experiments.fidelity.works import Floats, Work

__all__ = ["Case", "Fit", "balanced", "fitted", "folds", "predicted", "refitted"]

Case = tuple[Point, Work]

SCALE = 0.05
STEP = 1e-2
REACH = 0.25
"""How far, in logarithms, derivatives at the fit of all are believed."""


def predicted(cases: Sequence[Case], machine: Machine) -> Floats:
    """Simulated seconds per iteration, shape [cases]."""
    return np.array([step_s(work, machine, point.nic) for point, work in cases])


@dataclass(frozen=True, slots=True)
class Fit:
    """machine: with the constants found.   names, x: those that were free, and their logarithms.

    error: log(sim / paper) there, shape [cases].   slope: its derivative by x, shape [cases, constants].
    """

    machine: Machine
    names: tuple[str, ...]
    x: Floats
    error: Floats
    slope: Floats


def fitted(cases: Sequence[Case], machine: Machine, free: Sequence[str] | None = None, *, rounds: int = 6, slopes: int = 2) -> Fit:
    """The machine with the constants that fit best.

    Args:
        free: names of the constants that may change; the others stay.
        rounds: steps, at most; each simulates every case once.   slopes: for the first so many steps derivatives are simulated too, one
            simulation per constant and case; later they are corrected by what each step showed (Broyden 1965).
    """
    names = tuple(free if free is not None else CONSTANTS)
    paper_s = np.array([point.paper_s for point, _ in cases])

    def errors(x: Floats) -> Floats:
        return np.asarray(np.log(predicted(cases, _valued(machine, names, x)) / paper_s))

    low, high = bounds(names)
    x = np.clip(np.log([machine.values[n] for n in names]), low, high)
    weight, error = balanced(cases), errors(x)
    slope = np.zeros((len(cases), len(x)))
    reach = 1.0
    for number in range(rounds):
        if number < slopes:
            slope = np.stack([_slope(errors, x, error, i, high[i]) for i in range(len(x))], axis=1)
        tried = nearest(x, error, slope, weight, low, high, reach)
        here = errors(tried)
        step = tried - x
        if step @ step < 1e-10:
            break
        slope = slope + np.outer(here - error - slope @ step, step) / (step @ step)
        before, after = _loss(error, weight), _loss(here, weight)
        if after < before:
            x, error = tried, here
        reach = reach * (1.5 if after < before else 0.3)
        if 0 <= before - after < 1e-3 * before and number >= slopes:
            break
    return Fit(_valued(machine, names, x), names, x, error, slope)


def refitted(fit: Fit, rows: Sequence[int], weight: Floats) -> Machine:
    """The machine that fits some of the cases best, by the derivatives at the fit of all: no simulation.

    Args:
        rows: the cases to fit to.   weight: of all cases.
    """
    low, high = bounds(fit.names)
    chosen = list(rows)
    x = nearest(fit.x, fit.error[chosen], fit.slope[chosen], weight[chosen], low, high, REACH)
    return _valued(fit.machine, fit.names, x)


def bounds(names: Sequence[str]) -> tuple[Floats, Floats]:
    """Logarithms of the least and largest values."""
    low, high = (np.log([getattr(CONSTANTS[n], side) for n in names]) for side in ("low", "high"))
    return low, high


def nearest(x: Floats, error: Floats, slope: Floats, weight: Floats, low: Floats, high: Floats, reach: float) -> Floats:
    """Where the linear model error + slope (y - x) has the least loss, within the bounds and no further than ``reach`` from x."""
    below, above = np.maximum(low, x - reach), np.minimum(high, x + reach)
    y = x.copy()
    for _ in range(60):
        now = error + slope @ (y - x)
        trust = weight * np.sqrt(np.minimum(1.0, SCALE / np.maximum(np.abs(now), 1e-12)))
        weighted = slope * trust[:, None]
        normal, pull = weighted.T @ weighted, weighted.T @ (trust * now)
        free = np.ones(len(x), dtype=bool)
        for _ in range(len(x)):  # constants that lean against a bound are left out, one after the other
            step = np.zeros(len(x))
            part = np.ix_(free, free)
            step[free] = np.linalg.solve(normal[part] + 1e-4 * np.diag(np.diag(normal)[free] + 1e-9), -pull[free])
            out = free & (((y <= below) & (step < 0)) | ((y >= above) & (step > 0)))
            if not out.any():
                break
            free &= ~out
            if not free.any():
                return y
        moved = np.clip(y + step, below, above)
        if np.max(np.abs(moved - y)) < 1e-6:
            break
        y = moved
    return y


def _valued(machine: Machine, names: Sequence[str], x: Floats) -> Machine:
    return machine.with_values(dict(zip(names, np.exp(x).tolist(), strict=True)))


def _slope(errors: Callable[[Floats], Floats], x: Floats, here: Floats, i: int, high: float) -> Floats:
    """Derivative by the i-th logarithm, towards the inside of its bounds."""
    step = STEP if x[i] + STEP <= high else -STEP
    moved = x.copy()
    moved[i] += step
    return (errors(moved) - here) / step


def _loss(error: Floats, weight: Floats) -> float:
    """Huber's."""
    size = np.abs(error)
    return float(np.sum(weight**2 * np.where(size <= SCALE, size**2 / 2, SCALE * (size - SCALE / 2))))


def balanced(cases: Sequence[Case]) -> Floats:
    """Weights under which every data set counts with the root of its size: a set of 700 rows with all of 700 would drown one of 10."""
    sizes = {point.data: sum(other.data == point.data for other, _ in cases) for point, _ in cases}
    return np.array([sizes[point.data] ** -0.25 for point, _ in cases])


def folds(count: int, parts: int, seed: int) -> list[list[int]]:
    """The numbers 0 to count - 1 dealt out in ``parts`` folds, after a shuffle by the seed."""
    order = np.random.default_rng(seed).permutation(count).tolist()
    return [sorted(order[i::parts]) for i in range(parts)]
