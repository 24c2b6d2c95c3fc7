"""Cases of ops with indices: embedding, gather, scatter, bins, bags, advanced indexing, triangles."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from tests.cases.opset_cases.drawing import Builder, Draw, add_each
from tests.oracles.sbp_check import Case, make_case

CASES: dict[str, Builder] = {}
_each = partial(add_each, CASES)


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


def _along(t: str, d: Draw) -> Iterator[Case]:
    """An index that is widened to the other dims, to some of them, or to none."""
    a = d.size()
    for x, dim, index in (((6, 12, a), 1, (6, 4, 1)), ((6, 12, a), -2, (1, 6, 1)), ((a, 6), 0, (12, 1)), ((a, 6, 4), 2, (a, 6, 12))):
        looked_up = (*x[: dim % len(x)], index[dim], *x[dim % len(x) + 1 :])
        source = (d.real(*looked_up),) if "add" in t else ()
        yield make_case(t, d.real(*x), dim, d.index(x[dim], *index), *source)


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
_each("regista.take_along regista.add_along", _along)
_each("index.Tensor index_put.default", _advanced)
_each("index_select.default", lambda t, d: iter((make_case(t, d.real(6, 4, 6), 1, d.index(4, 6)),)))
_each("scatter.value scatter.src scatter_add.default", _scatter)
_each("tril.default triu.default", lambda t, d: iter((make_case(t, d.real(6, 4, 6)), make_case(t, d.real(d.size(), 6, 3, 4), 1))))
