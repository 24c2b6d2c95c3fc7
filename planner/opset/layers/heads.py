"""What attention as a whole and in steps have in common: factors of queries, keys and values, and the work per score."""

from __future__ import annotations

from planner.ir.graph import Op
from planner.opset.rule import Factors, Types
from planner.opset.spec import shape_of

__all__ = ["OUT", "ROW", "backward_flop", "forward_flop", "operand_factors", "shared_heads"]

OUT, ROW = ("n", "h", "s", "d"), ("n", "h", "s")
"""Factors of the result and of its numbers per row."""


def shared_heads(heads: int, groups: int) -> str:
    """The factor of heads of keys: that of the queries' heads, unless a single head serves several."""
    return "h" if groups > 1 or heads == 1 else ""


def operand_factors(op: Op, types: Types, first: int, keys: str) -> tuple[Factors, Factors, Factors]:
    """Factors of q, k, v, of which q is the operand ``first``, and ``keys`` the factor of keys."""
    heads, groups = (shape_of(op, types, first + k)[1] for k in (0, 1))
    shared = shared_heads(heads, groups)
    return ("n", "h", "s", "e"), ("n", shared, keys, "e"), ("n", shared, keys, "d")


def forward_flop(op: Op, types: Types, pairs: int) -> int:
    """Per score two products, and four to scale, compare, exponentiate and add up; q, k, v are the first operands."""
    e, d = _widths(op, types, 0)
    return pairs * (2 * (e + d) + 4)


def backward_flop(op: Op, types: Types, pairs: int) -> int:
    """Per score five products, of which three are with e (the score again, dQ, dK) and two with d (dO V^T, dV), and five besides."""
    e, d = _widths(op, types, 1)
    return pairs * (2 * (3 * e + 2 * d) + 5)


def _widths(op: Op, types: Types, first: int) -> tuple[int, int]:
    return shape_of(op, types, first)[3], shape_of(op, types, first + 2)[3]
