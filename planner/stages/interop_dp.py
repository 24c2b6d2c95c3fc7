"""The shortest path inside the inter-op search: least sum of times when no stage may exceed given limits.

    F(s, k, d, m) = min over i, a, m' of  t(k..i, m, a) + c(i, m, m') + F(s-1, i+1, d - |m|, m')                         (1) -> least_sum()

is the least sum of s stages that hold layers k.. on the last d devices, the first of them on sub-mesh m.  s, the stages from here to the end,
decides memory; m decides the transfer from the stage before (Alpa's F(s, k, d) knows neither transfers nor, so, m).  Only variants a that fit
in memory and within the limits count, so the best a is known before (1) for each (s, k, i, m).

Devices are taken in rank order: a sub-mesh inside a node may not straddle two, one of whole nodes begins at a node.  So d says where a stage
begins, and whether a transfer leaves the node.  Cost: S K^2 M D additions, vectorised over i and d; sub-meshes of whole nodes only touch
every devices_per_node-th d.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np
from numpy.typing import NDArray

from planner.stages.pipeline import Interop, StagePrice, Submesh

__all__ = ["Chosen", "Prices", "Tables", "build_tables", "least_sum"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Prices = Mapping[tuple[int, int, Submesh], tuple[StagePrice, ...]]


@dataclass(frozen=True, slots=True)
class Chosen:
    """A stage in the tables' numbers: sub-mesh ``shape``, begins at ``device``; ``leaves`` says whether its output leaves the node."""

    first: int
    last: int
    shape: int
    device: int
    variant: int
    transfer_s: float


@dataclass(frozen=True, slots=True)
class Tables:
    """Arrays over (variant, sub-mesh, first, last), infinite where there is no such variant.

    onward_s: (sender, receiver, last, devices left).  columns[m]: numbers of devices d at which a stage on sub-mesh m may begin.
    total: devices in turn, v times over.  exact: number of stages, where it is fixed.
    """

    problem: Interop
    sizes: tuple[int, ...]
    micro_batch_s: Floats
    once_s: Floats
    fixed_bytes: Floats
    activation_bytes: Floats
    onward_s: Floats
    columns: tuple[Ints, ...]
    total: int
    exact: int | None
    in_flight: tuple[int, ...]
    known: dict[tuple[float, int], tuple[Floats, Ints]] = field(default_factory=dict)


def build_tables(problem: Interop, shapes: Sequence[Submesh], prices: Prices, exact: int | None) -> Tables:
    """Everything that does not depend on the limits."""
    layers, v, node = problem.num_layers, problem.virtual, problem.devices_per_node
    variants = max((len(found) for found in prices.values()), default=0)
    micro_batch_s, once_s, fixed, activation = (np.full((variants, len(shapes), layers, layers), inf) for _ in range(4))
    for m, shape in enumerate(shapes):
        for first in range(layers):
            for last in range(first, layers):
                for a, price in enumerate(prices[first, last, shape]):
                    micro_batch_s[a, m, first, last] = price.micro_batch_s
                    once_s[a, m, first, last] = price.per_step_s
                    fixed[a, m, first, last] = v * price.state_bytes + price.workspace_bytes
                    activation[a, m, first, last] = v * price.activation_bytes_per_micro_batch
    total = problem.num_devices * v
    begins = (total - np.arange(total + 1)) % problem.num_devices
    leaves = ((begins % node == 0) | (not problem.rank_order)) & (problem.num_nodes > 1)
    onward_s = np.zeros((len(shapes), len(shapes), layers, total + 1))
    for m, sender in enumerate(shapes):
        for n, receiver in enumerate(shapes):
            for last in range(layers - 1):
                onward_s[m, n, last, leaves] = problem.transfer_s(last, sender, receiver, True)
                onward_s[m, n, last, ~leaves] = problem.transfer_s(last, sender, receiver, False)
    columns = []
    for shape in shapes:
        inside = begins % node
        legal = inside + shape.devices <= node if shape.nodes == 1 else inside == 0
        fits = (begins + shape.size <= problem.num_devices) & (np.arange(total + 1) >= shape.size)
        columns.append(np.flatnonzero(fits & (legal | (not problem.rank_order))))
    return Tables(
        problem=problem,
        sizes=tuple(shape.size for shape in shapes),
        micro_batch_s=micro_batch_s,
        once_s=once_s,
        fixed_bytes=fixed,
        activation_bytes=activation,
        onward_s=onward_s,
        columns=tuple(columns),
        total=total,
        exact=exact,
        in_flight=problem.in_flight(exact),
    )


def _fastest(tables: Tables, in_flight: int, once_limit_s: float) -> tuple[Floats, Ints]:
    """Seconds and number of the fastest variant that fits in memory and under the once-per-step limit, per (sub-mesh, first, last)."""
    key = once_limit_s, in_flight
    if key not in tables.known:
        needs = tables.fixed_bytes + in_flight * tables.activation_bytes
        legal = (needs <= tables.problem.memory_bytes) & (tables.once_s <= once_limit_s) & np.isfinite(tables.micro_batch_s)
        seconds = np.where(legal, tables.micro_batch_s, inf)
        tables.known[key] = seconds.min(axis=0), seconds.argmin(axis=0)
    return tables.known[key]


def least_sum(tables: Tables, limit_s: float, once_limit_s: float) -> tuple[float, tuple[Chosen, ...]]:
    """(1): the least sum of t + c with every t <= limit_s and every u <= once_limit_s, and its stages; (inf, ()) where there is none."""
    layers, total = tables.problem.num_layers, tables.total
    sums: list[Floats] = []  # F(s, m, k, d) for s = 1, 2, ...
    stage_s: list[Floats] = []
    best_s, best_count = inf, 0
    for s, in_flight in enumerate(tables.in_flight, start=1):
        seconds, _ = _fastest(tables, in_flight, once_limit_s)
        stage_s.append(np.where(seconds <= limit_s, seconds, inf))
        here: Floats = np.full((len(tables.sizes), layers + 1, total + 1), inf)
        for m, size in enumerate(tables.sizes):
            columns = tables.columns[m]
            ahead = _ahead(tables, sums[-1] if sums else None, m, columns - size)
            ends = np.flatnonzero(np.isfinite(ahead).any(axis=1))
            if len(ends):
                stop = int(ends[-1]) + 1
                here[m, :stop, columns] = (stage_s[-1][m, :stop, ends, None] + ahead[ends, None, :]).min(axis=0).T
        sums.append(here)
        if (tables.exact is None or s == tables.exact) and (found := float(here[:, 0, total].min())) < best_s:
            best_s, best_count = found, s
        if not np.isfinite(here).any():
            break
    stages: list[Chosen] = []
    k, d = 0, total
    m = int(sums[best_count - 1][:, 0, total].argmin()) if best_count else 0
    for s in range(best_count, 0, -1):
        left = d - tables.sizes[m]
        before = sums[s - 2] if s > 1 else None
        i = int((stage_s[s - 1][m, k] + _ahead(tables, before, m, np.array([left]))[:, 0]).argmin())
        variant = int(_fastest(tables, tables.in_flight[s - 1], once_limit_s)[1][m, k, i])
        after = 0 if before is None else int((tables.onward_s[m, :, i, left] + before[:, i + 1, left]).argmin())
        transfer_s = 0.0 if before is None else float(tables.onward_s[m, after, i, left])
        stages.append(Chosen(k, i, m, (total - d) % tables.problem.num_devices, variant, transfer_s))
        k, d, m = i + 1, left, after
    return best_s, tuple(stages)


def _ahead(tables: Tables, rest: Floats | None, m: int, left: Ints) -> Floats:
    """What follows a stage on sub-mesh m that ends at layer i and leaves d devices: min over m' of c + F (shape: layers x len(left))."""
    if rest is None:  # the last stage: no layer and no device is left
        ahead: Floats = np.full((tables.problem.num_layers, len(left)), inf)
        ahead[-1, left == 0] = 0.0
        return ahead
    following: Floats = (tables.onward_s[m][:, :, left] + rest[:, 1:, left]).min(axis=0)
    return following
