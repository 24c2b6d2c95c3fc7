"""The time of a collective as a function of its bytes, fitted to measurements.

(1) alpha-beta        T(n) = alpha + n / beta
(2) alpha-beta-sqrt   T(n) = alpha + n / beta + c sqrt(n)                                                       -> fit_time(), TimeFit.time_s()
(3) switched          (1) with one pair of coefficients below a size and another above it: two protocols             -> fit_switched()
(4) coefficients >= 0 that minimise   sum_i ((T(n_i) - t_i) / t_i)^2

The square root stands for what grows with the bytes but slower than they do: pipelines that fill, protocols that change with the size.
(4) weighs a microsecond at 1 KB as much as a second at 1 GB, relative to the time there.  With two or three coefficients the best point with
none below zero is found exactly: it is the best of the unconstrained optima over every subset of terms that has no negative coefficient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Protocol

import numpy as np

from planner.ir.errors import Unsupported

__all__ = ["Curve", "SwitchedFit", "TimeFit", "fit_switched", "fit_time", "mean_error"]


class Curve(Protocol):
    """Seconds as a function of bytes."""

    def time_s(self, size_bytes: float) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeFit:
    """(2); (1) with root_s_per_sqrt_byte = 0.

    alpha_s: seconds for no bytes.   s_per_byte: 1 / beta.   root_s_per_sqrt_byte: c.   samples: how many measurements it was fitted to.
    """

    alpha_s: float
    s_per_byte: float
    root_s_per_sqrt_byte: float = 0.0
    samples: int = 0

    def time_s(self, size_bytes: float) -> float:
        return self.alpha_s + size_bytes * self.s_per_byte + math.sqrt(size_bytes) * self.root_s_per_sqrt_byte


def fit_time(sizes_bytes: Sequence[float], times_s: Sequence[float], *, root: bool = True) -> TimeFit:
    """(4) The best non-negative coefficients of (2), or of (1) without ``root``.

    Args:
        sizes_bytes, times_s: n_i >= 0 and t_i > 0, in any order.

    Raises:
        Unsupported: fewer sizes than coefficients, lists of different lengths, or times that are not > 0.

    Source: least squares on the relative error; Lawson & Hanson 1974, "Solving least squares problems", chapter 23, for the condition x >= 0.
    """
    terms = 3 if root else 2
    if len(sizes_bytes) != len(times_s) or len(set(sizes_bytes)) < terms:
        raise Unsupported(
            f"{len(times_s)} times at {len(set(sizes_bytes))} different sizes ({len(sizes_bytes)} given); {terms} coefficients need at least "
            f"{terms} different sizes and one time for each"
        )
    size, time = np.asarray(sizes_bytes, dtype=float), np.asarray(times_s, dtype=float)
    if not (np.all(np.isfinite(time)) and np.all(time > 0) and np.all(np.isfinite(size)) and np.all(size >= 0)):
        raise Unsupported("a fit of relative errors needs sizes >= 0 and times > 0, all finite; leave the others out")
    matrix = np.stack([np.ones_like(size), size, np.sqrt(size)][:terms], axis=1) / time[:, None]
    best, coefficients = float("inf"), np.zeros(terms)
    for count in range(1, terms + 1):
        for chosen in combinations(range(terms), count):
            columns = matrix[:, chosen]
            scale = np.linalg.norm(columns, axis=0)
            if not np.all(scale > 0):
                continue
            part = np.linalg.lstsq(columns / scale, np.ones_like(time), rcond=None)[0] / scale
            error = float(np.sum((columns @ part - 1.0) ** 2))
            if np.all(part >= 0) and error < best:
                best, coefficients = error, np.zeros(terms)
                coefficients[list(chosen)] = part
    alpha, per_byte, *rest = (float(value) for value in coefficients)
    return TimeFit(alpha_s=alpha, s_per_byte=per_byte, root_s_per_sqrt_byte=rest[0] if rest else 0.0, samples=len(times_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchedFit:
    """(3) ``small`` below switch_bytes, ``large`` from there on."""

    switch_bytes: float
    small: TimeFit
    large: TimeFit

    def time_s(self, size_bytes: float) -> float:
        return (self.small if size_bytes < self.switch_bytes else self.large).time_s(size_bytes)


def fit_switched(sizes_bytes: Sequence[float], times_s: Sequence[float]) -> SwitchedFit:
    """(3) The best switch between two neighbouring sizes, with (1) fitted on either side; the switch is their geometric mean.

    NCCL changes its protocol with the size (LL, LL128, Simple), and a protocol has an alpha and a beta of its own.

    Raises:
        Unsupported: fewer than 6 different sizes for the 5 numbers of this curve; or as ``fit_time``.
    """
    points = sorted(zip(sizes_bytes, times_s, strict=True))
    sizes = sorted(set(sizes_bytes))
    if len(sizes) < 6:
        raise Unsupported(f"a switched fit has 5 numbers and {len(sizes)} different sizes; measure at 6 sizes or more, or use fit_time")
    tried: list[tuple[float, float, SwitchedFit]] = []
    for below, above in zip(sizes[1:-2], sizes[2:-1], strict=True):
        sides = [point for point in points if point[0] < above], [point for point in points if point[0] >= above]
        small, large = (fit_time([n for n, _ in side], [t for _, t in side], root=False) for side in sides)
        fit = SwitchedFit(switch_bytes=math.sqrt(max(below, 1.0) * above), small=small, large=large)
        tried.append((sum((fit.time_s(n) / t - 1.0) ** 2 for n, t in points), above, fit))
    return min(tried, key=lambda entry: entry[:2])[2]


def mean_error(fit: Curve, sizes_bytes: Sequence[float], times_s: Sequence[float]) -> float:
    """Mean of |T(n_i) - t_i| / t_i."""
    pairs = zip(sizes_bytes, times_s, strict=True)
    return sum(abs(fit.time_s(n) / t - 1.0) for n, t in pairs) / len(times_s)
