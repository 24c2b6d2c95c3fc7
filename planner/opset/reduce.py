"""Reductions: a reduced dim is a contracted factor; any other dim is a factor of operand and result.

How the parts of a split reduced dim combine:

    sum  over a split dim -> P(sum)      amax -> P(max)      amin -> P(min)
    all, any: no signature splits a reduced dim, because booleans have no sum
    regista.check: every part looks at its own elements, and the zeros that say that they hold add up
    mean: no signature splits a reduced dim, because each part would divide by its own count (a sum and a division may be split)
"""

from __future__ import annotations

from functools import partial

from planner.ir.graph import Op
from planner.ir.sbp import ReduceOp
from planner.opset.rule import FactorRule, Types
from planner.opset.spec import OpSpec, argument, dim_of, dims_of, integer, labels, shape_of

__all__ = ["TABLE"]

_FIRST = (frozenset({0}),)
_NOT_BY_POSITION = 99
"""The place of an argument that is given by its name alone."""


def _reduction(op: Op, types: Types, *, by: ReduceOp | None, linear: bool = False, whole: bool = False, at: int = 1) -> FactorRule:
    """x, dims=None, keepdim=False.  ``whole``: an overload without a dim list.   ``at``: where the dims stand."""
    names = labels(len(shape_of(op, types, 0)))
    dims = tuple(range(len(names))) if whole else dims_of(op, at, "dim", len(names))
    keepdim = not whole and bool(integer(op, at + 1, "keepdim", 0))
    result = tuple("" if d in dims else f for d, f in enumerate(names) if keepdim or d not in dims)
    reduce = {names[d]: by for d in dims}
    return FactorRule(operands=(names,), results=(result,) * len(op.outputs), reduce=reduce, linear=_FIRST if linear else ())


def _one_of_a_dim(op: Op, types: Types, *, at: int) -> FactorRule:
    """x, ..., dim=-1, keepdim=False -> a value and its place: an order statistic, which needs the whole dim."""
    names = labels(len(shape_of(op, types, 0)))
    gone = dim_of(op, at, "dim", -1, len(names))
    keepdim = bool(integer(op, at + 1, "keepdim", 0))
    kept = tuple("" if d == gone else f for d, f in enumerate(names) if keepdim or d != gone)
    return FactorRule(operands=(names,), results=(kept,) * len(op.outputs), whole=frozenset(names[gone : gone + 1]))


def _histogram(op: Op, types: Types) -> FactorRule:
    """x, bins, min, max: the counts of parts add up; where min and max are equal the range is that of all values, which no part knows."""
    names = labels(len(shape_of(op, types, 0)))
    given = argument(op, 2, "min", 0) != argument(op, 3, "max", 0)
    return FactorRule(operands=(names,), results=(("",),), whole=frozenset() if given else frozenset(names))


def _check(op: Op, types: Types) -> FactorRule:
    """mask, wanted, text -> 0."""
    names = labels(len(shape_of(op, types, 0)))
    return FactorRule(operands=(names,), results=((),), reduce=dict.fromkeys(names, ReduceOp.SUM))


def _of_slices(op: Op, types: Types) -> FactorRule:
    """renorm(x, p, dim, limit): each slice of dim is scaled by its own norm, which needs all the other dims."""
    names = labels(len(shape_of(op, types, 0)))
    kept = names[dim_of(op, 2, "dim", 0, len(names))]
    return FactorRule(operands=(names,), results=(names,), whole=frozenset(names) - {kept})


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
    "regista.check": OpSpec(rule=_check),
    "aten.all.default": OpSpec(rule=partial(_reduction, by=None, whole=True)),
    "aten.all.dim": OpSpec(rule=partial(_reduction, by=None)),
    "aten.any.default": OpSpec(rule=partial(_reduction, by=None, whole=True)),
    "aten.any.dim": OpSpec(rule=partial(_reduction, by=None)),
    "aten.prod.default": OpSpec(rule=partial(_reduction, by=None, whole=True)),
    "aten.prod.dim_int": OpSpec(rule=partial(_reduction, by=None)),
    "aten.cumsum.default": OpSpec(rule=partial(_along, linear=True)),
    "aten.cumprod.default": OpSpec(rule=partial(_along, linear=False)),
    "aten.logcumsumexp.default": OpSpec(rule=partial(_along, linear=False)),
    "aten.cummax.default": OpSpec(rule=partial(_along, linear=False)),
    "aten.cummin.default": OpSpec(rule=partial(_along, linear=False)),
    "aten.any.dims": OpSpec(rule=partial(_reduction, by=None)),
    "aten.all.dims": OpSpec(rule=partial(_reduction, by=None)),
    "aten.aminmax.default": OpSpec(rule=partial(_reduction, by=None, at=_NOT_BY_POSITION)),
    "aten.count_nonzero.default": OpSpec(rule=partial(_reduction, by=ReduceOp.SUM)),
    "aten.count_nonzero.dim_IntList": OpSpec(rule=partial(_reduction, by=ReduceOp.SUM)),
    "aten.nansum.default": OpSpec(rule=partial(_reduction, by=ReduceOp.SUM)),
    "aten.kthvalue.default": OpSpec(rule=partial(_one_of_a_dim, at=2)),
    "aten.median.dim": OpSpec(rule=partial(_one_of_a_dim, at=1)),
    "aten.nanmedian.dim": OpSpec(rule=partial(_one_of_a_dim, at=1)),
    "aten.mode.default": OpSpec(rule=partial(_one_of_a_dim, at=1)),
    "aten.histc.default": OpSpec(rule=_histogram),
    "aten.renorm.default": OpSpec(rule=_of_slices),
    "aten.sort.stable": OpSpec(rule=partial(_along, linear=False, default=-1, at=_NOT_BY_POSITION)),
    "aten.sort.default": OpSpec(rule=partial(_along, linear=False, default=-1)),
    "aten.topk.default": OpSpec(rule=partial(_along, linear=False, at=2, default=-1)),
}
