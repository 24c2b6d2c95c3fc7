"""Cases of ops that change shapes: views, permutations, slices, concatenation, padding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from tests.cases.opset_cases.drawing import Builder, Draw, add_each
from tests.oracles.sbp_check import Case, make_case

CASES: dict[str, Builder] = {}
_each = partial(add_each, CASES)


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
