"""Where a growing function reaches a value."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["where_reached"]


def where_reached(value: Callable[[float], float], wanted: float, low: float, high: float, rounds: int = 50) -> float:
    """The x between two positive numbers at which ``value(x)``, which grows, is ``wanted``; low or high where it is so nowhere.

    Args:
        rounds: so often the ratio of high to low is halved, as a logarithm.
    """
    for _ in range(rounds):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if value(middle) < wanted else (low, middle)
    return (low * high) ** 0.5
