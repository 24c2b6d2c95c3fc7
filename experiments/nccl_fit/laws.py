"""The constants of an interconnect's laws, fitted to rows: logarithms of times by logarithms of constants (experiments.common.robust_fit).
Errors beyond 20 % count linearly, so that a law that is wrong somewhere does not bend the rest.

A point is the median of the rows that repeat it.  Constants that no row touches keep their start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from experiments.common.robust_fit import Errors, Floats, fitted
from experiments.nccl_fit.rows import Row
from planner.cost.nccl.groups import Group, Kind
from planner.cost.nccl.interconnect import parse_interconnect
from planner.cost.nccl.laws import candidates

__all__ = ["Point", "descend", "fit_constants", "law_s", "points_of"]

HUBER = 0.2
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


def descend(residuals: Errors, start: Floats, low: Floats, high: Floats, rounds: int) -> Floats:
    """Logarithms of constants with the least loss; derivatives are made at most so often."""
    return fitted(residuals, start, low, high, scale=HUBER, apart=1e-3, rounds=2 * rounds, reach=0.7).x


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
