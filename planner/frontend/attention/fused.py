"""torch's fused kernels of attention: on CPUs one, on GPUs the flash kernel where it serves and elsewhere the memory-efficient one, or products.

What they ask of their operands is seen to here: one width of heads (on GPUs a multiple of 8), masks that are added, as many heads of keys as of
queries, elements of a row that stand together.
"""

from __future__ import annotations

import math
from enum import Enum

import torch
import torch.nn.functional as F
from torch import Tensor

from planner.frontend.attention.products import factor_of, folded, multiplied, multiplied_backward, repeated

__all__ = ["fused", "fused_backward"]

aten = torch.ops.aten

_HALVES = frozenset({torch.bfloat16, torch.float16})
_ROWS = 32
"""The efficient kernel's numbers per row come in multiples of so many."""
_WIDEST_SHORT = 256
"""Heads of 16 bits on GPUs that are wider have no fused kernel."""
_ALIGNED = 8
"""Elements by which the widths of heads, and the rows of a mask, are aligned on GPUs."""


class _Kernel(Enum):
    """NONE: the device has no fused kernel for the format."""

    CPU = "cpu"
    FLASH = "flash"
    EFFICIENT = "efficient"
    NONE = "none"


def fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool, scale: float | None) -> tuple[Tensor, Tensor]:
    """As ``attention`` of this room."""
    kernel = _kernel_for(q, k, v, mask, is_causal)
    if kernel is _Kernel.NONE:
        return multiplied(q, k, v, mask, is_causal, scale)
    factor, width = factor_of(q, scale), v.shape[-1]
    q, k, v = _of_one_width(kernel, q, *(repeated(x, q.shape[1]) for x in (k, v)))
    if kernel is _Kernel.CPU:
        out, rows = aten._scaled_dot_product_flash_attention_for_cpu.default(
            q, k, v, 0.0, is_causal, attn_mask=_added(mask, q.dtype), scale=factor
        )
    elif kernel is _Kernel.FLASH:
        out, rows, *_ = aten._scaled_dot_product_flash_attention.default(q, k, v, 0.0, is_causal, False, scale=factor)
    else:
        bias = _bias(mask, q, k)
        out, rows, *_ = aten._scaled_dot_product_efficient_attention.default(q, k, v, bias, True, 0.0, is_causal, scale=factor)
    return out[..., :width], rows[..., : q.shape[2]]


def fused_backward(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    is_causal: bool,
    scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """As ``attention_backward`` of this room."""
    kernel = _kernel_for(q, k, v, mask, is_causal)
    if kernel is _Kernel.NONE:
        return multiplied_backward(gradient, q, k, v, mask, out, logsumexp, is_causal, scale)
    factor, groups, width, value_width = factor_of(q, scale), k.shape[1], q.shape[-1], v.shape[-1]
    keys, values = (repeated(x, q.shape[1]) for x in (k, v))
    q, k, v, out, gradient = _of_one_width(kernel, q, keys, values, out, gradient)
    if kernel is _Kernel.CPU:
        dq, dk, dv = aten._scaled_dot_product_flash_attention_for_cpu_backward.default(
            gradient, q, k, v, out, logsumexp, 0.0, is_causal, attn_mask=_added(mask, q.dtype), scale=factor
        )
    elif kernel is _Kernel.FLASH:
        # nothing is drawn, so seed and offset are not read
        seed, offset = (torch.zeros(shape, dtype=torch.uint64, device=q.device) for shape in ((2,), ()))
        lengths, rows = (q.shape[2], k.shape[2]), logsumexp.contiguous()
        dq, dk, dv = aten._scaled_dot_product_flash_attention_backward.default(
            gradient, q, k, v, out, rows, None, None, *lengths, 0.0, is_causal, seed, offset, scale=factor
        )
    else:
        seed, offset = (torch.zeros((), dtype=torch.int64, device=q.device) for _ in range(2))
        rows, wanted = F.pad(logsumexp, (0, -logsumexp.shape[-1] % _ROWS), value=math.inf), [True, True, True, False]
        dq, dk, dv, _ = aten._scaled_dot_product_efficient_attention_backward.default(
            gradient, q, k, v, _bias(mask, q, k), out, rows, seed, offset, 0.0, wanted, is_causal, scale=factor
        )
    return dq[..., :width], folded(dk[..., :width], groups), folded(dv[..., :value_width], groups)


def _kernel_for(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool) -> _Kernel:
    """What performs attention.  The flash kernel's causal mask ends at the last key, torch's begins at the first: they agree on squares.

    Heads wider than 256 in 16 bits have none: with heads of 300 the efficient kernel, called as here, gave elements that were wrong by 20.6 where
    0.04 is allowed (one H200, torch 2.11, 2026-11-26; the cause is not known, torch's own call of it is right at 304).
    """
    if q.device.type == "cpu":
        return _Kernel.CPU
    if q.device.type != "cuda" or q.dtype is torch.float64:
        return _Kernel.NONE
    is_short, widest = q.dtype in _HALVES, max(q.shape[-1], v.shape[-1])
    if is_short and widest > _WIDEST_SHORT:
        return _Kernel.NONE
    serves = mask is None and is_short and (q.shape[2] == k.shape[2] or not is_causal)
    return _Kernel.FLASH if serves and torch.cuda.get_device_capability(q.device) >= (8, 0) else _Kernel.EFFICIENT


def _of_one_width(kernel: _Kernel, *operands: Tensor) -> list[Tensor]:
    """Each with heads of the largest width, zeros behind its own, and elements of a row that stand together."""
    widest = max(operand.shape[-1] for operand in operands)
    width = widest if kernel is _Kernel.CPU else widest + -widest % _ALIGNED
    padded = (F.pad(operand, (0, width - operand.shape[-1])) if operand.shape[-1] < width else operand for operand in operands)
    return [operand if operand.stride(-1) == 1 else operand.contiguous() for operand in padded]


def _added(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """The mask as what is added to scores, in their format or in float32, which the kernel of CPUs takes with all but float64."""
    if mask is None:
        return None
    if mask.dtype is torch.bool:
        return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -math.inf)
    return mask if mask.dtype is torch.float32 and dtype is not torch.float64 else mask.to(dtype)


def _bias(mask: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """The same for the efficient kernel: of the shape of the scores, with rows that begin at aligned places."""
    added = _added(mask, q.dtype)
    if added is None:
        return None
    keys = k.shape[2]
    rows = F.pad(added.to(q.dtype).expand(*added.shape[:-1], keys), (0, -keys % _ALIGNED))[..., :keys]
    return rows.expand(q.shape[0], q.shape[1], q.shape[2], keys)
