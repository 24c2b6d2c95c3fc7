"""Points whose process ended before their row was there."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TypeAlias

from planner.ir.errors import RegistaError
from regista.sweep.measure import Columns
from regista.sweep.point import Point

__all__ = ["MOST_LOSSES", "Done", "PointsLost", "Work", "WorkersLost", "missing_package", "refuse_lost", "tell_lost"]

Work: TypeAlias = Callable[[Point], Columns]
"""What is done with a point, in another process: a function of a module."""

Done: TypeAlias = tuple[Point, Columns]

MOST_LOSSES = 3
"""A point whose process was lost so often is not begun again."""


class PointsLost(UserWarning):
    """Workers ended; their points are done again."""


class WorkersLost(RegistaError):
    """Workers end again and again with the same points."""


def tell_lost(points: Sequence[Point], where: str) -> None:
    """Say that points are done again."""
    warnings.warn(f"{where} ended before {len(points)} points were done; they are done again", PointsLost, stacklevel=2)


def refuse_lost(points: Sequence[Point], where: str) -> WorkersLost:
    """Points that end every process that takes them."""
    labels = ", ".join(point.label for point in points[:3])
    return WorkersLost(
        f"{where} ended {MOST_LOSSES} times without a row, last with {len(points)} points ({labels}{', ...' if len(points) > 3 else ''}); rows "
        "that were done are kept and the same command goes on with them: give each process more memory, or leave those points out with --only"
    )


def missing_package(package: str, on: str) -> RegistaError:
    """An optional package is not there."""
    return RegistaError(f"--on {on} needs the package {package!r}, which is not installed; pip install 'regista[{on}]', or use --on local")
