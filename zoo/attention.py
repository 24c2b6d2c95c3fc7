"""The two forms of the zoo's attention: written out as products and a softmax, or torch's scaled_dot_product_attention, which plans keep whole.

GPT, BERT, the mixtures of experts and ViT are written out unless asked otherwise: committed measurements are of that form.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from planner.ir.errors import InvalidProgram

__all__ = ["Attending", "SelfAttending", "with_attention"]

_FORMS = ("fused", "eager")


class Attending(nn.Module):
    """Attention of a layer.   fused: by torch's function instead of as it is written out."""

    fused = False

    def fuse(self) -> None:
        """From here on by torch's function, which needs no mask in memory."""
        self.fused = True
        self._buffers.pop("mask", None)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool, dropout: float = 0.0) -> Tensor:
        """[N, H, S, D] from queries [N, H, S, E], keys [N, G, T, E] and values [N, G, T, D], H a multiple of G."""
        shares = q.shape[1] != k.shape[1]
        rate = dropout if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=is_causal, enable_gqa=shares)


class SelfAttending(Attending):
    """Attention of one sequence to itself, with as many heads of keys as of queries; causal ones hold a buffer ``mask``, true above the diagonal."""

    mask: Tensor

    def __init__(self, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout

    def by_head(self, projected: Tensor) -> Tensor:
        """[N, H, S, E] of [N, S, H E]."""
        batch, time, width = projected.shape
        return projected.view(batch, time, self.heads, width // self.heads).transpose(1, 2)

    def mixed(self, q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool) -> Tensor:
        """What each position takes from all, or from those up to it: [N, S, H E] of queries, keys and values [N, H, S, E]."""
        batch, heads, time, size = q.shape
        if self.fused:
            values = self.attend(q, k, v, is_causal=is_causal, dropout=self.dropout)
        else:
            scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(size))
            if is_causal:
                scores = scores.masked_fill(self.mask[:time, :time], float("-inf"))
            values = F.dropout(F.softmax(scores, dim=-1), self.dropout, self.training) @ v
        return values.transpose(1, 2).reshape(batch, time, heads * size)


def with_attention(build: Callable[[], nn.Module], model: str, form: str) -> Callable[[], nn.Module]:
    """``build`` with attention "fused" or "eager"; InvalidProgram: neither."""
    if form not in _FORMS:
        raise InvalidProgram(f"{model}: attention {form!r} is not known; choose from {', '.join(_FORMS)}")
    return build if form == "eager" else lambda: _fused(build())


def _fused(module: nn.Module) -> nn.Module:
    for layer in module.modules():
        if isinstance(layer, Attending):
            layer.fuse()
    return module
