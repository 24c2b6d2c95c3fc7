"""Cases of reductions: sums, maxima, truth, order statistics, counts, sorting, running sums."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from tests.cases.opset_cases.drawing import F64, Builder, Draw, add_each
from tests.oracles.sbp_check import Case, make_case

CASES: dict[str, Builder] = {}
_each = partial(add_each, CASES)


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
_each(
    "regista.check",
    lambda t, d: iter(
        (make_case(t, torch.ones(6, d.size(), dtype=torch.bool), True, "a"), make_case(t, torch.zeros(6, dtype=torch.bool), False, "b"))
    ),
)
_each("count_nonzero.default count_nonzero.dim_IntList", _counted)
_each("nansum.default", _nansum)
_each("histc.default", _histogram)
_each("aminmax.default", lambda t, d: iter((make_case(t, d.real(6, d.size(), 6), dim=1), make_case(t, d.real(6, 4)))))
_each("renorm.default", lambda t, d: iter((make_case(t, d.real(6, d.size(), 6), 2, 1, 1.0), make_case(t, d.real(6, 4), 1, -2, 0.5))))
_each(
    "sort.stable",
    lambda t, d: iter(
        (make_case(t, d.real(6, d.size(), 6).round(), stable=True, dim=1, descending=True), make_case(t, d.real(6, 6, 6), stable=True))
    ),
)
_each("sort.default", lambda t, d: iter((make_case(t, d.real(d.size(), 6, 6)), make_case(t, d.real(6, d.size()), 0))))
_each("topk.default", lambda t, d: iter((make_case(t, d.real(d.size(), 6, 6), 2), make_case(t, d.real(6, d.size()), 3, 0))))
_each(
    "cumsum.default cumprod.default logcumsumexp.default cummax.default cummin.default",
    lambda t, d: iter((make_case(t, d.real(d.size(), 6), 1), make_case(t, d.real(6, d.size()), -2))),
)
