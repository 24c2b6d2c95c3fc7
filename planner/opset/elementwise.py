"""Elementwise ops with broadcasting: every result dim is a factor; a broadcast dim of size 1 has none.

    add[d0,d1 ; d1 -> d0,d1]      S(0),B -> S(0)    S(1),S(0) -> S(1)    P,P -> P (add is linear in both jointly)

Each row names a function of the op that says in which operands the op is linear, because those pass P(sum).  It looks at the op's
arguments: ``add(x, y)`` is linear, ``add(x, 1)`` is affine.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from planner.ir.graph import ACCUMULATE, OUTPUT, Dt, Op, Ref
from planner.opset.rule import FactorRule, Factors, Types
from planner.opset.spec import OpSpec, argument, labels, result_shape

__all__ = ["TABLE", "broadcast_factors", "elementwise"]

Linear = tuple[frozenset[int], ...]


def broadcast_factors(shape: tuple[int, ...], result: tuple[int, ...], names: Factors) -> Factors:
    """Factors of an operand that broadcasts to ``result``: aligned from the right, none where a 1 is broadcast to a larger extent."""
    offset = len(result) - len(shape)
    return tuple("" if extent == 1 != result[d + offset] else names[d + offset] for d, extent in enumerate(shape))


def elementwise(op: Op, types: Types, *, linear: Callable[[Op, Types], Linear]) -> FactorRule:
    shape = result_shape(op, types)
    names = labels(len(shape))
    operands = tuple(broadcast_factors(types[v].shape, shape, names) for v in op.inputs)
    return FactorRule(operands=operands, results=(names,) * len(op.outputs), linear=linear(op, types))


def _none(op: Op, types: Types) -> Linear:
    return ()


def _first(op: Op, types: Types) -> Linear:
    """The op is linear in its first argument: the numerator, or the incoming gradient."""
    return (frozenset({0}),) if isinstance(op.args[0], Ref) else ()


def _jointly(op: Op, types: Types) -> Linear:
    """a + alpha b is linear in (a, b) together; with a number in place of one of them it is affine."""
    return (frozenset({0, 1}),) if len(op.inputs) == 2 else ()


def _each(op: Op, types: Types) -> Linear:
    """A product is linear in each operand while the others stay as they are."""
    return tuple(frozenset({k}) for k in range(len(op.inputs)))


def _branches(op: Op, types: Types) -> Linear:
    """where(mask, a, b) is linear in (a, b) together; with a number in place of one of them only if the number is 0."""
    branches = (argument(op, 1, "self"), argument(op, 2, "other"))
    return (frozenset(range(1, len(op.inputs))),) if all(isinstance(b, Ref) or b == 0 for b in branches) else ()


def _fill(op: Op, types: Types) -> Linear:
    """Filling with a tensor is jointly linear in (self, value); filling with a number only if the number is 0."""
    if isinstance(argument(op, 2, "value"), Ref):
        return (frozenset({0, 2}),)
    return (frozenset({0}),) if argument(op, 2, "value") == 0 else ()


def _cast(op: Op, types: Types) -> Linear:
    """Casting numbers to floating point is linear (up to rounding); casting to integers or to bool is not.

    A complex number that is cast to a real one loses its imaginary part, and the real part of a sum is the sum of the real parts.
    """
    dtype = argument(op, 1, "dtype")
    target = dtype.dtype if isinstance(dtype, Dt) else types[op.inputs[0]].dtype
    return (frozenset({0}),) if target.is_floating or target.is_complex else ()


def _rows(names: str, linear: Callable[[Op, Types], Linear]) -> dict[str, OpSpec]:
    return {f"aten.{name}": OpSpec(rule=partial(elementwise, linear=linear)) for name in names.split()}


TABLE: dict[str, OpSpec] = (
    _rows(
        """exp.default expm1.default log.default log1p.default sqrt.default rsqrt.default reciprocal.default abs.default sign.default
        sgn.default sin.default cos.default tanh.default sigmoid.default erf.default silu.default relu.default gelu.default
        leaky_relu.default elu.default softplus.default hardtanh.default clamp.default clamp_min.default clamp_max.default floor.default
        tan.default sinh.default cosh.default asin.default acos.default atan.default erfc.default exp2.default log2.default log10.default
        hardswish.default hardsigmoid.default mish.default trunc.default fmod.Scalar fmod.Tensor atan2.default
        clamp.Tensor clamp_min.Tensor clamp_max.Tensor
        ceil.default round.default isnan.default isinf.default pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar
        maximum.default minimum.default add.Scalar sub.Scalar rsub.Scalar
        eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor eq.Scalar ne.Scalar lt.Scalar le.Scalar gt.Scalar ge.Scalar
        logical_and.default logical_or.default logical_xor.default logical_not.default
        bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor bitwise_not.default bitwise_and.Scalar bitwise_or.Scalar
        div.Tensor_mode div.Scalar_mode floor_divide.default remainder.Scalar remainder.Tensor
        acosh.default asinh.default atanh.default lgamma.default digamma.default polygamma.default erfinv.default sinc.default i0.default
        special_i1.default special_i0e.default special_i1e.default special_log_ndtr.default special_ndtri.default special_entr.default
        special_erfcx.default special_xlog1py.default special_zeta.default igamma.default igammac.default nan_to_num.default frac.default
        logit.default hardshrink.default softshrink.default hypot.default fmax.default fmin.default copysign.Tensor copysign.Scalar
        heaviside.default signbit.default isposinf.default isneginf.default bitwise_xor.Scalar
        bitwise_left_shift.Tensor bitwise_right_shift.Tensor gcd.default nextafter.default angle.default""",
        _none,
    )
    | _rows(
        "neg.default clone.default mul.Scalar div.Scalar lift_fresh_copy.default deg2rad.default rad2deg.default _conj_copy.default", _first
    )
    | _rows(
        """div.Tensor threshold_backward.default tanh_backward.default sigmoid_backward.default gelu_backward.default
        silu_backward.default leaky_relu_backward.default elu_backward.default hardtanh_backward.default softplus_backward.default
        hardswish_backward.default hardsigmoid_backward.default mish_backward.default
        hardshrink_backward.default softshrink_backward.default logit_backward.default polar.default""",
        _first,
    )
    | _rows("add.Tensor sub.Tensor", _jointly)
    | _rows("mul.Tensor", _each)
    | _rows("where.self where.ScalarOther where.ScalarSelf", _branches)
    | _rows("masked_fill.Scalar masked_fill.Tensor", _fill)
    | _rows("_to_copy.default", _cast)
    | {ACCUMULATE: OpSpec(rule=partial(elementwise, linear=_first)), OUTPUT: OpSpec(rule=partial(elementwise, linear=_none))}
)
