"""Reductions: a reduced dim is a contracted factor; any other dim is a factor of operand and result.

How the parts of a split reduced dim combine:

    sum  over a split dim -> P(sum)      amax -> P(max)      amin -> P(min)
    all, any: no signature splits a reduced dim, because booleans have no sum
    mean: no signature splits a reduced dim, because each part would divide by its own count (a sum and a division may be split)
"""

from __future__ import annotations

from functools import partial

from planner.ir.graph import Op
from planner.ir.sbp import ReduceOp
from planner.opset.rule import FactorRule, Types
from planner.opset.spec import OpSpec, dim_of, dims_of, integer, labels, shape_of

__all__ = ["TABLE"]

_FIRST = (frozenset({0}),)


def _reduction(op: Op, types: Types, *, by: ReduceOp | None, linear: bool = False, whole: bool = False) -> FactorRule:
    """x, dims=None, keepdim=False.  ``whole``: an overload without a dim list."""
    names = labels(len(shape_of(op, types, 0)))
    dims = tuple(range(len(names))) if whole else dims_of(op, 1, "dim", len(names))
    keepdim = not whole and bool(integer(op, 2, "keepdim", 0))
    result = tuple("" if d in dims else f for d, f in enumerate(names) if keepdim or d not in dims)
    reduce = {names[d]: by for d in dims}
    return FactorRule(operands=(names,), results=(result,) * len(op.outputs), reduce=reduce, linear=_FIRST if linear else ())


def _along(op: Op, types: Types, *, linear: bool, at: int = 1, default: int = 0) -> FactorRule:
    """Scans and sorts: the result has the dim they run over (argument ``at``), which must be whole."""
    names = labels(len(shape_of(op, types, 0)))
    whole = frozenset({names[dim_of(op, at, "dim", default, len(names))]}) if names else frozenset()
    return FactorRule(operands=(names,), results=(names,) * len(op.outputs), whole=whole, linear=_FIRST if linear else ())


TABLE: dict[str, OpSpec] = {
    "aten.sum.dim_IntList": OpSpec(rule=partial(_reduction, by=ReduceOp.SUM, linear=True)),
    "aten.sum.default": OpSpec(rule=partial(_reduction, by=ReduceOp.SUM, linear=True, whole=True)),
    "aten.mean.dim": OpSpec(rule=partial(_reduction, by=None, linear=True)),
    "aten.mean.default": OpSpec(rule=partial(_reduction, by=None, linear=True, whole=True)),
    "aten.amax.default": OpSpec(rule=partial(_reduction, by=ReduceOp.MAX)),
    "aten.amin.default": OpSpec(rule=partial(_reduction, by=ReduceOp.MIN)),
    "aten.max.default": OpSpec(rule=partial(_reduction, by=ReduceOp.MAX, whole=True)),
    "aten.min.default": OpSpec(rule=partial(_reduction, by=ReduceOp.MIN, whole=True)),
    "aten.max.dim": OpSpec(rule=partial(_reduction, by=None)),
    "aten.min.dim": OpSpec(rule=partial(_reduction, by=None)),
    "aten.argmax.default": OpSpec(rule=partial(_reduction, by=None)),
    "aten.argmin.default": OpSpec(rule=partial(_reduction, by=None)),
    "aten.all.default": OpSpec(rule=partial(_reduction, by=None, whole=True)),
    "aten.all.dim": OpSpec(rule=partial(_reduction, by=None)),
    "aten.any.default": OpSpec(rule=partial(_reduction, by=None, whole=True)),
    "aten.any.dim": OpSpec(rule=partial(_reduction, by=None)),
    "aten.prod.default": OpSpec(rule=partial(_reduction, by=None, whole=True)),
    "aten.prod.dim_int": OpSpec(rule=partial(_reduction, by=None)),
    "aten.cumsum.default": OpSpec(rule=partial(_along, linear=True)),
    "aten.cumprod.default": OpSpec(rule=partial(_along, linear=False)),
    "aten.sort.default": OpSpec(rule=partial(_along, linear=False, default=-1)),
    "aten.topk.default": OpSpec(rule=partial(_along, linear=False, at=2, default=-1)),
}
