"""The numbers of an update rule, and what they must be."""

from __future__ import annotations

from planner.ir.errors import InvalidProgram

__all__ = ["Number", "check_betas", "refuse_negative"]

Number = None | bool | int | float | str
"""A number of an update op, or a choice."""


def refuse_negative(rule: object, *names: str) -> None:
    """Check that these numbers of a rule are 0 or more.

    Raises:
        InvalidProgram: one is negative or NaN.
    """
    for name in names:
        if not getattr(rule, name) >= 0:
            raise InvalidProgram(f"{type(rule).__name__}({name}={getattr(rule, name)}) must be at least 0")


def check_betas(rule: object, betas: tuple[float, float]) -> None:
    """Check that a rule has two decay rates, each in [0, 1).

    Raises:
        InvalidProgram: it has not.
    """
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise InvalidProgram(f"{type(rule).__name__}(betas={betas}): two numbers in [0, 1) are needed")
