"""Means, variances, norms and products as sums: what hides a reduction, or adds to one.

mean            sum / N
variance        sum((x - mean)^2) / (N - correction)
log sum exp     m = max(x);  m + log sum exp (x - m)
norms           sqrt(sum(x^2)), sum(|x|), max(|x|), ...
addmm           alpha a b + beta bias
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from planner.frontend.tracing.decomp.precision import widened

__all__ = [
    "addbmm",
    "addmm",
    "baddbmm",
    "copy",
    "dot",
    "logsumexp",
    "mean",
    "mean_dim",
    "mv",
    "repeat",
    "std",
    "trace",
    "var",
    "var_mean",
    "vector_norm",
]


def copy(x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """What functionalization leaves of a write: the source, in the written tensor's type and in its order of dims in memory.

    The order matters where x is a view (``q = proj(h).view(..).permute(..); q /= 2``): what views x takes the result for x itself.
    """
    made = source.to(x.dtype).expand(x.shape)
    strides = x.stride()
    order = sorted(range(x.ndim), key=lambda d: -strides[d])
    in_order = made.permute(order)
    if in_order.is_contiguous() or not any(made.stride()):
        return made
    return in_order.contiguous().permute([order.index(d) for d in range(x.ndim)])


def mean(x: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    return torch.sum(x, dtype=dtype) / x.numel()


def mean_dim(x: Tensor, dim: Sequence[int] | None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    dims = list(dim) if dim else list(range(x.ndim))
    return torch.sum(x, dims, keepdim, dtype=dtype) / prod(x.shape[d] for d in dims)


def var(x: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False) -> Tensor:
    return var_mean(x, dim, correction=correction, keepdim=keepdim)[0]


def var_mean(
    x: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    dims = list(dim) if dim else list(range(x.ndim))
    count = prod(x.shape[d] for d in dims)
    mean = torch.sum(x, dims, True) / count
    centred = x - mean
    var = torch.sum(centred * centred, dims, keepdim) / max(count - (1 if correction is None else correction), 0)
    return var, mean if keepdim else torch.squeeze(mean, dims)


def std(x: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False) -> Tensor:
    return torch.sqrt(var(x, dim, correction=correction, keepdim=keepdim))


def addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return _scaled_sum(torch.mm(a, b), bias, alpha, beta)


def baddbmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return _scaled_sum(torch.bmm(a, b), bias, alpha, beta)


def addbmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return _scaled_sum(torch.sum(torch.bmm(a, b), 0), bias, alpha, beta)


def _scaled_sum(product: Tensor, bias: Tensor, alpha: float, beta: float) -> Tensor:
    if alpha != 1:
        product = product * alpha
    if beta == 0:
        return product
    return product + (bias if beta == 1 else bias * beta)


def mv(a: Tensor, b: Tensor) -> Tensor:
    return torch.squeeze(torch.mm(a, torch.unsqueeze(b, 1)), 1)


def trace(x: Tensor) -> Tensor:
    return torch.sum(torch.diagonal(x))


def dot(a: Tensor, b: Tensor) -> Tensor:
    return torch.sum(a * b)


def logsumexp(x: Tensor, dim: Sequence[int], keepdim: bool = False) -> Tensor:
    dims = list(dim) if dim else list(range(x.ndim))
    largest = torch.amax(x, dims, True)
    # where the largest is infinite, x - largest would be nan
    largest = torch.where(torch.isinf(largest), torch.zeros_like(largest), largest)
    result = torch.log(torch.sum(torch.exp(x - largest), dims, True)) + largest
    return result if keepdim else torch.squeeze(result, dims)


def vector_norm(
    x: Tensor, order: float = 2, dim: Sequence[int] | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    dims = list(dim) if dim else list(range(x.ndim))
    kind = x.dtype if dtype is None else dtype
    value = widened(x.to(kind))
    if order == 2:
        result = torch.sqrt(torch.sum(value * value, dims, keepdim))
    elif order == 1:
        result = torch.sum(torch.abs(value), dims, keepdim)
    elif order == 0:
        result = torch.sum(torch.ne(value, 0).to(value.dtype), dims, keepdim)
    elif order == float("inf"):
        result = torch.amax(torch.abs(value), dims, keepdim)
    elif order == float("-inf"):
        result = torch.amin(torch.abs(value), dims, keepdim)
    else:
        result = torch.pow(torch.sum(torch.pow(torch.abs(value), order), dims, keepdim), 1 / order)
    return result.to(kind)


def repeat(x: Tensor, repeats: Sequence[int]) -> Tensor:
    """Each dim of extent s, r times over, is [r, s] folded; a repeat of 1 leaves its dim as it is, so that it can be split.

    The result is new and dense, as torch's: a new dim in front would else be one element seen r times, which no view() folds into the next dim.
    """
    extents = [1] * (len(repeats) - x.ndim) + list(x.shape)
    pairs = [(r, s) if r != 1 and s != 1 else (1, r * s) if s != 1 else (r, 1) for r, s in zip(repeats, extents, strict=True)]
    apart = torch.reshape(x, [e for (_, s) in pairs for e in (1, s)])
    made = torch.reshape(apart.expand([e for pair in pairs for e in pair]), [r * s for r, s in pairs])
    seen_again = any(stride == 0 and extent > 1 for stride, extent in zip(made.stride(), made.shape, strict=True))
    return made.clone(memory_format=torch.contiguous_format) if seen_again else made
