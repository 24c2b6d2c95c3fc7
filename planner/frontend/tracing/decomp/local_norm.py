"""Batch norm with the statistics of each part of the batch, as under torch's DistributedDataParallel, where a part is what one device has.

x [N, C, ..] = [parts, N/parts, C, ..]     mu, var [parts, C]: sums over N/parts and ..      y = (x - mu) rsqrt(var + eps) w + b
its gradient                               as of batch norm, part by part; dw, db: sums over parts as well
running statistics                         of the first part: what a checkpoint of the first rank has

The parts are a dim of their own: split over the devices it costs no communication, and any other layout gives the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn
from torch._ops import OpOverload

from planner.frontend.tracing.decomp import norms
from planner.frontend.tracing.decomp.precision import widened
from planner.ir.errors import InvalidProgram, Unsupported

__all__ = ["check_batch_norms", "local_batch_norm", "statistics_of_parts"]

aten = torch.ops.aten

_PARTS: ContextVar[int] = ContextVar("parts", default=1)


@contextmanager
def statistics_of_parts(parts: int) -> Iterator[None]:
    """What is traced within takes batch norms over each of ``parts`` parts of the batch; 1: over the whole."""
    token = _PARTS.set(parts)
    try:
        yield
    finally:
        _PARTS.reset(token)


def check_batch_norms(module: nn.Module) -> None:
    """Raises Unsupported: local statistics are asked for, and the module has no batch norm, or one that asks for global ones."""
    norms_by_name = {name: child for name, child in module.named_modules() if isinstance(child, nn.modules.batchnorm._BatchNorm)}
    if not norms_by_name:
        raise Unsupported("batch norm local was asked for, and the module has no batch norm; leave it out")
    if synchronised := [name for name, child in norms_by_name.items() if isinstance(child, nn.SyncBatchNorm)]:
        raise Unsupported(
            f"batch norm local was asked for, and {synchronised[0]} is a SyncBatchNorm, whose statistics are global; leave the option out, or "
            "build the module with BatchNorm"
        )


def local_batch_norm() -> dict[OpOverload, Callable[..., object]]:
    """Batch norm and its gradient over each part, in the place of those over the batch; empty outside of ``statistics_of_parts``."""
    parts = _PARTS.get()
    if parts == 1:
        return {}

    def in_parts(x: Tensor) -> Tensor:
        if x.shape[0] % parts:
            raise InvalidProgram(
                f"batch norm over each of {parts} parts (--batch-norm local) needs as many samples in each, but a micro-batch has {x.shape[0]}; "
                f"choose micro-batches that {parts} divides, or --batch-norm global"
            )
        return torch.reshape(widened(x), [parts, x.shape[0] // parts, *x.shape[1:]])

    def by_part(statistic: Tensor, x: Tensor) -> Tensor:
        return torch.reshape(statistic, [parts, 1, x.shape[1]] + [1] * (x.ndim - 2))

    def by_channel(weight: Tensor, x: Tensor) -> Tensor:
        return torch.reshape(weight, [1, 1, x.shape[1]] + [1] * (x.ndim - 2))

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
        if not training and running_mean is not None:
            return norms.batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps)
        value, dims = in_parts(x), [1, *range(3, x.ndim + 1)]
        count = x.numel() // x.shape[1] // parts
        mean = torch.sum(value, dims) / count
        centred = value - by_part(mean, x)
        var = torch.sum(centred * centred, dims) / count
        if running_mean is not None and running_var is not None:
            first_mean, first_var = (torch.squeeze(torch.narrow(s, 0, 0, 1), 0) for s in (mean, var))
            running_mean = running_mean * (1 - momentum) + first_mean * momentum
            running_var = running_var * (1 - momentum) + first_var * (count / max(count - 1, 1)) * momentum
        invstd = torch.rsqrt(var + eps)
        result = centred * by_part(invstd, x)
        if weight is not None:
            result = result * by_channel(weight, x)
        if bias is not None:
            result = result + by_channel(bias, x)
        return torch.reshape(result, x.shape).to(x.dtype), mean, invstd, running_mean, running_var

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
        if not training or save_mean is None or save_invstd is None:
            return norms.batch_norm_backward(grad, x, weight, running_mean, running_var, save_mean, save_invstd, training, eps, output_mask)
        dims = [1, *range(3, x.ndim + 1)]
        count = x.numel() // x.shape[1] // parts
        g, invstd = in_parts(grad), by_part(save_invstd, x)
        normal = (in_parts(x) - by_part(save_mean, x)) * invstd
        grad_bias, grad_weight = torch.sum(g, dims), torch.sum(g * normal, dims)
        g = g - by_part(grad_bias / count, x) - normal * by_part(grad_weight / count, x)
        grad_x = torch.reshape(g * (invstd if weight is None else invstd * by_channel(weight, x)), x.shape).to(x.dtype)
        return (
            grad_x if output_mask[0] else None,
            torch.sum(grad_weight, [0]) if output_mask[1] else None,
            torch.sum(grad_bias, [0]) if output_mask[2] else None,
        )

    # as in the table of decompositions
    return {
        aten._native_batch_norm_legit_functional.default: batch_norm,
        aten._native_batch_norm_legit.no_stats: batch_norm_no_stats,
        aten.native_batch_norm_backward.default: batch_norm_backward,
    }
