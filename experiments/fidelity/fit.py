"""Calibration: the constants under which the simulated iterations differ least from the published ones.

minimise  sum_i w_i rho(log(sim_i / paper_i))    over the constants' logarithms, within bounds; how: experiments.common.robust_fit
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiments.common import robust_fit
from experiments.fidelity.constants import CONSTANTS, Machine, step_s
from experiments.fidelity.points import Point
from experiments.fidelity.works import Floats, Work

__all__ = ["Case", "Fit", "balanced", "fitted", "folds", "predicted", "refitted"]

Case = tuple[Point, Work]

APART = 1e-2
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
            simulation per constant and case; later they are corrected by what each step showed.
    """
    names = tuple(free if free is not None else CONSTANTS)
    paper_s = np.array([point.paper_s for point, _ in cases])

    def errors(x: Floats) -> Floats:
        return np.asarray(np.log(predicted(cases, _valued(machine, names, x)) / paper_s))

    found = robust_fit.fitted(
        errors,
        np.log([machine.values[n] for n in names]),
        *bounds(names),
        weight=balanced(cases),
        apart=APART,
        rounds=rounds,
        slopes=slopes,
        least_gain=1e-3,
    )
    return Fit(_valued(machine, names, found.x), names, found.x, found.error, found.slope)


def refitted(fit: Fit, rows: Sequence[int], weight: Floats) -> Machine:
    """The machine that fits some of the cases best, by the derivatives at the fit of all: no simulation.

    Args:
        rows: the cases to fit to.   weight: of all cases.
    """
    low, high = bounds(fit.names)
    chosen = list(rows)
    x = robust_fit.nearest(fit.x, fit.error[chosen], fit.slope[chosen], low, high, weight=weight[chosen], reach=REACH)
    return _valued(fit.machine, fit.names, x)


def bounds(names: Sequence[str]) -> tuple[Floats, Floats]:
    """Logarithms of the least and largest values."""
    low, high = (np.log([getattr(CONSTANTS[n], side) for n in names]) for side in ("low", "high"))
    return low, high


def _valued(machine: Machine, names: Sequence[str], x: Floats) -> Machine:
    return machine.with_values(dict(zip(names, np.exp(x).tolist(), strict=True)))


def balanced(cases: Sequence[Case]) -> Floats:
    """Weights under which every data set counts with the root of its size: a set of 700 rows with all of 700 would drown one of 10."""
    sizes = {point.data: sum(other.data == point.data for other, _ in cases) for point, _ in cases}
    return np.array([sizes[point.data] ** -0.25 for point, _ in cases])


def folds(count: int, parts: int, seed: int) -> list[list[int]]:
    """The numbers 0 to count - 1 dealt out in ``parts`` folds, after a shuffle by the seed."""
    order = np.random.default_rng(seed).permutation(count).tolist()
    return [sorted(order[i::parts]) for i in range(parts)]
