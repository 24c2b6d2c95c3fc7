"""The constants of an interconnect's laws, fitted to rows: Gauss-Newton steps on the logarithms of constants and of times.

(1) loss     sum over points of rho(log T - log t),  rho = Huber beyond 20 %: a law that is wrong somewhere does not bend the rest
(2) step     (J'J + lambda diag J'J) step = -J'r,  lambda grows until the loss falls                              (Levenberg 1944, Marquardt 1963)

A point is the median of the rows that repeat it.  Constants that no row touches keep their start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.nccl_fit.rows import Row
from planner.cost.nccl.groups import Group, Kind
from planner.cost.nccl.interconnect import parse_interconnect
from planner.cost.nccl.laws import candidates

__all__ = ["Point", "descend", "fit_constants", "law_s", "points_of"]

HUBER = 0.2
Floats = NDArray[np.float64]
Data = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The median time of the rows that repeat one measurement."""

    kind: Kind
    group: Group
    size_bytes: int
    in_switch: bool
    paper_s: float


def points_of(rows: Sequence[Row]) -> list[Point]:
    """Rows, repeated ones joined."""
    times: dict[tuple[Kind, int, int, int, bool], list[float]] = {}
    for row in rows:
        times.setdefault((row.kind, row.ranks, row.per_node, row.size_bytes, row.in_switch), []).append(row.paper_s)
    return [
        Point(kind=kind, group=Group(ranks, per_node), size_bytes=size, in_switch=switch, paper_s=median(found))
        for (kind, ranks, per_node, size, switch), found in times.items()
    ]


def law_s(data: Data, points: Sequence[Point]) -> Floats:
    """Seconds by the laws, shape [points]."""
    net = parse_interconnect(data, "fitted")
    return np.array([min(c[2] for c in candidates(net, p.kind, p.size_bytes, p.group, p.in_switch)) for p in points])


def fit_constants(start: Data, points: Sequence[Point], names: Sequence[str], rounds: int = 25) -> Data:
    """The constants with the least loss.

    Args:
        start: the data of an interconnect's TOML.   names: the constants that are free, "table.key" or "table.table.key"; all > 0.
    """
    paper = np.log([p.paper_s for p in points])
    x = np.log([_get(start, name) for name in names])
    low, high = x - np.log(30.0), x + np.log(30.0)

    def residuals(at: Floats) -> Floats:
        return np.asarray(np.log(law_s(_with(start, names, at), points)) - paper)

    return _with(start, names, descend(residuals, x, low, high, rounds))


def descend(residuals: Callable[[Floats], Floats], x: Floats, low: Floats, high: Floats, rounds: int) -> Floats:
    """(2) Where the loss (1) of some residuals is least, from x on and within bounds; all are logarithms."""
    error, damping = residuals(x), 1e-2
    for _ in range(rounds):
        slope = np.stack([(residuals(_moved(x, i)) - error) / 1e-3 for i in range(len(x))], axis=1)
        trust = np.minimum(1.0, HUBER / np.maximum(np.abs(error), 1e-9))
        normal, pull = (slope * trust[:, None]).T @ slope, (slope * trust[:, None]).T @ error
        better = False
        for _ in range(8):
            tried = np.clip(x - np.linalg.solve(normal + np.diag(damping * np.diag(normal) + 1e-6), pull), low, high)
            tried = np.clip(tried, x - 0.7, x + 0.7)
            here = residuals(tried)
            if _loss(here) < _loss(error):
                better = True
                break
            damping *= 4
        if not better:
            break
        gained = 1 - _loss(here) / _loss(error)
        x, error, damping = tried, here, max(damping / 4, 1e-6)
        if gained < 1e-4:
            break
    return x


def _loss(error: Floats) -> float:
    size = np.abs(error)
    return float(np.sum(np.where(size < HUBER, size**2, 2 * HUBER * size - HUBER**2)))


def _moved(x: Floats, i: int) -> Floats:
    moved = x.copy()
    moved[i] += 1e-3
    return moved


def _get(data: Mapping[str, Any], name: str) -> float:
    value: Any = data
    for key in name.split("."):
        value = value[key]
    return float(value)


def _with(data: Data, names: Sequence[str], x: Floats) -> Data:
    changed = deepcopy(data)
    for name, value in zip(names, np.exp(x).tolist(), strict=True):
        *tables, key = name.split(".")
        inner = changed
        for table in tables:
            inner = inner[table]
        inner[key] = value
    return changed
