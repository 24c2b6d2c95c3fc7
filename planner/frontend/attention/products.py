"""Attention written out as products and a softmax: for devices and formats without a fused kernel, and for gradients of gradients."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["differentiable_gradients", "factor_of", "folded", "multiplied", "multiplied_backward", "repeated"]

_SAME = frozenset({torch.float32, torch.float64})


def repeated(x: Tensor, heads: int) -> Tensor:
    """[N, heads, T, E] of [N, G, T, E]: each head as often as heads of queries share it."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


def folded(gradient: Tensor, groups: int) -> Tensor:
    """[N, G, T, E] of [N, H, T, E]: the adjoint of ``repeated``."""
    return gradient if gradient.shape[1] == groups else gradient.reshape(gradient.shape[0], groups, -1, *gradient.shape[2:]).sum(2)


def multiplied(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool, scale: float | None) -> tuple[Tensor, Tensor]:
    """As ``attention`` of this room."""
    wide = _wide(q, k, v)
    scores = _scores(wide[0], wide[1], mask, is_causal, scale)
    logsumexp = scores.logsumexp(-1)
    logsumexp = logsumexp.masked_fill(logsumexp == -math.inf, 0)
    return (_weights(scores, logsumexp) @ repeated(wide[2], q.shape[1])).to(q.dtype), logsumexp


def multiplied_backward(
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
    g, o, *wide = _wide(gradient, out, q, k, v)
    weights = _weights(_scores(wide[0], wide[1], mask, is_causal, scale), logsumexp)
    return _gradients(g, weights, (g * o).sum(-1, keepdim=True), wide, scale, q.dtype)


def differentiable_gradients(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool, scale: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v as functions of gradient, q, k and v that autograd can differentiate."""
    g, *wide = _wide(gradient, q, k, v)
    weights: Tensor = torch.ops.aten._safe_softmax.default(_scores(wide[0], wide[1], mask, is_causal, scale), -1)
    products = g @ repeated(wide[2], q.shape[1]).transpose(-2, -1)
    return _gradients(g, weights, (weights * products).sum(-1, keepdim=True), wide, scale, q.dtype)


def _gradients(
    g: Tensor, weights: Tensor, row_sums: Tensor, wide: list[Tensor], scale: float | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = wide
    heads, groups = q.shape[1], k.shape[1]
    of_scores = weights * (g @ repeated(v, heads).transpose(-2, -1) - row_sums) * factor_of(q, scale)
    dq, dk, dv = of_scores @ repeated(k, heads), of_scores.transpose(-2, -1) @ q, weights.transpose(-2, -1) @ g
    return dq.to(dtype), folded(dk, groups).to(dtype), folded(dv, groups).to(dtype)


def _wide(*operands: Tensor) -> list[Tensor]:
    """Formats of 16 bits as float32, in which fused kernels add up."""
    return [operand if operand.dtype in _SAME else operand.float() for operand in operands]


def factor_of(q: Tensor, scale: float | None) -> float:
    """The scale s, 1 / sqrt(E) by default."""
    return 1 / math.sqrt(q.shape[-1]) if scale is None else scale


def _scores(q: Tensor, k: Tensor, mask: Tensor | None, is_causal: bool, scale: float | None) -> Tensor:
    scores = (q * factor_of(q, scale)) @ repeated(k, q.shape[1]).transpose(-2, -1)
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    if mask is None:
        return scores
    return scores.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else scores + mask.to(scores.dtype)


def _weights(scores: Tensor, logsumexp: Tensor) -> Tensor:
    return torch.exp(scores - logsumexp.unsqueeze(-1))
