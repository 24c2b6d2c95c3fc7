"""Which times can ever be short of memory: the others leave the problem, and intervals shrink to places in the list of those that stay.

held(t, x) <= limit must be kept only at t where
  (1) the largest amounts of all nodes alive at t add up to more than the limit            -> crop_times
  (2) no neighbouring time holds as much or more whatever the choice                       -> not_dominated

A strategy that breaks the limit even when all other nodes hold their least is forbidden.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.ir.errors import OutOfMemory
from planner.solve.problem import Floats, Ints
from planner.solve.reduce.elimination import Elimination

__all__ = ["crop_times", "out_of_memory"]


def crop_times(work: Elimination) -> None:
    """Rewrite all demands of ``work`` onto the times that can bind; demands without such a time vanish.

    Raises:
        OutOfMemory: some time needs more than the limit whatever is chosen.
    """
    tables = work.tables.tables
    held = [(v, a, b, number) for v in sorted(work.demands) for a, b, number in work.demands[v]]
    cuts = np.unique([t for _, a, b, _ in held for t in (a, b)] + [t for a, b, _ in work.constant_demands for t in (a, b)]).astype(np.int64)
    if not cuts.size:
        return
    # Piece i is [cuts[i], cuts[i + 1]); within it nothing changes.
    base = _profile(cuts, work.constant_demands)
    tops = [top for v in sorted(work.demands) for top in _largest([(a, b, tables[number]) for a, b, number in work.demands[v]])]
    most = base + _profile(cuts, tops)
    limit = work.problem.limit
    if base.max() > limit:
        raise out_of_memory(float(base.max()), limit)
    stays = np.flatnonzero(most > limit)
    spans = np.searchsorted(cuts, np.array([(a, b) for _, a, b, _ in held], dtype=np.int64).reshape(-1, 2))
    stays = stays[not_dominated(base[stays], np.searchsorted(stays, spans))]
    spans = np.searchsorted(stays, spans)
    work.demands.clear()
    work.constant_demands = [(i, i + 1, float(base[t])) for i, t in enumerate(stays) if base[t]]
    joined: dict[tuple[int, int, int], int] = {}
    for (v, _, _, number), (a, b) in zip(held, spans.tolist(), strict=True):
        if a < b:
            joined[v, a, b] = work.tables.add(joined[v, a, b], number) if (v, a, b) in joined else number
    for (v, a, b), number in joined.items():
        alone = tables[number] + base[stays[a:b]].max() > limit  # too much even if all others hold their least
        if alone.any() and (alone & np.isfinite(tables[work.factors[v][v,]])).any():
            work.add_table((v,), work.tables.number(np.where(alone, np.inf, 0.0)))
        work.add_demand(v, a, b, number)


def out_of_memory(least: float, limit: float) -> OutOfMemory:
    """The refusal: at least so much is held at one time whatever is chosen."""
    return OutOfMemory(
        f"no layout fits: at least {least:.6g} bytes ({least / 1e9:.3g} GB) are needed at one time, more than the limit {limit:.6g} "
        f"({limit / 1e9:.3g} GB); take more or larger devices, more stages, smaller micro-batches, or raise the limit"
    )


def _profile(cuts: Ints, held: Sequence[tuple[int, int, float]]) -> Floats:
    """Sum at every piece."""
    change = np.zeros(cuts.size)
    if held:
        starts, stops, amounts = (np.array(column) for column in zip(*held, strict=True))
        np.add.at(change, np.searchsorted(cuts, starts), amounts)
        np.add.at(change, np.searchsorted(cuts, stops), -amounts)
    return np.cumsum(change)


def _largest(demands: Sequence[tuple[int, int, Floats]]) -> list[tuple[int, int, float]]:
    """The most that one node can hold, piece by piece; less than the sum of its demands' largest amounts where they exclude each other."""
    if len(demands) < 2:
        return [(a, b, float(amount.max())) for a, b, amount in demands]
    cuts = sorted({t for a, b, _ in demands for t in (a, b)})
    place = {t: i for i, t in enumerate(cuts)}
    change = np.zeros((len(cuts), demands[0][2].size))
    for a, b, amount in demands:
        change[place[a]] += amount
        change[place[b]] -= amount
    tops = np.cumsum(change, axis=0).max(axis=1)
    return [(a, b, float(top)) for a, b, top in zip(cuts, cuts[1:], tops, strict=False) if top > 0]


def not_dominated(base: Floats, spans: Ints) -> Ints:
    """Indices of the times that are not dominated, of times 0 .. len(base) - 1 and intervals [a, b) among them.

    Where no interval begins between two times, the first holds all that the second holds; where none ends, the second does.
    """
    spans = spans[spans[:, 0] < spans[:, 1]]
    begun = np.cumsum(np.bincount(spans[:, 0], minlength=base.size + 1))
    ended = np.cumsum(np.bincount(spans[:, 1], minlength=base.size + 1))
    candidates: list[int] = []
    for i in range(base.size):
        while candidates and ended[candidates[-1]] == ended[i] and base[candidates[-1]] <= base[i]:
            candidates.pop()
        if not (candidates and begun[candidates[-1]] == begun[i] and base[i] <= base[candidates[-1]]):
            candidates.append(i)
    return np.array(candidates, dtype=np.int64)
