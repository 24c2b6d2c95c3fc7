"""Intervals of time: pairs of begin and end, in seconds."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["Span", "disjoint"]

Span = tuple[float, float]


def disjoint(spans: Iterable[Span]) -> list[Span]:
    """The union of the spans, sorted, in as few spans as it can be written with."""
    found: list[Span] = []
    for begin_s, end_s in sorted(spans):
        if found and begin_s <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end_s)
        else:
            found.append((begin_s, end_s))
    return found
