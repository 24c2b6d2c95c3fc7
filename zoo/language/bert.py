"""BERT and DNABERT with the masked-language-model head: a post-norm encoder, tied decoder with a bias of its own.

    x = ln(word(ids) + position + segment);   x = ln(x + attn(x));   x = ln(x + ffn(x));   logits = decoder(ln(gelu(dense(x))))

[Devlin et al. 2019, base and large;  Ji et al. 2021, DNABERT: BERT-base on overlapping 6-mers, 4^6 + 5 tokens, 512 positions]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.frontend import Program
from planner.ir.errors import InvalidProgram
from zoo.attention import SelfAttending, with_attention
from zoo.seeded import deferred_module, seeded_data
from zoo.text import chosen, divides, in_format, initialise, skewed_tokens, token_loss

__all__ = ["Bert", "bert", "dnabert"]

_IGNORED = -100


class SelfAttention(SelfAttending):
    """(batch, time, width) -> the same; every token sees every token."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__(heads, dropout)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.dense = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.by_head(project(x)) for project in (self.query, self.key, self.value))
        out: Tensor = self.dense(self.mixed(q, k, v, is_causal=False))
        return out


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.attention = SelfAttention(width, heads, dropout)
        self.ln_attention = nn.LayerNorm(width, eps=1e-12)
        self.intermediate = nn.Linear(width, hidden)
        self.output = nn.Linear(hidden, width)
        self.ln_output = nn.LayerNorm(width, eps=1e-12)

    def forward(self, x: Tensor) -> Tensor:
        x = self.ln_attention(x + F.dropout(self.attention(x), self.dropout, self.training))
        inner = self.output(F.gelu(self.intermediate(x)))
        out: Tensor = self.ln_output(x + F.dropout(inner, self.dropout, self.training))
        return out


class Bert(nn.Module):
    """Token ids (batch, time) -> logits (batch, time, vocab); all tokens in segment 0, none padded."""

    def __init__(self, layers: int, width: int, heads: int, hidden: int, vocab: int, positions: int = 512, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        self.word = nn.Embedding(vocab, width)
        self.position = nn.Embedding(positions, width)
        self.segment = nn.Embedding(2, width)
        self.ln = nn.LayerNorm(width, eps=1e-12)
        self.layers = nn.ModuleList(Layer(width, heads, hidden, dropout) for _ in range(layers))
        self.dense = nn.Linear(width, width)
        self.ln_head = nn.LayerNorm(width, eps=1e-12)
        self.decoder = nn.Linear(width, vocab)
        self.apply(initialise)
        self.decoder.weight = self.word.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.word(ids) + self.position(torch.arange(ids.shape[1], device=ids.device)) + self.segment.weight[0]
        x = F.dropout(self.ln(x), self.dropout, self.training)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.decoder(self.ln_head(F.gelu(self.dense(x))))
        return logits


@dataclass(frozen=True, slots=True)
class _Size:
    layers: int
    width: int
    heads: int


_SIZES: Mapping[str, _Size] = {"base": _Size(12, 768, 12), "large": _Size(24, 1024, 16)}


def bert(
    size: str = "base",
    layers: int | None = None,
    width: int | None = None,
    heads: int | None = None,
    vocab: int = 30522,
    batch: int = 8,
    seq: int = 128,
    dtype: str = "fp32",
    optimizer: str = "adamw",
    seed: int = 0,
    dropout: float = 0.0,
    attention: str = "eager",
) -> Program:
    """BERT pre-training on random tokens: 15 % of them masked, and asked for.

    Args:
        size: "base" or "large"; layers, width, heads each override one number of it.
        batch, seq: global batch and tokens per sample, at most 512.
        dtype: "fp32", "bf16" or "fp16".
        optimizer: "sgd" or "adamw".
        dropout: rate behind embeddings, of attention weights, and behind attention and feed-forward.
        attention: "eager", written out, or "fused", torch's scaled_dot_product_attention.

    Raises:
        InvalidProgram: an unknown size or dtype, heads that do not divide the width, or more than 512 tokens.
    """

    def draw(generator: torch.Generator) -> tuple[Tensor, ...]:
        return _masked(skewed_tokens(generator, batch, seq, vocab - 1), 0.15, 1, vocab - 1, generator)

    base = chosen("bert", _SIZES, size)
    return _program(f"bert-{size}", base, layers, width, heads, vocab, seq, dtype, optimizer, seed, draw, dropout, attention)


def dnabert(
    kmer: int = 6,
    layers: int | None = None,
    width: int | None = None,
    heads: int | None = None,
    batch: int = 8,
    seq: int = 512,
    dtype: str = "fp32",
    optimizer: str = "adamw",
    seed: int = 0,
    dropout: float = 0.0,
    attention: str = "eager",
) -> Program:
    """DNABERT: the masked model of BERT-base on random DNA, read as overlapping k-mers.

    Args:
        kmer: bases per token, 3 to 6; the vocabulary is 4^kmer and 5 special tokens.  Masks cover kmer tokens in a row, because one
            token alone could be read off its neighbours.
        layers, width, heads, batch, seq, dtype, optimizer, dropout, attention: as bert.

    Raises:
        InvalidProgram: another kmer, or as bert.
    """
    if kmer not in range(3, 7):
        raise InvalidProgram(f"dnabert: {kmer}-mers; DNABERT reads 3 to 6 bases per token")
    vocab = 4**kmer + 5

    def draw(generator: torch.Generator) -> tuple[Tensor, ...]:
        bases = torch.randint(0, 4, (batch, seq + kmer - 1), generator=generator)
        digits = [4**place * bases[:, place : place + seq] for place in range(kmer)]
        return _masked(5 + torch.stack(digits).sum(0), 0.15, kmer, 4, generator)

    return _program(f"dnabert-{kmer}", _SIZES["base"], layers, width, heads, vocab, seq, dtype, optimizer, seed, draw, dropout, attention)


def _masked(ids: Tensor, share: float, run: int, mask_token: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """(ids with ``share`` of them masked in runs, the ids where they are masked and -100 elsewhere); the first token always is."""
    starts = torch.rand(ids.shape, generator=generator) < share / run
    starts[:, 0] = True
    hidden = starts.clone()
    for shift in range(1, min(run, ids.shape[1])):
        hidden[:, shift:] |= starts[:, :-shift]
    return ids.masked_fill(hidden, mask_token), ids.masked_fill(~hidden, _IGNORED)


def _program(
    name: str,
    base: _Size,
    layers: int | None,
    width: int | None,
    heads: int | None,
    vocab: int,
    seq: int,
    dtype: str,
    optimizer: str,
    seed: int,
    draw: Callable[[torch.Generator], tuple[Tensor, ...]],
    dropout: float,
    attention: str,
) -> Program:
    depth, features, parts = layers or base.layers, width or base.width, heads or base.heads
    divides(name, parts, "heads", features, "a width of")
    if seq > 512:
        raise InvalidProgram(f"{name}: {seq} tokens exceed the 512 positions; give a smaller seq")
    build = with_attention(lambda: Bert(depth, features, parts, 4 * features, vocab, dropout=dropout), name, attention)
    data = seeded_data(draw, seed)
    return Program(deferred_module(in_format(build, name, dtype), seed), data(0), token_loss, optimizer, name=name, data=data, seed=seed)
