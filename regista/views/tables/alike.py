"""Numbers of ranks, one row for all ranks that have the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

__all__ = ["alike_ranks"]

_Value = TypeVar("_Value")


def alike_ranks(values: Mapping[str, _Value]) -> tuple[tuple[str, _Value], ...]:
    """(which ranks, their value), in the order of the first rank of each.

    Args:
        values: number of a rank, as text -> what it has; hashable.

    >>> alike_ranks({"0": 7, "1": 7, "10": 7, "2": 7, "3": 5})
    (('ranks 0 .. 2, 10', 7), ('rank 3', 5))
    """
    ranks_of: dict[_Value, list[int]] = {}
    for rank in sorted(int(name) for name in values):
        ranks_of.setdefault(values[str(rank)], []).append(rank)
    return tuple((_label(ranks), value) for value, ranks in ranks_of.items())


def _label(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    if len(runs) > 3:
        return f"{len(ranks):,} ranks from {ranks[0]} on"
    return "ranks " + ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} .. {run[-1]}" for run in runs)
