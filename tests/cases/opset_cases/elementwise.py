"""Cases of elementwise ops: unary, binary, logical, gradients of activations, where, casts; complex numbers and FFT."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from tests.cases.opset_cases.drawing import F64, I64, Builder, Draw, add_each
from tests.oracles.sbp_check import Case, make_case

CASES: dict[str, Builder] = {}
_each = partial(add_each, CASES)


def _unary(t: str, d: Draw) -> Iterator[Case]:
    yield make_case(t, d.positive(d.size(), d.size(), 6))
    yield make_case(t, d.positive(12) - 0.3)


def _unary_scalar(t: str, d: Draw) -> Iterator[Case]:
    for scalar in (2.0, 3):
        yield make_case(t, d.positive(6, d.size()), scalar)
    yield make_case(t, d.real(d.size(), d.size()).round(), 0.0) if "div" not in t and "remainder" not in t else make_case(t, d.real(6), 0.5)


def _binary(t: str, d: Draw) -> Iterator[Case]:
    a, b, c = d.sizes(3)
    yield make_case(t, d.positive(a, b, 6), d.positive(b, 6))
    yield make_case(t, d.positive(a, 1, c), d.positive(1, b, c))
    yield make_case(t, d.positive(a, b), d.positive())
    x = d.positive(6, b)
    yield make_case(t, x, x)
    if t in ("aten.add.Tensor", "aten.sub.Tensor"):
        yield make_case(t, d.real(a, 6), d.real(a, 6), alpha=2)
    if t in ("aten.add.Tensor", "aten.sub.Tensor", "aten.mul.Tensor", "aten.div.Tensor"):
        yield make_case(t, d.real(a, 6), 3.0)
        yield make_case(t, d.index(9, a, 6), d.index(9, a, 6) + 1)
        yield make_case(t, d.real(6, a), d.real(6, 1).float())


_each(
    """exp.default expm1.default log.default log1p.default sqrt.default rsqrt.default reciprocal.default abs.default sign.default
    sgn.default sin.default cos.default tanh.default sigmoid.default erf.default silu.default relu.default gelu.default leaky_relu.default
    elu.default softplus.default hardtanh.default floor.default ceil.default round.default isnan.default isinf.default
    neg.default clone.default tan.default sinh.default cosh.default asin.default acos.default atan.default erfc.default exp2.default
    log2.default log10.default hardswish.default hardsigmoid.default mish.default trunc.default
    alias.default detach.default lift_fresh_copy.default regista.accumulate regista.output asinh.default lgamma.default digamma.default
    sinc.default i0.default special_i1.default special_i0e.default special_i1e.default special_log_ndtr.default special_ndtri.default
    special_entr.default special_erfcx.default erfinv.default atanh.default acosh.default nan_to_num.default frac.default logit.default
    hardshrink.default softshrink.default deg2rad.default rad2deg.default signbit.default isposinf.default isneginf.default angle.default""",
    _unary,
)
_each(
    """pow.Tensor_Scalar add.Scalar sub.Scalar rsub.Scalar eq.Scalar ne.Scalar lt.Scalar le.Scalar gt.Scalar ge.Scalar mul.Scalar
    div.Scalar remainder.Scalar fmod.Scalar clamp.default clamp_min.default clamp_max.default copysign.Scalar""",
    _unary_scalar,
)
_each(
    """maximum.default minimum.default eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor add.Tensor sub.Tensor mul.Tensor
    div.Tensor pow.Tensor_Tensor remainder.Tensor floor_divide.default fmod.Tensor atan2.default clamp.Tensor clamp_min.Tensor clamp_max.Tensor
    special_xlog1py.default special_zeta.default igamma.default igammac.default hypot.default fmax.default fmin.default copysign.Tensor
    heaviside.default nextafter.default""",
    _binary,
)


def _logical(t: str, d: Draw) -> Iterator[Case]:
    a, b = d.sizes(2)
    operands = 1 if "not" in t else 2
    yield make_case(t, *[d.mask(a, b, 6) for _ in range(operands)])
    if "bitwise" in t:
        yield make_case(t, *[d.index(16, 6, b) for _ in range(operands)])


_each(
    """logical_and.default logical_or.default logical_xor.default logical_not.default bitwise_and.Tensor bitwise_or.Tensor
    bitwise_xor.Tensor bitwise_not.default""",
    _logical,
)
_each("polygamma.default", lambda t, d: iter((make_case(t, 1, d.positive(6, d.size())),)))
_each(
    "bitwise_left_shift.Tensor bitwise_right_shift.Tensor gcd.default",
    lambda t, d: iter((make_case(t, d.index(64, 6, d.size()), d.index(4, 6, 1)),)),
)
_each("bitwise_and.Scalar bitwise_or.Scalar bitwise_xor.Scalar", lambda t, d: iter((make_case(t, d.index(16, 6, d.size()), 5),)))
_each("pow.Scalar", lambda t, d: iter((make_case(t, 2.0, d.real(6, d.size())),)))
_each("div.Scalar_mode", lambda t, d: iter((make_case(t, d.real(6, d.size()), 0.7, rounding_mode="floor"),)))
_each("div.Tensor_mode", lambda t, d: iter((make_case(t, d.real(6, d.size()), d.positive(6, 1), rounding_mode="trunc"),)))


def _gradient(*extra: object) -> Callable[[str, Draw], Iterator[Case]]:
    def build(t: str, d: Draw) -> Iterator[Case]:
        a, b = d.sizes(2)
        yield make_case(t, d.real(a, b, 6), d.real(a, b, 6), *extra)

    return build


_each(
    """tanh_backward.default sigmoid_backward.default silu_backward.default gelu_backward.default hardswish_backward.default
    hardsigmoid_backward.default mish_backward.default""",
    _gradient(),
)
_each("threshold_backward.default", _gradient(0))
_each("hardshrink_backward.default softshrink_backward.default", _gradient(0.5))
_each("logit_backward.default", lambda t, d: iter((make_case(t, d.real(6, 4), torch.sigmoid(d.real(6, 4)), 0.1),)))
_each("polar.default", lambda t, d: iter((make_case(t, d.real(6, d.size()), d.real(6, 1)),)))
_each("leaky_relu_backward.default", _gradient(0.1, False))
_each("elu_backward.default", lambda t, d: iter((make_case(t, d.real(6, 12), 1.0, 1.0, 1.0, False, d.real(6, 12)),)))
_each("hardtanh_backward.default", _gradient(-1.0, 1.0))
_each("softplus_backward.default", _gradient(1, 20))


def _where(t: str, d: Draw) -> Iterator[Case]:
    a, b = d.sizes(2)
    if t == "aten.where.self":
        yield make_case(t, d.mask(a, 1, 6), d.real(b, 6), d.real(a, b, 6))
        yield make_case(t, d.mask(a, 6), d.real(a, 6), d.real())
        return
    for number in (0, 2.0):
        branches = (d.real(b, 6), number) if t.endswith("Other") else (number, d.real(b, 6))
        yield make_case(t, d.mask(a, b, 6), *branches)


def _masked_fill(t: str, d: Draw) -> Iterator[Case]:
    a, b = d.sizes(2)
    values = (d.real(),) if t.endswith("Tensor") else (0, -1.5, float("-inf"))
    for value in values:
        yield make_case(t, d.real(a, b, 6), d.mask(b, 6), value)


def _cast(t: str, d: Draw) -> Iterator[Case]:
    yield make_case(t, d.real(6, d.size()), dtype=I64)
    yield make_case(t, d.real(6, d.size()), dtype=F64)
    yield make_case(t, d.index(9, d.size(), 6), dtype=F64)
    yield make_case(t, d.mask(6, d.size()), dtype=F64)
    yield make_case(t, d.real(12))


def complex_of(d: Draw, *shape: int) -> Tensor:
    return torch.complex(d.real(*shape), d.real(*shape))


def _complex(t: str, d: Draw) -> Iterator[Case]:
    a = d.size()
    match t.split(".")[1]:
        case "complex":
            yield make_case(t, d.real(6, a), d.real(6, a))
            yield make_case(t, d.real(6, a), d.real(a))
        case "view_as_complex_copy":
            yield make_case(t, d.real(6, a, 2))
        case _:
            yield make_case(t, complex_of(d, 6, a))


def _fft(t: str, d: Draw) -> Iterator[Case]:
    a = d.size()
    for dims in ([2], [0], [0, 2], [1, 2]):
        match t.split(".")[1]:
            case "_fft_r2c":
                yield make_case(t, d.real(6, a, 6), dims, 1, True)
                yield make_case(t, d.real(6, a, 6), dims, 0, False)
            case "_fft_c2r":
                yield make_case(t, complex_of(d, 6, a, 6), dims, 2, 10)
            case _:
                yield make_case(t, complex_of(d, 6, a, 6), dims, 1, a % 2 == 0)


_each("complex.default view_as_complex_copy.default view_as_real_copy.default _conj_copy.default", _complex)
_each("_fft_r2c.default _fft_c2r.default _fft_c2c.default", _fft)
_each("where.self where.ScalarOther where.ScalarSelf", _where)
_each("masked_fill.Scalar masked_fill.Tensor", _masked_fill)
_each("_to_copy.default", _cast)
