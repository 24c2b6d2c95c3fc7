"""Cases for every rule of the op set: builders of real arguments on random small shapes, in float64 so that sums agree closely."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from tests.oracles.sbp_check import Case, make_case

__all__ = ["CASES", "Draw", "cases"]

F64, I64 = torch.float64, torch.int64


class Draw:
    """Seeded sizes and tensors."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)

    def size(self) -> int:
        return self.rng.choice((1, 2, 3, 4, 6, 6, 12))

    def sizes(self, count: int) -> list[int]:
        return [self.size() for _ in range(count)]

    def real(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=F64)

    def positive(self, *shape: int) -> Tensor:
        return self.real(*shape).abs() + 0.1

    def index(self, high: int, *shape: int) -> Tensor:
        return torch.randint(0, high, shape, generator=self.generator)

    def mask(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator) < 0.5


Builder = Callable[[Draw], Iterator[Case]]
CASES: dict[str, Builder] = {}


def cases(target: str, seed: int) -> tuple[Case, ...]:
    """All cases of one rule for one seed."""
    return tuple(CASES[target](Draw(seed)))


def _each(names: str, build: Callable[[str, Draw], Iterator[Case]]) -> None:
    for name in names.split():
        target = name if name.startswith("regista.") else f"aten.{name}"
        CASES[target] = lambda draw, target=target: build(target, draw)  # type: ignore[misc]


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
    alias.default detach.default lift_fresh_copy.default regista.accumulate asinh.default lgamma.default digamma.default
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


def _matmul(t: str, d: Draw) -> Iterator[Case]:
    m, k, n, b = d.sizes(4)
    match t.split(".")[1]:
        case "mm":
            yield make_case(t, d.real(m, k), d.real(k, n))
            yield make_case(t, d.real(m, 6), d.real(6, n))
            square = d.real(6, 6)
            yield make_case(t, square, square)
        case "bmm":
            yield make_case(t, d.real(b, m, k), d.real(b, k, n))
            yield make_case(t, d.real(6, m, 6), d.real(6, 6, n))
        case "matmul":
            yield make_case(t, d.real(b, 6, m, k), d.real(b, 6, k, n))
            yield make_case(t, d.real(6, 3, m, 6), d.real(6, 3, 6, 6))
        case "mv":
            yield make_case(t, d.real(m, 6), d.real(6))
        case "dot":
            yield make_case(t, d.real(6), d.real(6))
        case _:
            yield make_case(t, d.real(n), d.real(m, 6), d.real(6, n))
            yield make_case(t, d.real(m, 1), d.real(m, k), d.real(k, n), beta=2, alpha=3)


_each("mm.default bmm.default matmul.default mv.default dot.default addmm.default", _matmul)


def _matrix(t: str, d: Draw) -> Iterator[Case]:
    """What is done to each matrix of a batch; signs and phases are those of the kernel, the same on every part."""
    for batch in ((), (6,), (6, d.size())):
        a = d.real(*batch, 4, 4) + 4 * torch.eye(4, dtype=F64)
        b, lower = d.real(*batch, 4, 3), a.tril()
        match t.split(".")[1]:
            case "linalg_lu_solve":
                factors, pivots, _ = torch.ops.aten.linalg_lu_factor_ex(a)
                yield make_case(t, factors, pivots, b)
            case "_linalg_solve_ex":
                yield make_case(t, a, b)
            case "linalg_solve_triangular":
                yield make_case(t, lower, b, upper=False)
            case "linalg_cholesky_ex" | "_linalg_eigh":
                yield make_case(t, a @ a.mT)
            case "cholesky_solve":
                yield make_case(t, b, lower)
            case "linalg_householder_product":
                yield make_case(t, d.real(*batch, 4, 3), d.real(*batch, 3))
            case "_linalg_svd":
                yield make_case(t, a)
                yield make_case(t, d.real(*batch, 3, 4), True)
            case _:
                yield make_case(t, a)


def _distances(t: str, d: Draw) -> Iterator[Case]:
    for batch in ((), (6,), (6, d.size())):
        for order in (2.0,) if "euclid" in t else (1.0, 2.0, 3.0, float("inf")):
            x, y = d.real(*batch, 6, 12), d.real(*batch, 12, 12)
            if "euclid" in t:
                yield make_case(t, x, y)
            elif "forward" in t:
                yield make_case(t, x, y, order, 2)
                yield make_case(t, x, d.real(12, 12), order, None)
            else:
                far = torch.ops.aten._cdist_forward(x, y, order, 2)
                yield make_case(t, d.real(*far.shape), x, y, order, far)


def _grouped_mm(t: str, d: Draw) -> Iterator[Case]:
    """Groups of 3, 0 and 5 rows."""

    def narrow(*shape: int) -> Tensor:
        return d.real(*shape).float()

    ends = torch.tensor([3, 3, 8], dtype=torch.int32)
    yield make_case(t, narrow(8, 16), narrow(3, 16, 48), ends)
    yield make_case(t, narrow(3, 48, 16), narrow(16, 8), ends)
    yield make_case(t, narrow(48, 8), narrow(8, 16), ends)
    yield make_case(t, narrow(6, 8, 16), narrow(6, 16, 24))


def _cross(t: str, d: Draw) -> Iterator[Case]:
    yield make_case(t, d.real(6, 3, 4), d.real(6, 3, 4), dim=1)
    yield make_case(t, d.real(6, 4, 3), d.real(6, 1, 3))


def _trilinear(t: str, d: Draw) -> Iterator[Case]:
    """As a bilinear layer calls it: x [n, i], weight [o, i, j], y [n, j]."""
    n = d.size()
    yield make_case(t, d.real(n, 6), d.real(12, 6, 4), d.real(n, 4), [1, 3], [0], [1, 2], [2, 3])


_each(
    """linalg_inv_ex.default _linalg_det.default _linalg_slogdet.default linalg_lu_factor_ex.default linalg_lu_solve.default
    _linalg_solve_ex.default linalg_solve_triangular.default linalg_cholesky_ex.default cholesky_solve.default linalg_qr.default
    linalg_householder_product.default _linalg_svd.default _linalg_eigh.default""",
    _matrix,
)
_each("_cdist_forward.default _cdist_backward.default _euclidean_dist.default", _distances)
_each("linalg_cross.default", _cross)
_each("_grouped_mm.default", _grouped_mm)
_each("_trilinear.default", _trilinear)


def _reduce(t: str, d: Draw) -> Iterator[Case]:
    a, b = d.sizes(2)
    x = d.real(a, b, 6)
    if t in ("aten.max.dim", "aten.min.dim", "aten.argmax.default", "aten.argmin.default"):
        yield make_case(t, x, 1)
        yield make_case(t, x, -1, True)
        return
    if t.endswith(".default") and "am" not in t:
        yield make_case(t, x)
        yield make_case(t, d.real())
        return
    yield make_case(t, x, [1])
    yield make_case(t, x, [0, -1], True)
    yield make_case(t, x, [])
    if "sum" in t:
        yield make_case(t, d.mask(6, a), [0])
        yield make_case(t, x, [2], False, dtype=F64)


_each(
    """sum.dim_IntList sum.default mean.dim mean.default amax.default amin.default max.default min.default max.dim min.dim
    argmax.default argmin.default""",
    _reduce,
)


def _truth(t: str, d: Draw) -> Iterator[Case]:
    """all, any, prod: over everything or over one dim."""
    x = d.real(6, d.size(), 12) if "prod" in t else d.mask(6, d.size(), 12)
    if t.endswith("default"):
        yield make_case(t, x)
        return
    yield make_case(t, x, -1)
    yield make_case(t, x, 0, True)


_each("all.default all.dim any.default any.dim prod.default prod.dim_int", _truth)


def _statistic(t: str, d: Draw) -> Iterator[Case]:
    """One value of a dim and its place; whole numbers repeat, so that there are ties."""
    rank: tuple[object, ...] = (2,) if "kth" in t else ()
    yield make_case(t, d.real(6, d.size(), 6), *rank, 1 if rank == () else 2)
    yield make_case(t, d.real(6, 12).round(), *rank, 0, True)


def _truths(t: str, d: Draw) -> Iterator[Case]:
    yield make_case(t, d.mask(6, d.size(), 12), [0, 2])
    yield make_case(t, d.mask(6, d.size(), 12), [-1], True)
    yield make_case(t, d.mask(6, 12))


def _counted(t: str, d: Draw) -> Iterator[Case]:
    x = d.real(6, d.size(), 12).round()
    if t.endswith("IntList"):
        yield make_case(t, x, [0, 2])
        return
    yield make_case(t, x)
    yield make_case(t, x, 2)


def _nansum(t: str, d: Draw) -> Iterator[Case]:
    x = d.real(6, d.size(), 12)
    x[0, 0, 0] = float("nan")
    yield make_case(t, x)
    yield make_case(t, x, [0, -1], True)


def _histogram(t: str, d: Draw) -> Iterator[Case]:
    yield make_case(t, d.real(6, 12), 4, -1, 1)
    yield make_case(t, d.real(12), 4)


_each("kthvalue.default median.dim nanmedian.dim mode.default", _statistic)
_each("any.dims all.dims", _truths)
_each("count_nonzero.default count_nonzero.dim_IntList", _counted)
_each("nansum.default", _nansum)
_each("histc.default", _histogram)
_each("aminmax.default", lambda t, d: iter((make_case(t, d.real(6, d.size(), 6), dim=1), make_case(t, d.real(6, 4)))))
_each("renorm.default", lambda t, d: iter((make_case(t, d.real(6, d.size(), 6), 2, 1, 1.0), make_case(t, d.real(6, 4), 1, -2, 0.5))))
_each(
    "sort.stable",
    lambda t, d: iter(
        (make_case(t, d.real(6, d.size(), 6).round(), stable=True, dim=1, descending=True), make_case(t, d.real(6, 6), stable=True))
    ),
)
_each("sort.default", lambda t, d: iter((make_case(t, d.real(d.size(), 6)), make_case(t, d.real(6, d.size()), 0))))
_each("topk.default", lambda t, d: iter((make_case(t, d.real(d.size(), 6), 2), make_case(t, d.real(6, d.size()), 3, 0))))
_each(
    "cumsum.default cumprod.default logcumsumexp.default cummax.default cummin.default",
    lambda t, d: iter((make_case(t, d.real(d.size(), 6), 1), make_case(t, d.real(6, d.size()), -2))),
)

FOLDS = (
    ((2, 3, 4), (6, 4)),
    ((6, 4), (2, 3, 4)),
    ((6, 12), (6, 6, 2)),
    ((6, 12), (6, 2, 6)),
    ((4, 6), (8, 3)),
    ((6, 4), (3, 8)),
    ((12,), (1, 12, 1)),
    ((1, 6, 1, 2), (12,)),
    ((2, 1, 6), (2, 6)),
    ((6, 2, 6), (6, 12)),
    ((3, 4, 6), (3, 24)),
    ((), (1, 1)),
    ((6, 4, 12), (24, 12)),
)


def _fold(t: str, d: Draw) -> Iterator[Case]:
    for source, target in FOLDS:
        yield make_case(t, d.real(*source), list(target))
    yield make_case(t, d.real(6, 4), [-1, 2])


def _expand(t: str, d: Draw) -> Iterator[Case]:
    a, b = d.sizes(2)
    yield make_case(t, d.real(a, 1), [6, a, b])
    yield make_case(t, d.real(1, 6), [b, -1])
    yield make_case(t, d.real(), [6])


def _move(*argument_lists: tuple[object, ...], ndim: int = 3) -> Callable[[str, Draw], Iterator[Case]]:
    def build(t: str, d: Draw) -> Iterator[Case]:
        for arguments in argument_lists:
            yield make_case(t, d.real(*d.sizes(ndim - 1), 6), *arguments)
            yield make_case(t, d.real(6, *d.sizes(ndim - 2), 12), *arguments)

    return build


def _squeeze(t: str, d: Draw) -> Iterator[Case]:
    arguments: tuple[object, ...] = () if t.endswith("default") else (1,) if t.endswith("dim") else ([0, 1, -1],)
    for shape in ((6, 1, 2), (2, 2, 3), (1, 6, 1), (1, 1, 1)):
        yield make_case(t, d.real(*shape), *arguments)


def _slice(t: str, d: Draw) -> Iterator[Case]:
    x = d.real(6, d.size(), 12)
    for arguments in ((), (0, 0, 2**63 - 1), (0, 0, 6), (2, 3), (2, 0, -1), (-1, 0, 12, 2), (1,)):
        yield make_case(t, x, *arguments)


def _slice_backward(t: str, d: Draw) -> Iterator[Case]:
    a = d.size()
    yield make_case(t, d.real(6, a, 4), [6, a, 6], 2, 1, 5, 1)
    yield make_case(t, d.real(6, a, 6), [6, a, 6], 2, 0, 2**63 - 1, 1)


def _cat(t: str, d: Draw) -> Iterator[Case]:
    a, b = d.sizes(2)
    shapes = ((6, a, b), (6, a, b)) if "stack" in t else ((6, a, b), (6, 2, b))
    yield make_case(t, [d.real(*s) for s in shapes], 1)
    x = d.real(a, 6)
    yield make_case(t, [x, x], -1)
    yield make_case(t, [x, d.real(a, 6)])


def _pad(t: str, d: Draw) -> Iterator[Case]:
    x = d.real(6, d.size(), 6)
    yield make_case(t, x, [1, 2])
    yield make_case(t, x, [0, 0, 1, 0], 0.0)
    yield make_case(t, x, [0, 1], 1.5)


def _insert(t: str, d: Draw) -> Iterator[Case]:
    a = d.size()
    if "select" in t:
        yield make_case(t, d.real(6, 4, a), d.real(6, a), 1, 2)
    else:
        yield make_case(t, d.real(6, 4, a), d.real(6, 2, a), 1, 1, 3)


_each("view.default _unsafe_view.default reshape.default", _fold)
_each("expand.default", _expand)
_each("t.default", _move((), ndim=2))
_each("transpose.int", _move((0, 2), (-1, 1)))
_each("permute.default", _move(([2, 0, 1],), ([0, -1, 1],)))
_each("unsqueeze.default", _move((0,), (1,), (-1,)))
_each("select.int", _move((0, 0), (1, -1), (2, 3)))
_each("unbind.int", _move((), (1,)))
_each("squeeze.default squeeze.dim squeeze.dims", _squeeze)
_each("slice.Tensor", _slice)
_each("split.Tensor", lambda t, d: iter((make_case(t, d.real(6, d.size(), 4), 2, -1), make_case(t, d.real(6, d.size()), 4))))
_each("split_with_sizes.default", lambda t, d: iter((make_case(t, d.real(6, d.size(), 4), [1, 3], 2),)))
_each("cat.default stack.default", _cat)
_each("diagonal.default", _move((), (1, -1, 0), (0, 1, 2)))
_each("flip.default", _move(([1],), ([-1, 0],)))
_each("roll.default", _move(([2], [1]), ([1, -1], [0, -1]), ([5],)))
_each("constant_pad_nd.default", _pad)
_each("copy.default", lambda t, d: iter((make_case(t, d.real(6, d.size(), 6), d.real(6)), make_case(t, d.real(6), d.real(6)))))
_each("slice_scatter.default select_scatter.default", _insert)
_each(
    "diagonal_scatter.default",
    lambda t, d: iter((make_case(t, d.real(4, 6, 6), d.real(6, 4), 0, 0, -1), make_case(t, d.real(6, 6, 2), d.real(2, 6)))),
)
_each("slice_backward.default", _slice_backward)
_each("diag_embed.default", _move((), (1,), (-1, 0, 1), (0, 2, 0)))
_each("unfold_copy.default", _move((1, 1, 1), (-1, 3, 2), (0, 1, 1)))
_each(
    "unfold_backward.default",
    lambda t, d: iter((make_case(t, d.real(6, 4, 2, 3), [6, 6, 2], 1, 3, 1), make_case(t, d.real(3, 6, 12, 2), [6, 6, 12], 0, 2, 2))),
)
_each(
    "select_backward.default",
    lambda t, d: iter((make_case(t, d.real(6, 2), [6, 4, 2], 1, 3), make_case(t, d.real(4, 6), [4, 6, 3], -1, 0))),
)


def _softmax(t: str, d: Draw) -> Iterator[Case]:
    shape = (d.size(), 6, d.size())
    for dim in (-1, 1, 0):
        if "backward" in t:
            yield make_case(t, d.real(*shape), torch.softmax(d.real(*shape), dim), dim, F64)
        else:
            yield make_case(t, d.real(*shape), dim, False)


def _layer_norm(t: str, d: Draw) -> Iterator[Case]:
    a, b = 6, d.size()
    for inner in ([6], [4, 6]):
        x, w, bias = d.real(a, b, *inner), d.real(*inner), d.real(*inner)
        if "backward" not in t:
            yield make_case(t, x, inner, w, bias, 1e-5)
            yield make_case(t, x, inner, None, None, 1e-5)
            continue
        _, mean, rstd = torch.native_layer_norm(x, inner, w, bias, 1e-5)
        for mask in ([True, True, True], [True, False, False], [False, True, True]):
            yield make_case(t, d.real(*x.shape), x, inner, mean, rstd, w, bias, mask)
        yield make_case(t, d.real(*x.shape), x, inner, mean, rstd, None, None, [True, False, False])


_each("_softmax.default _log_softmax.default _softmax_backward_data.default _log_softmax_backward_data.default", _softmax)
_each("native_layer_norm.default native_layer_norm_backward.default", _layer_norm)


def _weight_norm(t: str, d: Draw) -> Iterator[Case]:
    for shape, dim in (((6, 4, 3), 0), ((4, 12), 1)):
        v = d.real(*shape)
        g = d.real(*[extent if k == dim else 1 for k, extent in enumerate(shape)])
        if "backward" not in t:
            yield make_case(t, v, g, dim)
            continue
        _, norms = torch.ops.aten._weight_norm_interface(v, g, dim)
        yield make_case(t, d.real(*shape), v, g, norms, dim)


def _batch_norm_inference(t: str, d: Draw) -> Iterator[Case]:
    for x in (d.real(6, 6, d.size(), 2), d.real(12, 6)):
        yield make_case(t, x, d.real(6), d.real(6), d.real(6), d.positive(6), 0.1, 1e-5)
        yield make_case(t, x, None, None, d.real(6), d.positive(6), 0.1, 1e-5)


_each("_weight_norm_interface.default _weight_norm_interface_backward.default", _weight_norm)
_each("_native_batch_norm_legit_no_training.default", _batch_norm_inference)


def _embedding(t: str, d: Draw) -> Iterator[Case]:
    b = d.size()
    yield make_case(t, d.real(6, 12), d.index(6, 6, b))
    yield make_case(t, d.real(4, 6), d.index(4, 12), 1)


def _embedding_backward(t: str, d: Draw) -> Iterator[Case]:
    b = d.size()
    for padding, by_frequency in ((-1, False), (2, False), (-1, True)):
        yield make_case(t, d.real(6, b, 12), d.index(6, 6, b), 6, padding, by_frequency)


def _gather(t: str, d: Draw) -> Iterator[Case]:
    a = d.size()
    yield make_case(t, d.real(6, a, 6), 1, d.index(a, 6, 2, 6))
    yield make_case(t, d.real(6, 4), 1, d.index(4, 2, 6))
    yield make_case(t, d.real(6, 4), -1, d.index(4, 6, 1))


def _sliced(t: str, d: Draw) -> Iterator[Case]:
    """The look-ups that know their slots, all or every second: ``extent`` stays the whole, the slots are cut with the table."""
    a, slots = d.size(), torch.arange(12)
    second = torch.arange(0, 24, 2)
    match t:
        case "regista.embedding":
            yield make_case(t, d.real(12, 6), d.index(12, 6, a), slots, 12)
            yield make_case(t, d.real(12, a), d.index(12, 6), slots, 12)
            yield make_case(t, d.real(24, a), d.index(24, 12), second, 24)
        case "regista.embedding_backward":
            for padding in (-1, 2, 7):
                yield make_case(t, d.real(6, a, 12), d.index(12, 6, a), slots, 12, padding)
                yield make_case(t, d.real(12, a), d.index(24, 12), second, 24, padding, 2)
        case "regista.pick":
            yield make_case(t, d.real(6, 12, a), 1, d.index(12, 6, 2, a), slots, 12)
            yield make_case(t, d.real(a, 12), -1, d.index(12, a, 6), slots, 12)
            yield make_case(t, d.real(12), 0, d.index(12, 6), slots, 12)
            yield make_case(t, d.real(a, 24), 1, d.index(24, a, 6), second, 24)
        case _:
            yield make_case(t, d.real(6, 2, a), 1, d.index(12, 6, 2, a), slots, 12)
            yield make_case(t, d.real(a, 6), -1, d.index(12, a, 6), slots, 12)
            yield make_case(t, d.real(6), 0, d.index(12, 6), slots, 12)
            yield make_case(t, d.real(a, 6), 1, d.index(24, a, 6), second, 24, 2)


def _advanced(t: str, d: Draw) -> Iterator[Case]:
    """index_put with accumulation only: without it, which of two writes to one place wins is not defined."""
    x = d.real(6, 4, 12, 2)
    a, b = d.index(4, 6, 1), d.index(12, 6)
    lists: tuple[tuple[list[Tensor | None], tuple[int, ...]], ...] = (
        ([None, a], (6, 6, 1, 12, 2)),
        ([None, a, b], (6, 6, 6, 2)),
        ([d.index(6, 12), None, d.index(12, 1)], (12, 4, 2)),
    )
    for indices, shape in lists:
        if t == "aten.index.Tensor":
            yield make_case(t, x, indices)
        else:
            yield make_case(t, x, indices, d.real(*shape), True)
            yield make_case(t, x, indices, d.real(2), True)
            yield make_case(t, x, [d.mask(6, 4)], d.real(), False)


def _scatter(t: str, d: Draw) -> Iterator[Case]:
    """Indices do not repeat along dim, except where repeats add up: which of two writes wins is not defined."""
    for shape, dim in (((6, 4, 12), 1), ((6, 6), 0)):
        index = torch.argsort(d.real(*shape), dim).narrow(dim, 0, 2)
        if "scatter_add" in t:
            index = d.index(shape[dim], *index.shape)
        source: object = -1.0 if t.endswith("value") else d.real(*index.shape)
        yield make_case(t, d.real(*shape), dim, index, source)
    if "scatter_add" in t:
        yield make_case(t, d.real(6, 4), 1, d.index(4, 2, 4), d.real(6, 4))


def _embedding_bag(t: str, d: Draw) -> Iterator[Case]:
    for mode in (0, 1, 2):
        table, index, offsets = d.real(6, 12), d.index(6, 12), torch.tensor([0, 2, 3, 7, 7, 10])
        if "backward" not in t:
            yield make_case(t, table, index, offsets, False, mode)
            yield make_case(t, table, index, offsets, False, mode, False, d.real(12) if mode == 0 else None)
            continue
        bags, bag_of, sizes, maxima = torch.ops.aten._embedding_bag(table, index, offsets, False, mode)
        yield make_case(t, d.real(*bags.shape), index, offsets, bag_of, sizes, maxima, 6, False, mode, False, None)


def _scatter_reduce(t: str, d: Draw) -> Iterator[Case]:
    for how in ("sum", "prod", "mean", "amax", "amin"):
        for own in (True, False):
            yield make_case(t, d.real(6, 4, 12), 1, d.index(4, 6, 2, 12), d.real(6, 2, 12), how, include_self=own)
        yield make_case(t, d.real(6, 6), 0, d.index(6, 4, 6), d.real(4, 6), how)


def _along_index(t: str, d: Draw) -> Iterator[Case]:
    """Copied slices have places of their own: which of two would win is not defined."""
    for shape, dim in (((6, 12, 4), 1), ((12, 6), -2)):
        place = torch.randperm(12, generator=d.generator)[:6] if "copy" in t else d.index(12, 6)
        source = [6 if extent == 12 else extent for extent in shape]
        yield make_case(t, d.real(*shape), dim, place, d.real(*source))
    if "add" in t:
        yield make_case(t, d.real(6, 4), 1, d.index(4, 12), d.real(6, 12), alpha=2)


def _index_fill(t: str, d: Draw) -> Iterator[Case]:
    for value in (d.real(),) if t.endswith("Tensor") else (0, 2.5):
        yield make_case(t, d.real(6, 4, 12), 1, d.index(4, 2), value)


def _masked_scatter(t: str, d: Draw) -> Iterator[Case]:
    mask = d.mask(6, 4)
    if "backward" in t:
        yield make_case(t, d.real(6, 4), mask, [24])
    else:
        yield make_case(t, d.real(6, 4), mask, d.real(24))


def _bins(t: str, d: Draw) -> Iterator[Case]:
    x, borders = d.real(6, d.size(), 12), d.real(4).sort()[0]
    if "bucketize" in t:
        yield make_case(t, x, borders)
        yield make_case(t, x, borders, out_int32=True, right=True)
    else:
        yield make_case(t, borders, x)
        yield make_case(t, d.real(6, 2, 3).sort()[0], d.real(6, 2, 12), right=True)
        rows = d.real(6, 4)
        yield make_case(t, rows, d.real(6, 12), sorter=rows.argsort())


def _taken(t: str, d: Draw) -> Iterator[Case]:
    if "take" in t:
        yield make_case(t, d.real(6, 4), d.index(24, 6, d.size()))
        return
    yield make_case(t, d.real(6, 4), torch.randperm(24, generator=d.generator)[:6], d.real(6))
    yield make_case(t, d.real(6, 4), d.index(24, 12), d.real(12), True)


_each("_embedding_bag.default _embedding_bag_backward.default", _embedding_bag)
_each("scatter_reduce.two", _scatter_reduce)
_each("index_add.default index_copy.default", _along_index)
_each("index_fill.int_Scalar index_fill.int_Tensor", _index_fill)
_each("masked_scatter.default masked_scatter_backward.default", _masked_scatter)
_each("bucketize.Tensor searchsorted.Tensor", _bins)
_each("take.default put.default", _taken)
_each("isin.Tensor_Tensor", lambda t, d: iter((make_case(t, d.index(9, 6, d.size()), d.index(9, 4)),)))
_each("embedding.default", _embedding)
_each("embedding_dense_backward.default", _embedding_backward)
_each("gather.default", _gather)
_each("regista.embedding regista.embedding_backward regista.pick regista.place", _sliced)
_each("index.Tensor index_put.default", _advanced)
_each("index_select.default", lambda t, d: iter((make_case(t, d.real(6, 4, 6), 1, d.index(4, 6)),)))
_each("scatter.value scatter.src scatter_add.default", _scatter)
_each("tril.default triu.default", lambda t, d: iter((make_case(t, d.real(6, 4, 6)), make_case(t, d.real(d.size(), 6, 3, 4), 1))))

GEOMETRY = ([1, 1], [1, 1], [1, 1])


def _convolution(t: str, d: Draw) -> Iterator[Case]:
    n = d.size()
    x, w, transposed = d.real(6, 6, 5, 4), d.real(12, 6, 3, 3), d.real(6, 12, 3, 3)
    yield make_case(t, x, w, None, *GEOMETRY, False, [0, 0], 1)
    yield make_case(t, x, w, d.real(12), *GEOMETRY, False, [0, 0], 1)
    yield make_case(t, d.real(n, 6, 5, 5), d.real(6, 1, 3, 3), d.real(6), *GEOMETRY, False, [0, 0], 6)
    yield make_case(t, x, transposed, None, *GEOMETRY, True, [0, 0], 1)
    yield make_case(t, d.real(n, 6, 7), d.real(6, 6, 3), d.real(6), [2], [0], [1], False, [0], 1)
    yield make_case(t, x, d.real(12, 3, 3, 3), d.real(12), [2, 1], [2, 0], [2, 1], False, [0, 0], 2)
    yield make_case(t, x, d.real(12, 2, 3, 3), None, *GEOMETRY, False, [0, 0], 3)
    yield make_case(t, d.real(n, 6, 3, 2), d.real(6, 2, 3, 3), d.real(4), [2, 2], [1, 1], [1, 1], True, [1, 1], 2)


def _convolution_backward(t: str, d: Draw) -> Iterator[Case]:
    x, w = d.real(6, 6, 5, 4), d.real(12, 6, 3, 3)
    grad = d.real(6, 12, 5, 4)
    for mask in ([True, True, True], [False, True, True], [True, False, False]):
        yield make_case(t, grad, x, w, [12], *GEOMETRY, False, [0, 0], 1, mask)
    yield make_case(t, grad, x, w, None, *GEOMETRY, False, [0, 0], 1, [True, True, False])
    yield make_case(t, d.real(6, 6, 5, 4), x, d.real(6, 1, 3, 3), [6], *GEOMETRY, False, [0, 0], 6, [True, True, True])
    yield make_case(t, grad, x, d.real(6, 12, 3, 3), [12], *GEOMETRY, True, [0, 0], 1, [True, True, True])
    yield make_case(t, d.real(6, 12, 3, 2), x, d.real(12, 3, 3, 3), [12], [2, 1], [2, 0], [2, 1], False, [0, 0], 2, [True, True, True])
    yield make_case(t, grad, x, d.real(12, 2, 3, 3), None, *GEOMETRY, False, [0, 0], 3, [True, True, False])
    small = d.real(6, 6, 3, 2)
    yield make_case(t, d.real(6, 4, 6, 4), small, d.real(6, 2, 3, 3), [4], [2, 2], [1, 1], [1, 1], True, [1, 1], 2, [True, True, True])


def _pool(t: str, d: Draw) -> Iterator[Case]:
    x = d.real(6, d.size(), 6, 4)
    plane = d.real(6, 6, 4)
    match t.split(".")[1]:
        case "max_pool2d_with_indices" | "avg_pool2d":
            yield make_case(t, x, [2, 2], [2, 2])
            yield make_case(t, plane, [3, 2], [1, 2], [1, 0])
        case "_adaptive_avg_pool2d":
            yield make_case(t, x, [3, 2])
        case "_adaptive_avg_pool2d_backward":
            yield make_case(t, d.real(*x.shape[:2], 3, 2), x)
        case "avg_pool2d_backward":
            yield make_case(t, d.real(*x.shape[:2], 3, 2), x, [2, 2], [2, 2], [0, 0], False, True, None)
        case _:
            out, indices = torch.ops.aten.max_pool2d_with_indices(x, [2, 2], [2, 2])
            yield make_case(t, d.real(*out.shape), x, [2, 2], [2, 2], [0, 0], [1, 1], False, indices)


def _pool3d(t: str, d: Draw) -> Iterator[Case]:
    x, out = d.real(6, d.size(), 4, 2, 6), (2, 1, 3)
    match t.split(".")[1]:
        case "max_pool3d_with_indices" | "avg_pool3d":
            yield make_case(t, x, [2, 2, 2], [2, 2, 2])
            yield make_case(t, d.real(6, 3, 4, 6), [2, 1, 2], [2, 1, 2])
        case "_adaptive_avg_pool3d":
            yield make_case(t, x, list(out))
        case "_adaptive_avg_pool3d_backward":
            yield make_case(t, d.real(*x.shape[:2], *out), x)
        case "avg_pool3d_backward":
            yield make_case(t, d.real(*x.shape[:2], *out), x, [2, 2, 2], [2, 2, 2], [0, 0, 0], False, True, None)
        case _:
            pooled, indices = torch.ops.aten.max_pool3d_with_indices(x, [2, 2, 2], [2, 2, 2])
            yield make_case(t, d.real(*pooled.shape), x, [2, 2, 2], [2, 2, 2], [0, 0, 0], [1, 1, 1], False, indices)


def _adaptive_max_pool(t: str, d: Draw) -> Iterator[Case]:
    for x in (d.real(6, d.size(), 6, 4), d.real(6, 6, 4)):
        if "backward" not in t:
            yield make_case(t, x, [3, 2])
            continue
        pooled, indices = torch.ops.aten.adaptive_max_pool2d(x, [3, 2])
        yield make_case(t, d.real(*pooled.shape), x, indices)


def _pad_by_content(t: str, d: Draw) -> Iterator[Case]:
    spatial = int(t.split("pad")[1][0])
    plane, pad = (4, 3, 5)[:spatial], [1, 2] * spatial
    larger = [extent + 3 for extent in plane]
    for x in (d.real(6, d.size(), *plane), d.real(6, *plane)):
        if "backward" in t:
            yield make_case(t, d.real(*x.shape[: x.ndim - spatial], *larger), x, pad)
        else:
            yield make_case(t, x, pad)


def _unfold(t: str, d: Draw) -> Iterator[Case]:
    window: tuple[object, ...] = ([3, 2], [1, 1], [1, 0], [1, 2])
    n = d.size()
    if "im2col" in t:
        yield make_case(t, d.real(n, 6, 4, 5), *window)
        yield make_case(t, d.real(6, 1, 4, 5), *window)
    else:
        yield make_case(t, d.real(n, 6 * 6, 4 * 2), [4, 5], *window)
        yield make_case(t, d.real(6, 1 * 6, 4 * 2), [4, 5], *window)


_each(
    """max_pool3d_with_indices.default max_pool3d_with_indices_backward.default avg_pool3d.default avg_pool3d_backward.default
    _adaptive_avg_pool3d.default _adaptive_avg_pool3d_backward.default""",
    _pool3d,
)
_each("adaptive_max_pool2d.default adaptive_max_pool2d_backward.default", _adaptive_max_pool)
_each(
    " ".join(f"{kind}_pad{n}d{way}.default" for kind in ("reflection", "replication") for n in (1, 2, 3) for way in ("", "_backward")),
    _pad_by_content,
)
_each("im2col.default col2im.default", _unfold)


def _grid(t: str, d: Draw) -> Iterator[Case]:
    spatial = 3 if "3d" in t else 2
    for mode, padding, corners in ((0, 0, False), (1, 1, False), (0, 2, True), *(((2, 0, False),) if spatial == 2 else ())):
        n, image, places = d.size(), (4, 5, 3)[:spatial], (6, 2, 4)[:spatial]
        x, grid = d.real(n, 6, *image), d.real(n, *places, spatial) / 2
        if "backward" not in t:
            yield make_case(t, x, grid, mode, padding, corners)
            continue
        for mask in ([True, True], [False, True]):
            yield make_case(t, d.real(n, 6, *places), x, grid, mode, padding, corners, mask)


def _unpool(t: str, d: Draw) -> Iterator[Case]:
    if "2d" in t:
        pooled, places = torch.ops.aten.max_pool2d_with_indices(d.real(6, d.size(), 4, 6), [2, 2], [2, 2])
        yield make_case(t, pooled, places, [4, 6])
    else:
        pooled, places = torch.ops.aten.max_pool3d_with_indices(d.real(6, d.size(), 4, 6, 2), [2, 2, 2], [2, 2, 2])
        yield make_case(t, pooled, places, [4, 6, 2], [2, 2, 2], [0, 0, 0])


def _adaptive_max_pool3d(t: str, d: Draw) -> Iterator[Case]:
    x = d.real(6, d.size(), 4, 2, 6)
    if "backward" not in t:
        yield make_case(t, x, [2, 1, 3])
        return
    pooled, places = torch.ops.aten.adaptive_max_pool3d(x, [2, 1, 3])
    yield make_case(t, d.real(*pooled.shape), x, places)


def _drawn_pool(t: str, d: Draw) -> Iterator[Case]:
    spatial = 3 if "3d" in t else 2
    kernel, size, plane = [2] * spatial, [3, 2, 2][:spatial], (6, 4, 5)[:spatial]
    n = d.size()
    for x, draws in ((d.real(n, 6, *plane), (n, 6)), (d.real(6, *plane), (1, 6))):
        cuts = torch.rand(*draws, spatial, generator=d.generator, dtype=F64)
        if "backward" not in t:
            yield make_case(t, x, kernel, size, cuts)
            continue
        pooled, places = getattr(torch.ops.aten, f"fractional_max_pool{spatial}d")(x, kernel, size, cuts)
        yield make_case(t, d.real(*pooled.shape), x, kernel, size, places)


_each(" ".join(f"grid_sampler_{n}d{way}.default" for n in (2, 3) for way in ("", "_backward")), _grid)
_each("max_unpool2d.default max_unpool3d.default", _unpool)
_each("adaptive_max_pool3d.default adaptive_max_pool3d_backward.default", _adaptive_max_pool3d)
_each(" ".join(f"fractional_max_pool{n}d{way}.default" for n in (2, 3) for way in ("", "_backward")), _drawn_pool)


def _resize(t: str, d: Draw) -> Iterator[Case]:
    small, large = ([3], [6]) if "1d" in t else ([3, 2], [6, 5]) if "2d" in t else ([3, 2, 1], [6, 5, 2])
    extra = (False,) if "linear" in t or "cubic" in t else ()
    n = d.size()
    if "backward" in t:
        yield make_case(t, d.real(n, 6, *large), large, [n, 6, *small], *extra)
        yield make_case(t, d.real(6, n, *small), small, [6, n, *large], *extra)
    else:
        yield make_case(t, d.real(n, 6, *small), large, *extra)
        yield make_case(t, d.real(6, n, *large), small, *extra)


_each(
    " ".join(
        f"{name}{way}.default"
        for name in (
            *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_linear1d", "upsample_bilinear2d"),
            *("upsample_bicubic2d", "upsample_trilinear3d", *(f"_upsample_nearest_exact{n}d" for n in (1, 2, 3))),
            *("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
        )
        for way in ("", "_backward")
    ),
    _resize,
)
_each("convolution.default", _convolution)
_each("convolution_backward.default", _convolution_backward)
_each(
    """max_pool2d_with_indices.default max_pool2d_with_indices_backward.default avg_pool2d.default avg_pool2d_backward.default
    _adaptive_avg_pool2d.default _adaptive_avg_pool2d_backward.default""",
    _pool,
)


def _make(t: str, d: Draw) -> Iterator[Case]:
    defined = "empty" not in t
    a = d.size()
    name = t.split(".")[1]
    like = d.real(6, a)
    if name.startswith("new_"):
        for v in ((2.0,), (0,)) if name == "new_full" else ((),):
            yield make_case(t, like, [a, 12], *v, compare=defined)
    elif name.endswith("_like"):
        for v in ((2.0,), (0,)) if name == "full_like" else ((),):
            yield make_case(t, like, *v, compare=defined)
            yield make_case(t, d.real(), *v, compare=defined)
    elif name == "full":
        yield make_case(t, [6, a], 1.5, dtype=F64)
        yield make_case(t, [], 0, dtype=F64)
    else:
        yield make_case(t, [6, a], dtype=F64, compare=defined)


_each(
    """full.default zeros.default ones.default empty.memory_format new_zeros.default new_ones.default new_full.default
    new_empty.default full_like.default zeros_like.default ones_like.default empty_like.default""",
    _make,
)
_each("linspace.default logspace.default", lambda t, d: iter((make_case(t, 0.0, 2.0, 6, dtype=F64),)))
_each("eye.default", lambda t, d: iter((make_case(t, 6, dtype=F64),)))
_each("eye.m", lambda t, d: iter((make_case(t, 6, 4, dtype=F64),)))
_each("hann_window.default hamming_window.default blackman_window.default", lambda t, d: iter((make_case(t, d.size() + 3, dtype=F64),)))
_each(
    "hann_window.periodic hamming_window.periodic blackman_window.periodic",
    lambda t, d: iter((make_case(t, d.size() + 3, False, dtype=F64),)),
)
_each("tril_indices.default triu_indices.default", lambda t, d: iter((make_case(t, 6, 4),)))
_each("arange.default", lambda t, d: iter((make_case(t, 6),)))
_each("arange.start", lambda t, d: iter((make_case(t, 2, 8),)))
_each("arange.start_step", lambda t, d: iter((make_case(t, 0, 12, 2),)))
_each("scalar_tensor.default", lambda t, d: iter((make_case(t, 2.5, dtype=F64),)))


def _update(t: str, d: Draw) -> Iterator[Case]:
    shape = (6, d.size())
    if t == "regista.sgd":
        yield make_case(t, d.real(*shape), d.real(*shape), None, 0.1, 0.0, 0.01, False)
        yield make_case(t, d.real(*shape), d.real(*shape), d.real(*shape), 0.1, 0.9, 0.0, True)
        yield make_case(t, d.real(12), d.real(12), d.real(12), 0.1, 0.9, 0.0, False)
        return
    for s in (shape, (12,), ()):
        step = torch.tensor(3.0)
        yield make_case(t, d.real(*s), d.real(*s), d.real(*s), d.positive(*s), step, 0.1, 0.9, 0.99, 1e-8, 0.01)


def _other_update(t: str, d: Draw) -> Iterator[Case]:
    step = torch.tensor(3.0)
    for s in ((6, d.size()), (12,)):
        param, grad, first, second, third = d.real(*s), d.real(*s), d.real(*s), d.positive(*s), d.positive(*s)
        match t:
            case "regista.adam":
                yield make_case(t, param, grad, first, second, step, None, 0.1, 0.9, 0.99, 1e-8, 0.01, False)
                yield make_case(t, param, grad, first, second, step, third, 0.1, 0.9, 0.99, 1e-8, 0.01, True)
            case "regista.adagrad":
                yield make_case(t, param, grad, second, step, 0.1, 0.5, 0.01, 1e-8)
            case "regista.rmsprop":
                yield make_case(t, param, grad, second, step, None, None, 0.1, 0.9, 1e-8, 0.01, 0.0)
                yield make_case(t, param, grad, second + first.square(), step, first, first / 2, 0.1, 0.9, 1e-8, 0.0, 0.9)
            case "regista.adafactor" if len(s) == 1:
                yield make_case(t, param, grad, step, None, None, second, 0.1, -0.8, 1e-3, 1.0, 0.01, None)
            case "regista.adafactor":
                rows, columns = second.mean(1, keepdim=True), second.mean(0, keepdim=True)
                yield make_case(t, param, grad, step, rows, columns, None, 0.1, -0.8, 1e-3, 1.0, 0.0, 1e-6)
            case "regista.muon" if len(s) == 2:
                yield make_case(t, param, grad, first, 0.1, 0.01, 0.9, True, 3.4445, -4.775, 2.0315, 1e-7, 5, None)
                yield make_case(t, param, grad, first, 0.1, 0.0, 0.9, False, 3.4445, -4.775, 2.0315, 1e-7, 5, "match_rms_adamw")


def _norm(t: str, d: Draw) -> Iterator[Case]:
    match t:
        case "regista.square_sum" | "regista.largest":
            yield make_case(t, d.real(6, d.size()))
            yield make_case(t, d.real(12))
            yield make_case(t, d.real())
        case "regista.add_norms" | "regista.join_norms":
            yield make_case(t, d.real(), d.real(), d.real())
            yield make_case(t, d.real())
        case _:
            yield make_case(t, d.positive(), 0.5, True, False)
            yield make_case(t, d.positive(), 2.0, False, True)


_each("regista.square_sum regista.largest regista.add_norms regista.join_norms regista.clip_scale", _norm)
_each("regista.sgd regista.adamw", _update)
_each("regista.adam regista.adagrad regista.rmsprop regista.adafactor regista.muon", _other_update)


def _draw(t: str, d: Draw) -> Iterator[Case]:
    state = torch.tensor((9 << 32) + 4), torch.tensor(2)
    for number, shape in enumerate(([6, d.size(), 12], [d.size(), 6], [12])):
        if t == "regista.dropout":
            yield make_case(t, d.real(*shape), *state, 0.6, 0.6, shape, [], draw=number)
            continue
        p = [0.3] if t == "regista.bernoulli" else []
        yield make_case(t, *state, shape, F64, *p, shape, [], draw=number)


_each("regista.uniform regista.bernoulli regista.dropout", _draw)
