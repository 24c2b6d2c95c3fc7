"""Split conformal prediction on log(predicted / given): half widths, in logarithms, that hold for a share LEVEL of exchangeable points.

(1) width   of n errors the one in place ceil(LEVEL (n + 1)) by size     [Vovk et al. 2005; Lei et al. 2018]     -> conformal_width()
(2) split   a group's width is that of all other groups' errors; of one group alone, that of the other points    -> left_out_widths()
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import ceil, inf

__all__ = ["FEWEST", "LEVEL", "conformal_width", "left_out_widths"]

LEVEL = 0.9
"""The share of points that an interval is to hold."""
FEWEST = ceil(LEVEL / (1 - LEVEL))
"""So many errors have one in place (1); fewer say nothing about LEVEL."""


def conformal_width(errors: Sequence[float]) -> float:
    """(1); infinite for fewer than FEWEST errors.

    >>> round(conformal_width([0.01 * i for i in range(1, 20)]), 3)
    0.18
    """
    sizes = sorted(map(abs, errors))
    place = ceil(LEVEL * (len(sizes) + 1) - 1e-9) - 1
    return sizes[place] if place < len(sizes) else inf


def left_out_widths(errors: Sequence[float], groups: Sequence[Hashable]) -> list[float]:
    """(2): for each point the half width that points outside of its group give; infinite where they are too few."""
    names = set(groups)
    if len(names) < 2:
        return [conformal_width([*errors[:i], *errors[i + 1 :]]) for i in range(len(errors))]
    widths = {name: conformal_width([e for e, other in zip(errors, groups, strict=True) if other != name]) for name in names}
    return [widths[name] for name in groups]
