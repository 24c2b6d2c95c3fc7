"""Softmax and layer norm: the normalized dims are whole, every other dim is a factor."""

from __future__ import annotations

from functools import partial

from planner.ir.errors import InvalidProgram
from planner.ir.graph import Op, Ref
from planner.opset.rule import FactorRule, Factors, Types
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


def _layer_norm_factors(op: Op, types: Types, x: int) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """(factors of operand ``x``, those of its normalized dims, those of its mean and rstd); the argument behind x is normalized_shape."""
    names = labels(len(shape_of(op, types, x)))
    border = len(names) - _normalized_ndim(op, x + 1)
    return names, names[border:], names[:border] + ("",) * (len(names) - border)


def _layer_norm(op: Op, types: Types) -> FactorRule:
    """x, normalized_shape, weight?, bias?, eps -> y, mean, rstd (both with 1s in the normalized dims)."""
    names, inner, moments = _layer_norm_factors(op, types, 0)
    affine = (inner,) * (len(op.inputs) - 1)
    return FactorRule(operands=(names, *affine), results=(names, moments, moments), whole=frozenset(inner))


def _layer_norm_backward(op: Op, types: Types) -> FactorRule:
    """grad, x, normalized_shape, mean, rstd, weight?, bias?, output_mask -> dx, dweight (P over the rows), dbias (P over the rows)."""
    names, inner, moments = _layer_norm_factors(op, types, 1)
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


def _weight_norm(op: Op, types: Types) -> FactorRule:
    """v, g (1s but on dim), dim=0 -> w = g v / |v|, and |v| of the slices of dim."""
    direction, length = _slices(op, types, 0, 2)
    both = frozenset({0, 1})
    return FactorRule(
        operands=(direction, length),
        results=(direction, length),
        linear=(frozenset({1}),),
        depends=(both, frozenset({0})),
    )


def _weight_norm_backward(op: Op, types: Types) -> FactorRule:
    """grad of w, v, g, |v|, dim -> grads of v and g."""
    direction, length = _slices(op, types, 1, 4)
    return FactorRule(operands=(direction, direction, length, length), results=(direction, length), linear=(frozenset({0}),))


def _slices(op: Op, types: Types, operand: int, at: int) -> tuple[Factors, Factors]:
    """Factors of a tensor whose slices of one dim have a norm each, and of these norms: that dim is a factor, the others are whole."""
    shape = shape_of(op, types, operand)
    kept = dim_of(op, at, "dim", 0, len(shape))
    names = tuple("d" if d == kept else "" for d in range(len(shape)))
    return names, names


def _batch_norm_inference(op: Op, types: Types) -> FactorRule:
    """x [n, c, *x], weight?, bias?, running mean, running var -> y, two empty tensors: elementwise, all vectors along c."""
    names = labels(len(shape_of(op, types, 0)))
    channels = (names[1:2],) * (len(op.inputs) - 1)
    empty = tuple(("",) * types[name].ndim if name is not None else () for name in op.outputs[1:])
    return FactorRule(
        operands=(names, *channels),
        results=(names, *empty),
        depends=(frozenset(range(len(op.inputs))), *(frozenset[int](),) * len(empty)),
    )


def _several(op: Op, types: Types) -> int:
    """About five operations per element: maximum or mean, difference, exponential or square, sum, scale."""
    return 5 * elementwise_flop(op, types)


TABLE: dict[str, OpSpec] = {
    "aten._weight_norm_interface.default": OpSpec(rule=_weight_norm, flop=_several),
    "aten._weight_norm_interface_backward.default": OpSpec(rule=_weight_norm_backward, flop=_several),
    "aten._native_batch_norm_legit_no_training.default": OpSpec(rule=_batch_norm_inference, flop=_several),
    "aten._softmax.default": OpSpec(rule=partial(_softmax, dim_arg=1, linear=False), flop=_several),
    "aten._log_softmax.default": OpSpec(rule=partial(_softmax, dim_arg=1, linear=False), flop=_several),
    "aten._softmax_backward_data.default": OpSpec(rule=partial(_softmax, dim_arg=2, linear=True), flop=_several),
    "aten._log_softmax_backward_data.default": OpSpec(rule=partial(_softmax, dim_arg=2, linear=True), flop=_several),
    "aten.native_layer_norm.default": OpSpec(rule=_layer_norm, flop=_several),
    "aten.native_layer_norm_backward.default": OpSpec(rule=_layer_norm_backward, flop=_several),
}
