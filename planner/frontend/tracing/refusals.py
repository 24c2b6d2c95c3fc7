"""The refusal that ends tracing: where one of the two tracers raises it, the other is not tried."""

from __future__ import annotations

from planner.ir.errors import InvalidProgram

__all__ = ["InvalidForBothTracers"]


class InvalidForBothTracers(InvalidProgram):
    """A refusal of a module that holds for both tracers: the other one would accept what it must not, or name a cause that is less clear."""
