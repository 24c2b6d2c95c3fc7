"""Llama 3: RMS norm, rotary positions, grouped-query attention, SwiGLU, no biases, untied head.   [Grattafiori et al. 2024, table 3]

    x += o(attention(rotated q, rotated k, v));   x += down(silu(gate(x)) * up(x));   logits = lm_head(norm(x))

Several query heads share a key-value head; heads are numbered so that those which share stand together, so a cut of the key-value heads
cuts the query heads with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.frontend import Program
from zoo.attention import Attending, with_attention
from zoo.seeded import deferred_module
from zoo.text import chosen, divides, in_format, initialise, next_tokens, token_loss

__all__ = ["FeedForward", "Llama", "RMSNorm", "llama3", "published_llamas", "rotary_angles", "rotated"]


@dataclass(frozen=True, slots=True)
class _Size:
    layers: int
    width: int
    heads: int
    kv_heads: int
    hidden: int
    vocab: int = 128256


_SIZES: Mapping[str, _Size] = {
    "8B": _Size(32, 4096, 32, 8, 14336),
    "70B": _Size(80, 8192, 64, 8, 28672),
    "405B": _Size(126, 16384, 128, 8, 53248),
}

_ROTARY_BASE = 500_000.0


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


def rotary_angles(seq: int, size: int, base: float) -> Tensor:
    """By which angle each position turns the numbers of a head: [seq, size], the same for i and i + size/2.   [Su et al. 2021]"""
    frequency = base ** (-torch.arange(0, size, 2) / size)
    return torch.outer(torch.arange(seq), frequency).repeat(1, 2)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Each pair (i, i + size/2) of a head turned by its position's angle: x is [..., seq, size], cos and sin [seq, size]."""
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat([-high, low], -1) * sin


class Attention(Attending):
    """(batch, time, width) -> the same; causal."""

    cos: Tensor
    sin: Tensor
    mask: Tensor

    def __init__(self, width: int, heads: int, kv_heads: int, seq: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, width // heads
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, kv_heads * self.size, bias=False)
        self.v_proj = nn.Linear(width, kv_heads * self.size, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)
        angle = rotary_angles(seq, self.size, _ROTARY_BASE)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        self.register_buffer("mask", torch.ones(seq, seq, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        share = self.heads // self.kv_heads

        def by_head(projected: Tensor, heads: int) -> Tensor:
            return projected.view(batch, time, heads, self.size).transpose(1, 2)

        def shared(kv: Tensor) -> Tensor:
            return kv.unsqueeze(2).expand(-1, -1, share, -1, -1).reshape(batch, self.heads, time, self.size)

        q = rotated(by_head(self.q_proj(x), self.heads), self.cos, self.sin)
        k, v = rotated(by_head(self.k_proj(x), self.kv_heads), self.cos, self.sin), by_head(self.v_proj(x), self.kv_heads)
        if self.fused:
            mixed = self.attend(q, k, v, is_causal=True)
            fused: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, time, width))
            return fused
        k, v = shared(k), shared(v)
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(self.size))
        weights = F.softmax(scores.masked_fill(self.mask, float("-inf")), dim=-1)
        out: Tensor = self.o_proj((weights @ v).transpose(1, 2).reshape(batch, time, width))
        return out


class FeedForward(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, hidden, bias=False)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int, hidden: int, seq: int) -> None:
        super().__init__()
        self.input_norm = RMSNorm(width)
        self.attention = Attention(width, heads, kv_heads, seq)
        self.mlp_norm = RMSNorm(width)
        self.mlp = FeedForward(width, hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.input_norm(x))
        out: Tensor = x + self.mlp(self.mlp_norm(x))
        return out


class Llama(nn.Module):
    """Token ids (batch, seq) -> logits (batch, seq, vocab)."""

    def __init__(self, layers: int, width: int, heads: int, kv_heads: int, hidden: int, vocab: int, seq: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(Layer(width, heads, kv_heads, hidden, seq) for _ in range(layers))
        self.norm = RMSNorm(width)
        self.lm_head = nn.Linear(width, vocab, bias=False)
        self.apply(initialise)

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.lm_head(self.norm(x))
        return logits


def published_llamas() -> Mapping[str, Mapping[str, int]]:
    """Sizes of ``llama3`` by name, each with the numbers that its arguments override."""
    keys = ("layers", "width", "heads", "kv_heads", "hidden", "vocab")
    return {name: {key: getattr(size, key) for key in keys} for name, size in _SIZES.items()}


def llama3(
    size: str = "8B",
    layers: int | None = None,
    width: int | None = None,
    heads: int | None = None,
    kv_heads: int | None = None,
    hidden: int | None = None,
    vocab: int | None = None,
    batch: int = 8,
    seq: int = 2048,
    dtype: str = "fp32",
    optimizer: str = "adamw",
    seed: int = 0,
    attention: str = "fused",
) -> Program:
    """Llama 3 on random tokens.

    Args:
        size: "8B", "70B" or "405B"; layers, width, heads, kv_heads, hidden, vocab each override one number of it.
        batch, seq: global batch and tokens per sample.
        dtype: "fp32", "bf16" or "fp16".
        optimizer: "sgd" or "adamw".
        attention: "fused", torch's scaled_dot_product_attention, or "eager", written out.

    Raises:
        InvalidProgram: an unknown size or dtype, or heads that do not divide what they share.
    """
    base = chosen("llama3", _SIZES, size)
    depth, features, parts = layers or base.layers, width or base.width, heads or base.heads
    shared, inner, words = kv_heads or base.kv_heads, hidden or base.hidden, vocab or base.vocab
    divides("llama3", parts, "heads", features, "a width of")
    divides("llama3", shared, "key-value heads", parts, "the heads,")
    divides("llama3", 2, "halves", features // parts, "a head of size")
    build = with_attention(lambda: Llama(depth, features, parts, shared, inner, words, seq), "llama3", attention)
    data = next_tokens(batch, seq, words, seed)
    return Program(
        deferred_module(in_format(build, "llama3", dtype), seed),
        data(0),
        token_loss,
        optimizer,
        name=f"llama3-{size}",
        data=data,
        seed=seed,
    )
