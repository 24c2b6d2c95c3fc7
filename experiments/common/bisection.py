"""Bisection of increasing functions."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["where_reached"]


def where_reached(value: Callable[[float], float], wanted: float, low: float, high: float, rounds: int = 50) -> float:
    """Solve ``value(x) = wanted`` for an increasing ``value``, by bisection between two positive numbers; without a solution, the nearer of them.

    Args:
        rounds: so often the ratio of high to low is halved, as a logarithm.
    """
    for _ in range(rounds):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if value(middle) < wanted else (low, middle)
    return (low * high) ** 0.5
