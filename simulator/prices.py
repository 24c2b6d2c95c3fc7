"""What a simulator accepts from a cost model."""

from __future__ import annotations

import math

from planner.ir.errors import InvalidCluster

__all__ = ["checked_s"]


def checked_s(duration_s: float, what: str) -> float:
    """A price of the cost model, in seconds.

    Raises:
        InvalidCluster: negative or not finite.
    """
    if not (math.isfinite(duration_s) and duration_s >= 0):
        raise InvalidCluster(f"the cost model says that {what} takes {duration_s} s; times must be finite and >= 0, calibrate again")
    return float(duration_s)
