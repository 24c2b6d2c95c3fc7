"""Addresses by strides as views: ``as_strided`` of a tensor that fills its memory is a chain of slices, windows and permutations.

    row of a dense tensor     [offset : ...]                   one dim per (size, stride), the outermost first
    (n, s)                    unfold(-1, rest, s)[: n]         n windows of the length that the inner dims reach over
    (n, 0)                    expand

A tensor with holes in its memory (a slice of a larger one) may be addressed outside of itself: that stays ``as_strided``, and is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["as_strided", "as_strided_scatter", "empty_strided", "new_empty_strided", "strided_view"]


def strided_view(x: Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None = None) -> Tensor | None:
    """The view of x's memory with this geometry, or None where it cannot be said in terms of x.

    Args:
        size, stride, offset: as of torch.as_strided; offset counts from the beginning of the storage, None: from x.
    """
    size, stride, begin = list(size), list(stride), 0 if offset is None else offset - int(x.storage_offset())
    strides, shape = [int(s) for s in x.stride()], [int(n) for n in x.shape]
    order = sorted(range(x.ndim), key=lambda d: (-strides[d], shape[d] == 1))
    dense = x.permute(order)
    reach = sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if all(size) else 0
    if not dense.is_contiguous() or begin < 0 or begin + reach >= max(x.numel(), 1) or not all(size) or x.numel() == 0:
        return None
    if begin == 0 and size == list(x.shape) and stride == list(x.stride()):
        return x
    kept = 0  # leading dims that x has as well, which stay dims, so that they can be split
    while kept < min(x.ndim, len(size)) and (size[kept], stride[kept]) == (dense.shape[kept], dense.stride(kept)):
        inner = begin + sum((n - 1) * s for n, s in zip(size[kept + 1 :], stride[kept + 1 :], strict=True))
        if inner >= stride[kept]:
            break
        kept += 1
    row = dense.reshape([*dense.shape[:kept], -1])
    return _laid_out(row, size[kept:], stride[kept:], begin)


def _laid_out(row: Tensor, size: Sequence[int], stride: Sequence[int], begin: int) -> Tensor:
    """The last dim of ``row`` addressed by strides from ``begin`` on."""
    dense_order = sorted(range(len(size)), key=lambda d: -stride[d])
    expected = 1
    for d in reversed(dense_order):
        if size[d] != 1 and stride[d] != expected:
            break
        expected *= size[d]
    else:  # no windows: the same elements in another order of dims
        count, lead = expected, row.ndim - 1
        folded = row.narrow(-1, begin, count).reshape([*row.shape[:-1], *(size[d] for d in dense_order)])
        return folded.permute([*range(lead), *(lead + dense_order.index(d) for d in range(len(size)))])
    made = row.narrow(-1, begin, row.shape[-1] - begin)
    for place, (n, s) in enumerate(zip(size, stride, strict=True)):
        rest = 1 + sum((m - 1) * t for m, t in zip(size[place + 1 :], stride[place + 1 :], strict=True))
        if s == 0:
            made = made.narrow(-1, 0, rest).unsqueeze(-2).expand([*made.shape[:-1], n, rest])
        else:
            made = made.unfold(-1, rest, s).narrow(-2, 0, n)
    return made.squeeze(-1)


def as_strided(x: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> Tensor:
    made = strided_view(x, size, stride, storage_offset)
    return NotImplemented if made is None else made  # then the op stays in the graph


def as_strided_scatter(x: Tensor, source: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> Tensor:
    """x with ``source`` at the places that as_strided names, none of them twice."""
    count = x.numel()
    places = torch.arange(count).reshape(x.shape) if x.is_contiguous() else None
    named = None if places is None else strided_view(places, size, stride, (storage_offset or 0) - int(x.storage_offset()))
    if named is None:
        return NotImplemented  # type: ignore[no-any-return]
    return x.reshape(-1).scatter(0, named.reshape(-1), source.reshape(-1)).reshape(x.shape)


def empty_strided(size: Sequence[int], stride: Sequence[int], *, dtype: torch.dtype | None = None, **_: object) -> Tensor:
    """Memory that is not written yet; zeros, in row-major order alone, keep the step a function."""
    return torch.zeros(list(size), dtype=dtype) if _row_major(size, stride) else NotImplemented


def new_empty_strided(x: Tensor, size: Sequence[int], stride: Sequence[int], *, dtype: torch.dtype | None = None, **_: object) -> Tensor:
    return x.new_zeros(list(size), dtype=dtype) if _row_major(size, stride) else NotImplemented


def _row_major(size: Sequence[int], stride: Sequence[int]) -> bool:
    expected = 1
    for n, s in reversed(list(zip(size, stride, strict=True))):
        if n != 1 and s != expected:
            return False
        expected *= n
    return True
