"""The constants under which a model's logarithmic errors are smallest: few, bounded, and little moved by points that no constants explain.

(1) loss   L(x) = sum over points of w^2 rho(e(x)) + |h (x - c)|^2 / 2,   rho(e) = e^2 / 2 up to ``scale`` and linear beyond     (Huber 1964)
           x: logarithms of the constants.   w: weights of the points.   c, h: a centre, and how hard each constant is held to it     -> Prior
(2) step   where (1) is least with e(x) + J (y - x) for e(y), inside the bounds and no further than ``reach`` from x: least squares
           with weights that are worked out anew (Holland and Welsch 1977)                                                         -> nearest
(3) fit    steps (2) from x on; reach grows with each that lessens (1) and shrinks with each that does not                          -> fitted

J is made of finite differences; when all of the derivatives that are asked for are made, each step corrects it (Broyden 1965).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Errors", "Fit", "Floats", "Prior", "fitted", "nearest"]

Floats = NDArray[np.float64]
Errors = Callable[[Floats], Floats]
"""Logarithms of the constants, shape [constants] -> log(model / measured), shape [points]."""

SCALE = 0.05
"""Errors above 5 % count linearly."""
RIDGE = 1e-4
"""Of a constant's own curvature: it keeps steps finite where constants cannot be told apart."""
SMALLEST = 1e-5
"""Steps in logarithms below it end a fit."""


@dataclass(frozen=True, slots=True)
class Prior:
    """What is known beforehand: ``centre`` of the logarithms, and by how much a distance of 1 from it counts; shape [constants]."""

    centre: Floats
    by: Floats


@dataclass(frozen=True, slots=True)
class Fit:
    """x: logarithms of the constants.   error: of the points there.   slope: its derivative by x, shape [points, constants]."""

    x: Floats
    error: Floats
    slope: Floats


def fitted(
    errors: Errors,
    start: Floats,
    low: Floats,
    high: Floats,
    *,
    weight: Floats | None = None,
    prior: Prior | None = None,
    scale: float = SCALE,
    apart: float = 0.02,
    rounds: int = 60,
    slopes: int | None = None,
    least_gain: float = 1e-6,
    reach: float = 1.0,
) -> Fit:
    """Equation (3).

    Args:
        start, low, high: where the fit begins, and the bounds; logarithms, shape [constants].   weight: of the points; None: 1 each.
        apart: between the two ends of a finite difference, a logarithm.
        rounds: steps, at most; each works the errors out once.
        slopes: how often derivatives are made, each of one call of ``errors`` per constant; None: after every step that was taken.
        least_gain: the share of the loss below which a gain ends the fit, once derivatives were made twice.   reach: of the first step.
    """
    x = np.clip(start, low, high)
    error = errors(x)
    weight = np.ones(len(error)) if weight is None else weight
    made, slope, moved = 0, np.zeros((len(error), len(x))), True
    most = rounds if slopes is None else slopes
    for _ in range(rounds):
        if moved and made < most:
            slope, made = derivatives(errors, x, error, high, apart), made + 1
        moved = False
        tried = nearest(x, error, slope, low, high, weight=weight, prior=prior, scale=scale, reach=reach)
        step = tried - x
        if np.max(np.abs(step)) < SMALLEST:
            break
        here = errors(tried)
        before, after = _loss(x, error, weight, prior, scale), _loss(tried, here, weight, prior, scale)
        slope = slope + np.outer(here - error - slope @ step, step) / (step @ step)
        moved = after < before
        if moved:
            x, error = tried, here
        reach *= 1.5 if moved else 0.3
        if moved and before - after < least_gain * before and made >= min(most, 2):
            break
    return Fit(x, error, slope)


def derivatives(errors: Errors, x: Floats, error: Floats, high: Floats, apart: float) -> Floats:
    """Finite differences of the errors, towards the inside of the bounds; shape [points, constants]."""
    columns = []
    for i in range(len(x)):
        moved, by = x.copy(), apart if x[i] + apart <= high[i] else -apart
        moved[i] += by
        columns.append((errors(moved) - error) / by)
    return np.stack(columns, axis=1)


def nearest(
    x: Floats,
    error: Floats,
    slope: Floats,
    low: Floats,
    high: Floats,
    *,
    weight: Floats | None = None,
    prior: Prior | None = None,
    scale: float = SCALE,
    reach: float,
) -> Floats:
    """Equation (2): no call of the model.  Arguments as of ``fitted``; slope: derivatives of ``error`` at x."""
    below, above = np.maximum(low, x - reach), np.minimum(high, x + reach)
    weight = np.ones(len(error)) if weight is None else weight
    y = np.clip(x, below, above)
    for _ in range(60):
        now = error + slope @ (y - x)
        trust = weight * np.sqrt(np.minimum(1.0, scale / np.maximum(np.abs(now), 1e-12)))
        weighted = slope * trust[:, None]
        normal, pull = weighted.T @ weighted, weighted.T @ (trust * now)
        if prior is not None:
            normal, pull = normal + np.diag(prior.by**2), pull + prior.by**2 * (y - prior.centre)
        moved = np.clip(y + _free_step(normal, pull, y, below, above), below, above)
        if np.max(np.abs(moved - y)) < 1e-6:
            break
        y = moved
    return y


def _free_step(normal: Floats, pull: Floats, y: Floats, below: Floats, above: Floats) -> Floats:
    """The step of least squares; constants that lean against a bound are left out, one set after the other."""
    free = np.ones(len(y), dtype=bool)
    step = np.zeros(len(y))
    while free.any():
        part = np.ix_(free, free)
        step = np.zeros(len(y))
        step[free] = np.linalg.solve(normal[part] + RIDGE * np.diag(np.diag(normal)[free] + 1e-9), -pull[free])
        out = free & (((y <= below) & (step < 0)) | ((y >= above) & (step > 0)))
        if not out.any():
            return step
        free &= ~out
    return np.zeros(len(y))


def _loss(x: Floats, error: Floats, weight: Floats, prior: Prior | None, scale: float) -> float:
    """Equation (1)."""
    size = np.abs(error)
    loss = np.sum(weight**2 * np.where(size <= scale, size**2 / 2, scale * (size - scale / 2)))
    return float(loss if prior is None else loss + np.sum((prior.by * (x - prior.centre)) ** 2) / 2)
