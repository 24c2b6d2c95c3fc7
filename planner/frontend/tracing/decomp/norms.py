"""Batch norm and group norm in sums, so that their statistics stay global when the batch is split.

batch norm      mu = sum(x)/N;  var = sum((x-mu)^2)/N;  y = (x-mu) rsqrt(var+eps) w + b
  its gradient  db = sum(g);  dw = sum(g xhat);  dx = w rsqrt(var+eps) (g - db/N - xhat dw/N)           [Ioffe & Szegedy 2015]
                the sums are over the whole batch, or over each part of it   (planner.frontend.tracing.decomp.local_norm)
group norm      as batch norm, with the sums over a sample's group instead of the batch
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from planner.frontend.tracing.decomp.local_norm import WHOLE, asked_parts
from planner.frontend.tracing.decomp.precision import widened
from planner.ir.errors import Unsupported

__all__ = ["batch_norm", "batch_norm_backward", "batch_norm_no_stats", "group_norm", "group_norm_backward"]


def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """(y, mean, rsqrt(var + eps), new running_mean, new running_var); the running variance takes the unbiased one, as torch does."""
    if training or running_mean is None or running_var is None:
        parts = asked_parts()
        value, dims, count = parts.split(x), parts.dims(x), parts.count(x)
        mean = torch.sum(value, dims) / count
        centred = value - parts.per_part(mean, x)
        var = torch.sum(centred * centred, dims) / count
        if running_mean is not None and running_var is not None:
            unbiased = parts.first(var) * (count / max(count - 1, 1))
            # In 16 bits too they are updated in 32.
            running_mean = (widened(running_mean) * (1 - momentum) + parts.first(mean) * momentum).to(running_mean.dtype)
            running_var = (widened(running_var) * (1 - momentum) + unbiased * momentum).to(running_var.dtype)
    else:
        parts = WHOLE
        value = parts.split(x)
        mean, var = widened(running_mean), widened(running_var)
        centred = value - parts.per_part(mean, x)
    invstd = torch.rsqrt(var + eps)
    result = centred * parts.per_part(invstd, x)
    if weight is not None:
        result = result * parts.per_channel(weight, x)
    if bias is not None:
        result = result + parts.per_channel(bias, x)
    return parts.joined(result, x).to(x.dtype), mean, invstd, running_mean, running_var


def batch_norm_no_stats(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    return batch_norm(x, weight, bias, None, None, training, momentum, eps)[:3]


def batch_norm_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_invstd: Tensor | None,
    training: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    if training and save_mean is not None and save_invstd is not None:
        parts, mean, invstd = asked_parts(), save_mean, save_invstd
    elif running_mean is not None and running_var is not None:
        parts, mean, invstd = WHOLE, widened(running_mean), torch.rsqrt(widened(running_var) + eps)
    else:
        raise Unsupported("batch norm without statistics cannot be differentiated; keep track_running_stats on or train it")
    g, dims, count = parts.split(grad), parts.dims(x), parts.count(x)
    normal = (parts.split(x) - parts.per_part(mean, x)) * parts.per_part(invstd, x)
    grad_bias = torch.sum(g, dims)
    grad_weight = torch.sum(g * normal, dims)
    scale = parts.per_part(invstd if weight is None else invstd * weight, x)
    if training:
        g = g - parts.per_part(grad_bias / count, x) - normal * parts.per_part(grad_weight / count, x)
    grad_x = parts.joined(g * scale, x).to(x.dtype)
    return (
        grad_x if output_mask[0] else None,
        parts.total(grad_weight) if output_mask[1] else None,
        parts.total(grad_bias) if output_mask[2] else None,
    )


def _groups(x: Tensor, samples: int, channels: int, positions: int, groups: int) -> Tensor:
    """x [N, C, ...] as [N, groups, C/groups, positions]: the dims of each are factors of the view, so the batch and the groups split."""
    return torch.reshape(widened(x), [samples, groups, channels // groups, positions])


def _by_group(weight: Tensor, groups: int) -> Tensor:
    return torch.reshape(widened(weight), [1, groups, weight.shape[0] // groups, 1])


def group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, samples: int, channels: int, positions: int, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """(y, mean, rsqrt(var + eps)), the latter two [N, groups]."""
    value = _groups(x, samples, channels, positions, groups)
    count = channels // groups * positions
    mean = torch.sum(value, [2, 3], True) / count
    centred = value - mean
    invstd = torch.rsqrt(torch.sum(centred * centred, [2, 3], True) / count + eps)
    result = centred * invstd
    if weight is not None:
        result = result * _by_group(weight, groups)
    if bias is not None:
        result = result + _by_group(bias, groups)
    return torch.reshape(result, x.shape).to(x.dtype), torch.squeeze(mean, [2, 3]), torch.squeeze(invstd, [2, 3])


def group_norm_backward(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    samples: int,
    channels: int,
    positions: int,
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    g, value = (_groups(t, samples, channels, positions, groups) for t in (grad, x))
    mean, invstd = (torch.reshape(t, [samples, groups, 1, 1]) for t in (mean, invstd))
    normal = (value - mean) * invstd
    grad_weight = torch.reshape(torch.sum(g * normal, [0, 3]), [channels]) if output_mask[1] else None
    grad_bias = torch.reshape(torch.sum(g, [0, 3]), [channels]) if output_mask[2] else None
    if not output_mask[0]:
        return None, grad_weight, grad_bias
    if weight is not None:
        g = g * _by_group(weight, groups)
    count = channels // groups * positions
    means = torch.sum(g, [2, 3], True) / count, torch.sum(g * normal, [2, 3], True) / count
    grad_x = (g - means[0] - normal * means[1]) * invstd
    return torch.reshape(grad_x, x.shape).to(x.dtype), grad_weight, grad_bias
