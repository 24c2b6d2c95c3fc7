"""The refusal after which the other tracer is not tried."""

from __future__ import annotations

from planner.ir.errors import InvalidProgram

__all__ = ["InvalidForBothTracers"]


class InvalidForBothTracers(InvalidProgram):
    """A refusal of a module that holds for both tracers: the other one would accept what it must not, or name a cause that is less clear."""
