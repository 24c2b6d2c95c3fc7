"""The refusal that ends tracing, whichever tracer it comes from."""

from __future__ import annotations

from planner.ir.errors import InvalidProgram

__all__ = ["InvalidForBothTracers"]


class InvalidForBothTracers(InvalidProgram):
    """A refusal that the other tracer would say worse, or not see."""
