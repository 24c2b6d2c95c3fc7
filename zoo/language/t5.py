"""T5 v1.0: encoder-decoder with relative position biases, RMS norm, no biases, one embedding for both sides and the head.

    encoder   x += self(norm(x));  x += ff(norm(x))               decoder   the same with a causal self and cross attention in between
    logits = (norm(x) / sqrt(width)) embedding^T                                                      [Raffel et al. 2020, arXiv 1910.10683]

Positions enter as a bias per head and bucket of distances, learned once per side and added to the scores of each layer; scores are not
scaled.  The buckets of a sequence length are known beforehand, so they are a buffer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.frontend import Program
from zoo.language.llama import RMSNorm
from zoo.seeded import deferred_module, seeded_data
from zoo.text import chosen, in_format, skewed_tokens, token_loss

__all__ = ["T5", "t5"]


@dataclass(frozen=True, slots=True)
class _Size:
    """layers: of each side; size: features per head, which need not be width / heads."""

    layers: int
    width: int
    hidden: int
    heads: int
    size: int
    vocab: int = 32128


_SIZES: Mapping[str, _Size] = {
    "small": _Size(6, 512, 2048, 8, 64),
    "base": _Size(12, 768, 3072, 12, 64),
    "large": _Size(24, 1024, 4096, 16, 64),
    "3B": _Size(24, 1024, 16384, 32, 128),
    "11B": _Size(24, 1024, 65536, 128, 128),
}

_BUCKETS, _FAR = 32, 128


def buckets(length: int, two_way: bool) -> Tensor:
    """The bucket of each (query, key) distance, int64 (length, length).

    Half of a direction's buckets hold one distance each, the others grow logarithmically up to ``_FAR``.
    """
    distance = torch.arange(length) - torch.arange(length).unsqueeze(1)  # key - query
    count = _BUCKETS // 2 if two_way else _BUCKETS
    offset = (distance > 0) * count if two_way else torch.zeros_like(distance)
    away = distance.abs() if two_way else (-distance).clamp(min=0)
    exact = count // 2
    grown = exact + (torch.log(away.clamp(min=1) / exact) / math.log(_FAR / exact) * (count - exact)).long()
    return offset + torch.where(away < exact, away, grown.clamp(max=count - 1))


class Attention(nn.Module):
    """x (batch, time, width) looks at ``memory`` (batch, keys, width) with the bias (heads, time, keys), or none."""

    def __init__(self, width: int, heads: int, size: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.size, self.dropout = heads, size, dropout
        self.q = nn.Linear(width, heads * size, bias=False)
        self.k = nn.Linear(width, heads * size, bias=False)
        self.v = nn.Linear(width, heads * size, bias=False)
        self.o = nn.Linear(heads * size, width, bias=False)

    def forward(self, x: Tensor, memory: Tensor, bias: Tensor | None) -> Tensor:
        def by_head(projected: Tensor) -> Tensor:
            return projected.view(*projected.shape[:2], self.heads, self.size).transpose(1, 2)

        q, k, v = by_head(self.q(x)), by_head(self.k(memory)), by_head(self.v(memory))
        scores = q @ k.transpose(-2, -1)
        weights = F.softmax(scores if bias is None else scores + bias, dim=-1)
        weights = F.dropout(weights, self.dropout, self.training)
        out: Tensor = self.o((weights @ v).transpose(1, 2).reshape(*x.shape[:2], self.heads * self.size))
        return out


class FeedForward(nn.Module):
    def __init__(self, width: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.wi = nn.Linear(width, hidden, bias=False)
        self.wo = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.wo(F.dropout(F.relu(self.wi(x)), self.dropout, self.training))
        return out


class Block(nn.Module):
    def __init__(self, width: int, hidden: int, heads: int, size: int, crosses: bool, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.norm_self = RMSNorm(width)
        self.self_attention = Attention(width, heads, size, dropout)
        self.norm_cross = RMSNorm(width) if crosses else None
        self.cross_attention = Attention(width, heads, size, dropout) if crosses else None
        self.norm_ff = RMSNorm(width)
        self.ff = FeedForward(width, hidden, dropout)

    def forward(self, x: Tensor, bias: Tensor, memory: Tensor | None) -> Tensor:
        normal = self.norm_self(x)
        x = x + self._dropped(self.self_attention(normal, normal, bias))
        if self.cross_attention is not None and self.norm_cross is not None and memory is not None:
            x = x + self._dropped(self.cross_attention(self.norm_cross(x), memory, None))
        out: Tensor = x + self._dropped(self.ff(self.norm_ff(x)))
        return out

    def _dropped(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


class Stack(nn.Module):
    """One side: (batch, time, width) -> the same, normalised.  The decoder sees the past only, and ``memory``."""

    bucket: Tensor
    mask: Tensor  # of the decoder

    def __init__(self, layers: int, width: int, hidden: int, heads: int, size: int, seq: int, decodes: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.decodes, self.dropout = decodes, dropout
        self.relative = nn.Embedding(_BUCKETS, heads)
        self.blocks = nn.ModuleList(Block(width, hidden, heads, size, decodes, dropout) for _ in range(layers))
        self.norm = RMSNorm(width)
        self.register_buffer("bucket", buckets(seq, two_way=not decodes), persistent=False)
        if decodes:
            self.register_buffer("mask", torch.ones(seq, seq, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, x: Tensor, memory: Tensor | None) -> Tensor:
        bias: Tensor = self.relative(self.bucket).permute(2, 0, 1)
        if self.decodes:
            bias = bias.masked_fill(self.mask, float("-inf"))
        x = F.dropout(x, self.dropout, self.training)
        for block in self.blocks:
            x = block(x, bias, memory)
        return F.dropout(self.norm(x), self.dropout, self.training)


class T5(nn.Module):
    """Ids of the source (batch, seq) and of the target, shifted by one (batch, target_seq) -> logits (batch, target_seq, vocab)."""

    def __init__(
        self,
        layers: int,
        width: int,
        hidden: int,
        heads: int,
        size: int,
        vocab: int,
        seq: int,
        target_seq: int,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.shared = nn.Embedding(vocab, width)
        self.encoder = Stack(layers, width, hidden, heads, size, seq, decodes=False, dropout=dropout)
        self.decoder = Stack(layers, width, hidden, heads, size, target_seq, decodes=True, dropout=dropout)
        self.scale = width**-0.5
        self._initialise(width, hidden, heads, size)

    def _initialise(self, width: int, hidden: int, heads: int, size: int) -> None:
        """Deviations as in Mesh TensorFlow: they stand in for the scale that the scores lack."""
        nn.init.normal_(self.shared.weight, std=1.0)
        of = {"q": (width * size) ** -0.5, "o": (heads * size) ** -0.5, "wo": hidden**-0.5}
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=of.get(name.rpartition(".")[2], width**-0.5))
        for side in (self.encoder, self.decoder):
            nn.init.normal_(side.relative.weight, std=width**-0.5)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory = self.encoder(self.shared(source), None)
        x: Tensor = self.decoder(self.shared(target), memory)
        return F.linear(x * self.scale, self.shared.weight)


def t5(
    size: str = "base",
    layers: int | None = None,
    width: int | None = None,
    heads: int | None = None,
    hidden: int | None = None,
    vocab: int | None = None,
    batch: int = 8,
    seq: int = 512,
    target_seq: int | None = None,
    dtype: str = "fp32",
    optimizer: str = "adamw",
    seed: int = 0,
    dropout: float = 0.0,
) -> Program:
    """T5 on random pairs: the target is a prefix of the source read backwards.

    Args:
        size: "small", "base", "large", "3B" or "11B"; layers (of each side), width, heads, hidden, vocab each override one number of it.
            The size of a head stays (64 or 128) unless both width and heads are given: then it is width / heads.
        batch, seq, target_seq: global batch, tokens of the source and of the target (None: a quarter of the source).
        dtype: "fp32", "bf16" or "fp16".
        optimizer: "sgd" or "adamw".
        dropout: rate behind embeddings and each side's end, of attention weights, inside and behind every sub-layer.

    Raises:
        InvalidProgram: an unknown size or dtype.
    """
    base = chosen("t5", _SIZES, size)
    depth, features, parts = layers or base.layers, width or base.width, heads or base.heads
    head_size = max(features // parts, 1) if width and heads else base.size
    inner, words, outputs = hidden or base.hidden, vocab or base.vocab, target_seq or max(seq // 4, 1)
    build = in_format(lambda: T5(depth, features, inner, parts, head_size, words, seq, outputs, dropout), "t5", dtype)

    def draw(generator: torch.Generator) -> tuple[Tensor, ...]:
        source = skewed_tokens(generator, batch, max(seq, outputs), words)
        target = source.flip(1)[:, :outputs].contiguous()
        started = torch.cat([torch.zeros_like(target[:, :1]), target[:, :-1]], 1)
        return source[:, :seq].contiguous(), started, target

    data = seeded_data(draw, seed)
    return Program(deferred_module(build, seed), data(0), token_loss, optimizer, name=f"t5-{size}", data=data, seed=seed)
