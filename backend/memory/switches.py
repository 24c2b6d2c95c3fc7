"""Environment variables that turn a part of the memory management on or off, for tests and measurements."""

from __future__ import annotations

import os
from collections.abc import Sequence

from planner.ir.errors import InvalidProgram

__all__ = ["switch"]


def switch(name: str, allowed: Sequence[str], default: str) -> str:
    """The value of an environment variable that turns something on or off for tests and measurements.

    Raises:
        InvalidProgram: a value that means nothing.
    """
    value = os.environ.get(name, default)
    if value not in allowed:
        raise InvalidProgram(f"{name}={value} means nothing; it is one of {', '.join(allowed)}")
    return value
