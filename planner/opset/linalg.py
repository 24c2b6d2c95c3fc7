"""Matrix products:  mm = mk,kn->mn   bmm = bmk,bkn->bmn   matmul = (the same leading dims)mk,kn->mn   addmm = bias + mm.

mm: S(0),B -> S(0)   B,S(1) -> S(1)   S(1),S(0) -> P   P,B -> P   B,P -> P
"""

from __future__ import annotations

from planner.ir.errors import InvalidProgram
from planner.ir.graph import Op
from planner.opset.elementwise import broadcast_factors
from planner.opset.rule import FactorRule, Types
from planner.opset.spec import OpSpec, labels, shape_of

__all__ = ["TABLE"]

_EACH = (frozenset({0}), frozenset({1}))


def _mm(op: Op, types: Types) -> FactorRule:
    return FactorRule(operands=(("m", "k"), ("k", "n")), results=(("m", "n"),), linear=_EACH)


def _bmm(op: Op, types: Types) -> FactorRule:
    return FactorRule(operands=(("b", "m", "k"), ("b", "k", "n")), results=(("b", "m", "n"),), linear=_EACH)


def _matmul(op: Op, types: Types) -> FactorRule:
    """The two operands have the same leading dims and nothing broadcasts: the front end makes such products of bmm."""
    left, right = shape_of(op, types, 0), shape_of(op, types, 1)
    if len(left) < 3 or left[:-2] != right[:-2] or left[-1] != right[-2]:
        raise InvalidProgram(
            f"{op.where()}: {left} by {right}; only products with the same leading dims have a rule, write the others with bmm"
        )
    batch = labels(len(left) - 2)
    return FactorRule(operands=((*batch, "m", "k"), (*batch, "k", "n")), results=((*batch, "m", "n"),), linear=_EACH)


def _mv(op: Op, types: Types) -> FactorRule:
    return FactorRule(operands=(("m", "k"), ("k",)), results=(("m",),), linear=_EACH)


def _dot(op: Op, types: Types) -> FactorRule:
    return FactorRule(operands=(("k",), ("k",)), results=((),), linear=_EACH)


def _addmm(op: Op, types: Types) -> FactorRule:
    """Every part adds the bias: if k is split, the bias must be P; the op passes P only if the bias and one factor are both P."""
    shape = (shape_of(op, types, 1)[0], shape_of(op, types, 2)[1])
    bias = broadcast_factors(shape_of(op, types, 0), shape, ("m", "n"))
    joint = (frozenset({0, 1}), frozenset({0, 2}))
    return FactorRule(operands=(bias, ("m", "k"), ("k", "n")), results=(("m", "n"),), addends=frozenset({0}), linear=joint)


def _mm_flop(op: Op, types: Types) -> int:
    """2 m n k, from the last two operands; times b if they are batched."""
    left, right = (types[v] for v in op.inputs[-2:])
    return 2 * left.numel * (right.shape[-1] if right.ndim > 1 else 1)


TABLE: dict[str, OpSpec] = {
    "aten.mm.default": OpSpec(rule=_mm, flop=_mm_flop),
    "aten.bmm.default": OpSpec(rule=_bmm, flop=_mm_flop),
    "aten.matmul.default": OpSpec(rule=_matmul, flop=_mm_flop),
    "aten.mv.default": OpSpec(rule=_mv, flop=_mm_flop),
    "aten.dot.default": OpSpec(rule=_dot, flop=_mm_flop),
    "aten.addmm.default": OpSpec(rule=_addmm, flop=_mm_flop),
}
