"""Batch norm with the statistics of its batch as one kernel, the update of the running statistics included.

mean = sum(x) / n;  c = x - mean;  var = sum(c c) / n;  r = rsqrt(var + eps);  y = c r w + b
running mean = (1 - k) running mean + k mean;  running variance likewise, of the unbiased one         (planner.frontend.tracing.decomp.norms)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from backend.ops.fused.uses import Fusion, Uses
from planner.ir.graph import Op, Ref

__all__ = ["BATCH_NORM", "batch_norm", "channel_view", "find_batch_norm", "in_one_kernel", "other_dims"]

BATCH_NORM = "fused.batch_norm"

ADD, SUB, MUL, DIV = (f"aten.{name}.Tensor" for name in ("add", "sub", "mul", "div"))
SUM, VIEW, _RSQRT = "aten.sum.dim_IntList", "aten.view.default", "aten.rsqrt.default"


def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    *,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """(y, mean, rsqrt(var + eps), new running mean, new running variance); x is [N, C, ...].

    Args:
        out: memory of x's shape for y.
    """
    if any(value is not None and value.dtype != x.dtype for value in (weight, bias, running_mean, running_var)):
        from planner.frontend.tracing.decomp.norms import batch_norm as in_parts  # late: kernels of aten need no frontend

        y, *others = in_parts(x, None, None, running_mean, running_var, True, momentum, eps)
        per_channel = (1, -1, *[1] * (x.ndim - 2))
        y = y if weight is None else y * weight.reshape(per_channel)
        y = y if bias is None else y + bias.reshape(per_channel)
        return (y if out is None else out.copy_(y)), *others  # type: ignore[return-value]  # four of them
    return in_one_kernel(x, weight, bias, (running_mean, running_var), momentum, eps, out)


def in_one_kernel(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running: tuple[Tensor | None, Tensor | None],
    momentum: float,
    eps: float,
    out: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Batch norm as a single call of torch's native_batch_norm.

    Weight, bias and running statistics have the dtype of x, or float32 where x has 16 bits; the result has the dtype of x.
    It is given memory only where x lies in the same order, without gaps: of other strides it makes wrong numbers on CPUs (torch 2.13).
    """
    weight, bias = (value.reshape(-1) if value is not None else None for value in (weight, bias))
    new_mean, new_var = (value.clone() if value is not None else None for value in running)
    if out is None or not _both_without_gaps(x, out):
        y, mean, root = torch.native_batch_norm(x, weight, bias, new_mean, new_var, True, momentum, eps)
        y = y if out is None else out.copy_(y)
    else:
        like = x if weight is None else weight
        places = {"out": out, "save_mean": like.new_empty(x.shape[1]), "save_invstd": like.new_empty(x.shape[1])}
        y, mean, root = torch.ops.aten.native_batch_norm.out(x, weight, bias, new_mean, new_var, True, momentum, eps, **places)
    return y, mean, root, new_mean, new_var


def _both_without_gaps(x: Tensor, out: Tensor) -> bool:
    """In one order of their dims."""
    orders = (torch.contiguous_format, torch.channels_last)
    return any(x.is_contiguous(memory_format=order) and out.is_contiguous(memory_format=order) for order in orders)


def other_dims(total: Op) -> int | None:
    """The number of dims of what a sum adds up over all dims but the second; None for other sums."""
    match total.args[1:]:
        case (tuple() as dims,) | (tuple() as dims, False):
            return len(dims) + 1 if dims == (0, *range(2, len(dims) + 1)) else None
        case _:
            return None


def channel_view(uses: Uses, value: object, ndim: int) -> Op | None:
    """The op that views a vector as [1, C, 1, ...] of so many dims."""
    view = uses.made_by(value, VIEW)
    shape = view.args[1] if view is not None else None
    if view is None or not isinstance(shape, tuple) or len(shape) != ndim or any(extent != 1 for d, extent in enumerate(shape) if d != 1):
        return None
    return view


@dataclass(frozen=True, slots=True)
class _Statistics:
    """x, and the ops behind the reciprocal root of its variance."""

    x: Ref
    ndim: int
    count: float
    mean: Op
    variance: Op
    centred: Op
    eps: float
    parts: tuple[Op, ...]
    view: Op


def _statistics(root: Op, uses: Uses) -> _Statistics | None:
    shifted = uses.part(root.args[0], ADD)
    variance = uses.made_by(shifted.args[0], DIV) if shifted is not None else None
    square_sum = uses.part(variance.args[0], SUM) if variance is not None else None
    square = uses.part(square_sum.args[0], MUL) if square_sum is not None else None
    centred = uses.made_by(square.args[0], SUB) if square is not None else None
    if shifted is None or variance is None or square_sum is None or square is None or centred is None or square.args[0] != square.args[1]:
        return None
    ndim = other_dims(square_sum)
    view = channel_view(uses, centred.args[1], ndim) if ndim is not None else None
    mean = uses.made_by(view.args[0], DIV) if view is not None else None
    total = uses.part(mean.args[0], SUM) if mean is not None else None
    if (
        ndim is None
        or view is None
        or mean is None
        or total is None
        or (total.args[0], *total.args[1:2]) != (centred.args[0], square_sum.args[1])
    ):
        return None
    x, count, eps = total.args[0], mean.args[1], shifted.args[1]
    if (
        not isinstance(x, Ref)
        or not isinstance(count, int | float)
        or count != variance.args[1]
        or count <= 1
        or not isinstance(eps, float)
    ):
        return None
    parts = (total, mean, centred, square, square_sum, variance, shifted, root)
    return _Statistics(x, ndim, count, mean, variance, centred, eps, parts, view)


def find_batch_norm(root: Op, uses: Uses) -> Fusion:
    """root: the reciprocal root of a variance."""
    statistics = _statistics(root, uses)
    if statistics is None:
        return None
    ndim, ends, views = statistics.ndim, list[Op](), [statistics.view]
    vectors: list[Ref | None] = [None, None]
    for reader in uses.readers[statistics.centred.outputs[0] or ""]:
        view = channel_view(uses, reader.args[1], ndim) if reader.target == MUL and not reader.kwargs else None
        if view is not None and view.args[0] == Ref(root.outputs[0] or ""):
            ends, views = [reader], [*views, view]
    if not ends:
        return None
    for place, target in enumerate((MUL, ADD)):
        end = uses.only_reader(ends[-1], target)
        if end is not None and end.args[0] == Ref(ends[-1].outputs[0] or ""):
            view = channel_view(uses, end.args[1], ndim)
            if view is not None and isinstance(view.args[0], Ref):
                vectors[place] = view.args[0]
                ends.append(end)
                views.append(view)
    running, momentum, updates = _running(statistics, uses)
    parts = [*statistics.parts, *ends, *updates]
    ids = {part.id for part in parts}
    parts += [view for view in dict.fromkeys(views) if uses.inside(view, ids)]
    results: list[Op | None] = [ends[-1], statistics.mean, root, *(updates[-2:] or (None, None))]
    return uses.whole(
        BATCH_NORM,
        (statistics.x, *vectors, *running, momentum, statistics.eps),
        [Ref(made.outputs[0]) if made is not None and made.outputs[0] is not None else None for made in results],
        parts,
    )


def _running(statistics: _Statistics, uses: Uses) -> tuple[list[Ref | None], float, list[Op]]:
    """The running mean and variance, how much of the new ones they take, and the ops that update them, the two last ones at the end."""
    for unbiased in uses.readers[statistics.variance.outputs[0] or ""]:
        scale = unbiased.args[1] if unbiased.target == MUL else None
        if not isinstance(scale, float) or abs(scale * (statistics.count - 1) / statistics.count - 1) > 1e-9:
            continue
        of_variance = _moved(uses.only_reader(unbiased, MUL), uses)
        for reader in uses.readers[statistics.mean.outputs[0] or ""]:
            of_mean = _moved(reader, uses)
            if of_mean is not None and of_variance is not None and of_mean[1] == of_variance[1]:
                inner = [unbiased, *of_mean[2][:-1], *of_variance[2][:-1]]
                return [of_mean[0], of_variance[0]], of_mean[1], [*inner, of_mean[2][-1], of_variance[2][-1]]
    return [None, None], 0.0, []


def _moved(scaled: Op | None, uses: Uses) -> tuple[Ref, float, tuple[Op, ...]] | None:
    """Finds (1 - k) old + k new around ``scaled``, which computes k new: old, k and the three ops; None: it is another sum."""
    end = uses.only_reader(scaled, ADD) if scaled is not None else None
    if scaled is None or end is None or scaled.target != MUL or len(end.args) != 2 or end.args[1] != Ref(scaled.outputs[0] or ""):
        return None
    kept = uses.part(end.args[0], MUL)
    match (kept.args if kept is not None else ()), scaled.args:
        case (Ref() as old, float() as rest), (_, float() as momentum) if kept is not None and abs(rest + momentum - 1) < 1e-9:
            return old, momentum, (kept, scaled, end)
        case _:
            return None
