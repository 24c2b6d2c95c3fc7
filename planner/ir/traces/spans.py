"""Intervals of time: pairs of begin and end, in seconds."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["Span", "disjoint"]

Span = tuple[float, float]


def disjoint(spans: Iterable[Span]) -> list[Span]:
    """The union of the spans, sorted, in as few spans as it can be written with."""
    merged: list[Span] = []
    for begin_s, end_s in sorted(spans):
        if merged and begin_s <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end_s)
        else:
            merged.append((begin_s, end_s))
    return merged
