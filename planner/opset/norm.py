"""Softmax and layer norm: the normalized dims are whole, every other dim is a factor."""

from __future__ import annotations

from functools import partial

from planner.ir.errors import InvalidProgram
from planner.ir.graph import Op, Ref
from planner.opset.rule import FactorRule, Types
from planner.opset.spec import OpSpec, argument, dim_of, elementwise_flop, labels, shape_of

__all__ = ["TABLE"]


def _softmax(op: Op, types: Types, *, dim_arg: int, linear: bool) -> FactorRule:
    names = labels(len(shape_of(op, types, 0)))
    whole = frozenset({names[dim_of(op, dim_arg, "dim", -1, len(names))]}) if names else frozenset()
    passes = (frozenset({0}),) if linear else ()
    return FactorRule(operands=(names,) * len(op.inputs), results=(names,), whole=whole, linear=passes)


def _normalized_ndim(op: Op, position: int) -> int:
    shape = argument(op, position, "normalized_shape")
    if not isinstance(shape, tuple):
        raise InvalidProgram(f"{op.where()}: normalized_shape is {shape!r}, a list of sizes is needed")
    return len(shape)


def _layer_norm(op: Op, types: Types) -> FactorRule:
    """x, normalized_shape, weight?, bias?, eps -> y, mean, rstd (both with 1s in the normalized dims)."""
    names = labels(len(shape_of(op, types, 0)))
    border = len(names) - _normalized_ndim(op, 1)
    inner = names[border:]
    moments = names[:border] + ("",) * len(inner)
    affine = (inner,) * (len(op.inputs) - 1)
    return FactorRule(operands=(names, *affine), results=(names, moments, moments), whole=frozenset(inner))


def _layer_norm_backward(op: Op, types: Types) -> FactorRule:
    """grad, x, normalized_shape, mean, rstd, weight?, bias?, output_mask -> dx, dweight (P over the rows), dbias (P over the rows)."""
    names = labels(len(shape_of(op, types, 1)))
    border = len(names) - _normalized_ndim(op, 2)
    inner = names[border:]
    moments = names[:border] + ("",) * len(inner)
    affine = (inner,) * (len(op.inputs) - 4)
    has_weight = isinstance(argument(op, 5, "weight"), Ref)
    dx = frozenset(range(5 if has_weight else 4))
    return FactorRule(
        operands=(names, names, moments, moments, *affine),
        results=(names, inner, inner),
        whole=frozenset(inner),
        linear=(frozenset({0}),),
        depends=(dx, frozenset({0, 1, 2, 3}), frozenset({0})),
    )


def _several(op: Op, types: Types) -> int:
    """About five operations per element: maximum or mean, difference, exponential or square, sum, scale."""
    return 5 * elementwise_flop(op, types)


TABLE: dict[str, OpSpec] = {
    "aten._softmax.default": OpSpec(rule=partial(_softmax, dim_arg=1, linear=False), flop=_several),
    "aten._log_softmax.default": OpSpec(rule=partial(_softmax, dim_arg=1, linear=False), flop=_several),
    "aten._softmax_backward_data.default": OpSpec(rule=partial(_softmax, dim_arg=2, linear=True), flop=_several),
    "aten._log_softmax_backward_data.default": OpSpec(rule=partial(_softmax, dim_arg=2, linear=True), flop=_several),
    "aten.native_layer_norm.default": OpSpec(rule=_layer_norm, flop=_several),
    "aten.native_layer_norm_backward.default": OpSpec(rule=_layer_norm_backward, flop=_several),
}
