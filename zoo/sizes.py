"""Limits of a model's size, asked before it is built: one with more blocks than a search can ever look at is refused, not waited for."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature

from planner.frontend import Program
from planner.ir.errors import InvalidProgram

__all__ = ["MOST_BLOCKS", "limited"]

MOST_BLOCKS = 10_000
"""Ten times the deepest model that is planned anywhere; two million take hours to build alone."""

_BLOCKS = ("layers", "depth")


def limited(factory: Callable[..., Program]) -> Callable[..., Program]:
    """The factory, which refuses more than MOST_BLOCKS of them (InvalidProgram)."""
    names = signature(factory)

    @wraps(factory)
    def checked(*sizes: object, **options: object) -> Program:
        try:
            given = names.bind(*sizes, **options).arguments
        except TypeError:
            return factory(*sizes, **options)  # which says what is wrong with them
        for name in _BLOCKS:
            number = given.get(name)
            if isinstance(number, int) and number > MOST_BLOCKS:
                raise InvalidProgram(
                    f"{factory.__name__} with {name} = {number}: a model of more than {MOST_BLOCKS} blocks is not built; "
                    f"give {name} of at most {MOST_BLOCKS}"
                )
        return factory(*sizes, **options)

    return checked
