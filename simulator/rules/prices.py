"""What a simulator accepts from a cost model, and who may change a price on the way."""

from __future__ import annotations

import math
from collections.abc import Callable

from planner.ir.errors import InvalidCluster
from planner.ir.protocols import Contended, CostModel

__all__ = ["Factor", "checked_s", "felt_s", "slowdown_of"]

Factor = Callable[[str, int, int], float]
"""(task id, rank, number of the act) -> how many times its price the act takes."""


def checked_s(duration_s: float, what: str) -> float:
    """A price of the cost model, in seconds.

    Raises:
        InvalidCluster: negative or not finite.
    """
    if not (math.isfinite(duration_s) and duration_s >= 0):
        raise InvalidCluster(f"the cost model says that {what} takes {duration_s} s; times must be finite and >= 0, calibrate again")
    return float(duration_s)


def felt_s(price_s: float, factor: Factor | None, task: str, rank: int, number: int) -> float:
    """What an act takes: its price, times what the factor says of it.  Raises InvalidCluster: as checked_s."""
    return price_s if factor is None else checked_s(price_s * factor(task, rank, number), f"act {number} of {task} on rank {rank}")


def slowdown_of(cost: CostModel) -> float:
    """How many times as long computing takes while its rank communicates; 1 where the cost model does not say."""
    return cost.compute_slowdown if isinstance(cost, Contended) else 1.0
