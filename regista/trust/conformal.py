"""Split conformal prediction on log(predicted / given): half widths, in logarithms, that hold for a share LEVEL of exchangeable points.

(1) width     of n errors the one in place ceil(LEVEL (n + 1)) by size     [Vovk et al. 2005; Lei et al. 2018]     -> conformal_width()
(2) nearest   the NEAREST points of the own set; where it has fewer, points of other sets that the same constants predict, which are farther by
              OTHER, join                                                                                          -> nearest_errors()
(3) split     a group's width is that of the errors outside of it; of one group alone, that of the other points    -> left_out_widths()
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import ceil, inf

__all__ = ["FEWEST", "LEVEL", "NEAREST", "Place", "Scored", "conformal_width", "left_out_widths", "nearest_errors"]

LEVEL = 0.9
"""The share of points that an interval is to hold."""
FEWEST = ceil(LEVEL / (1 - LEVEL) - 1e-9)
"""So many errors have one in place (1); fewer say nothing about LEVEL."""
NEAREST, OTHER = 60, 4.0
"""How many neighbours speak; by how much (a squared distance) points of another set or machine are farther."""
Place = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Scored:
    """A point with its error log(predicted / given), the group that is left out with it, and where it lies among others; (): at one place."""

    error: float
    group: Hashable
    place: Place = ()


def conformal_width(errors: Sequence[float]) -> float:
    """(1); infinite for fewer than FEWEST errors.

    >>> round(conformal_width([0.01 * i for i in range(1, 20)]), 3)
    0.18
    """
    sizes = sorted(map(abs, errors))
    place = ceil(LEVEL * (len(sizes) + 1) - 1e-9) - 1
    return sizes[place] if place < len(sizes) else inf


def nearest_errors(at: Place, own: Sequence[tuple[Place, float]], elsewhere: Sequence[tuple[Place, float]] = ()) -> list[float]:
    """(2): errors of the points that speak about one at ``at``; of points equally far all.

    >>> nearest_errors((0.0,), [((0.0,), 0.1)] * NEAREST, [((0.0,), 0.2)]).count(0.2), nearest_errors((0.0,), [((1.0,), 0.1)], [((0.0,), 0.2)])
    (0, [0.1, 0.2])
    """

    def distance(there: Place) -> float:
        return sum((a - b) ** 2 for a, b in zip(at, there, strict=True))

    away = [(distance(there), error) for there, error in own]
    if len(own) < NEAREST:
        away += [(OTHER + distance(there), error) for there, error in elsewhere]
    ranked = sorted(far for far, _ in away)
    return [error for far, error in away if far <= ranked[min(NEAREST, len(ranked)) - 1]]


def left_out_widths(points: Sequence[Scored], elsewhere: Sequence[Scored] = ()) -> list[float]:
    """(3): for each point the half width that points outside of its group give; infinite where they are too few.

    Args:
        elsewhere: of other sets, predicted by the same constants.   Those of the same group are left out there, too.
    """
    one_group = len({point.group for point in points}) < 2
    widths: dict[Hashable, float] = {}
    for i, point in enumerate(points):
        key = i if one_group else (point.group, point.place)
        if key not in widths:
            own = [(p.place, p.error) for j, p in enumerate(points) if (j != i if one_group else p.group != point.group)]
            more = [(p.place, p.error) for p in elsewhere if p.group != point.group] if len(own) < NEAREST else []
            widths[key] = conformal_width(nearest_errors(point.place, own, more))
    return [widths[i if one_group else (point.group, point.place)] for i, point in enumerate(points)]
