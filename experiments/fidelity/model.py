"""Megatron's GPT, as far as a Plan can see it: which products, of which shape, with what between them.

    x = x + f(attn(ln_1(x)));   x = x + f(mlp(ln_2(x)))      q, k and v are one product; columns are ordered by head

f stands for Megatron's dropout: an elementwise kernel on what the row-parallel product gave.  Its backward pass reads what went in, so that
activation recomputation makes the whole layer again, as torch.utils.checkpoint does; without f (``whole=False``) it makes again only what the
backward pass reads, as OneFlow's compiler does, and leaves out each layer's last product.

Layers are numbered modules (h.3), which is what ``recompute`` makes again; with ``selective`` only the core of the attention is numbered
(h.l3.attn.core.0): scores, softmax and the sum over values (Korthikanti et al. 2022, section 5).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.frontend import Program
from zoo.language.gpt import FeedForward
from zoo.seeded import deferred_module

__all__ = ["GPTSize", "layer_paths", "megatron_gpt"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GPTSize:
    """Layers, hidden size, heads, sequence length and padded vocabulary of a GPT."""

    layers: int
    hidden: int
    heads: int
    seq: int
    vocab: int


class _Core(nn.Module):
    mask: Tensor

    def __init__(self, size: GPTSize) -> None:
        super().__init__()
        self.scale = 1.0 / math.sqrt(size.hidden // size.heads)
        self.register_buffer("mask", torch.ones(size.seq, size.seq, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = (q @ k.transpose(-2, -1)) * self.scale
        weights = F.softmax(scores.masked_fill(self.mask, float("-inf")), dim=-1)
        return weights @ v


class _Attention(nn.Module):
    def __init__(self, size: GPTSize, selective: bool) -> None:
        super().__init__()
        self.heads, self.time_first = size.heads, selective
        self.qkv = nn.Linear(size.hidden, 3 * size.hidden)
        self.c_proj = nn.Linear(size.hidden, size.hidden)
        self.core = nn.ModuleList([_Core(size)]) if selective else _Core(size)

    def forward(self, x: Tensor) -> Tensor:
        first, second, width = x.shape  # batch and time, or time and batch
        to_heads, back = ((1, 2, 0, 3), (2, 0, 1, 3)) if self.time_first else ((0, 2, 1, 3), (0, 2, 1, 3))
        qkv = self.qkv(x).view(first, second, self.heads, 3 * width // self.heads)
        q, k, v = (part.permute(to_heads) for part in qkv.chunk(3, dim=-1))
        core = self.core[0] if isinstance(self.core, nn.ModuleList) else self.core
        out: Tensor = self.c_proj(core(q, k, v).permute(back).reshape(first, second, width))
        return out


class _Layer(nn.Module):
    def __init__(self, size: GPTSize, selective: bool, whole: bool) -> None:
        super().__init__()
        self.whole = whole
        self.ln_1, self.ln_2 = nn.LayerNorm(size.hidden), nn.LayerNorm(size.hidden)
        self.attn = _Attention(size, selective)
        self.mlp = FeedForward(size.hidden)

    def forward(self, x: Tensor) -> Tensor:
        attended = self.attn(self.ln_1(x))
        x = x + (F.silu(attended) if self.whole else attended)
        fed = self.mlp(self.ln_2(x))
        out: Tensor = x + (F.silu(fed) if self.whole else fed)
        return out


class _GPT(nn.Module):
    def __init__(self, size: GPTSize, tied: bool, selective: bool, whole: bool) -> None:
        super().__init__()
        self.time_first = selective
        self.wte, self.wpe = nn.Embedding(size.vocab, size.hidden), nn.Embedding(size.seq, size.hidden)
        self.h = nn.ModuleDict({_layer_name(i, selective): _Layer(size, selective, whole) for i in range(size.layers)})
        self.ln_f = nn.LayerNorm(size.hidden)
        self.lm_head = nn.Linear(size.hidden, size.vocab, bias=False)
        self.log_probs = nn.LogSoftmax(dim=-1)
        if tied:
            self.lm_head.weight = self.wte.weight

    def forward(self, ids: Tensor) -> Tensor:
        positions = torch.arange(ids.shape[1], device=ids.device)
        if self.time_first:
            x: Tensor = self.wte(ids.t()) + self.wpe(positions.unsqueeze(1))
        else:
            x = self.wte(ids) + self.wpe(positions)
        for layer in self.h.values():
            x = layer(x)
        out: Tensor = self.log_probs(self.lm_head(self.ln_f(x)))
        return out


def _layer_name(index: int, selective: bool) -> str:
    return f"l{index}" if selective else str(index)


def layer_paths(layers: int, *, selective: bool) -> tuple[str, ...]:
    """Module paths of the layers, in order."""
    return tuple(f"h.{_layer_name(i, selective)}" for i in range(layers))


def megatron_gpt(size: GPTSize, *, batch: int, tied: bool, selective: bool = False, whole: bool = True) -> Program:
    """A step of ``batch`` sequences in float16 with AdamW; neither weights nor tokens have values, it is there to be planned.

    Args:
        batch: sequences per step, of all devices.   tied: the head is the embedding.
        selective: only the attention's core is numbered, and activations are (time, batch, hidden), as sequence parallelism has them.
        whole: with f.
    """
    build = partial(_half, size, tied, selective, whole)
    tokens = torch.empty((batch, size.seq), dtype=torch.int64, device="meta")
    loss = _time_first_loss if selective else _token_loss
    return Program(deferred_module(build, 0), (tokens, tokens.clone()), loss, "adamw", name="megatron-gpt")


def _half(size: GPTSize, tied: bool, selective: bool, whole: bool) -> nn.Module:
    return _GPT(size, tied, selective, whole).half()


def _token_loss(log_probs: Tensor, target: Tensor) -> Tensor:
    return F.nll_loss(log_probs.view(-1, log_probs.shape[-1]), target.view(-1))


def _time_first_loss(log_probs: Tensor, target: Tensor) -> Tensor:
    return _token_loss(log_probs, target.t().contiguous())
