"""Constants of a surface under which its logarithmic errors are smallest: Gauss and Newton's method with Huber's weights, damped."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

__all__ = ["fitted"]

Floats = npt.NDArray[np.float64]

SCALE = 0.05
"""Errors above 5 % count linearly."""
STEP = 0.02


def fitted(errors: Callable[[Floats], Floats], start: Floats, low: Floats, high: Floats, *, rounds: int = 30) -> Floats:
    """The logarithms of the constants.

    Args:
        errors: logarithms of the constants -> log(surface / measured), shape [points].   low, high: bounds of the logarithms.
    """
    x, damping = np.clip(start, low, high), 1e-2
    error = errors(x)
    for _ in range(rounds):
        slope = np.stack([(errors(x + STEP * unit) - error) / STEP for unit in np.eye(len(x))], axis=1)
        weight = np.minimum(1.0, SCALE / np.maximum(np.abs(error), 1e-9))[:, None]
        normal = slope.T @ (weight * slope)
        pull = slope.T @ (weight[:, 0] * error)
        tried = np.clip(x - np.clip(np.linalg.solve(normal + damping * np.diag(np.diag(normal) + 1e-6), pull), -0.4, 0.4), low, high)
        here = errors(tried)
        if _loss(here) < _loss(error):
            x, error, damping = tried, here, damping / 2
        else:
            damping *= 4
        if damping > 1e6:
            break
    return x


def _loss(error: Floats) -> float:
    size = np.abs(error)
    return float(np.sum(np.where(size <= SCALE, size**2 / 2, SCALE * (size - SCALE / 2))))
