"""A GPT-2 style decoder with weights as nn.Linear stores them, (out, in), and attention written out as matrix products.

    x = wte(ids) + wpe(positions);   x += attn(ln_1(x));   x += mlp(ln_2(x));   logits = lm_head(ln_f(x))       [Radford et al. 2019]

The query, key and value projections are separate matrices: a column split of each is a split over heads (SBP S(0) of the weight).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.frontend import Program
from planner.ir.errors import InvalidProgram
from zoo.attention import SelfAttending, with_attention
from zoo.seeded import deferred_module
from zoo.text import in_format, initialise, next_tokens, token_loss

__all__ = ["GPT", "gpt"]


class Attention(SelfAttending):
    def __init__(self, width: int, heads: int, seq: int, dropout: float = 0.0) -> None:
        super().__init__(heads, dropout)
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width)
        self.v = nn.Linear(width, width)
        self.c_proj = nn.Linear(width, width)
        self.register_buffer("mask", torch.ones(seq, seq, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.by_head(project(x)) for project in (self.q, self.k, self.v))
        out: Tensor = self.c_proj(self.mixed(q, k, v, is_causal=True))
        return out


class FeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width)
        self.c_proj = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))
        return out


class Block(nn.Module):
    def __init__(self, width: int, heads: int, seq: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.ln_1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads, seq, dropout)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = FeedForward(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + F.dropout(self.attn(self.ln_1(x)), self.dropout, self.training)
        out: Tensor = x + F.dropout(self.mlp(self.ln_2(x)), self.dropout, self.training)
        return out


class GPT(nn.Module):
    """Token ids (batch, time) -> logits (batch, time, vocab).

    Args:
        seq: the longest input.   context: positions that have an embedding (``seq`` if None).
        dropout: behind the embeddings, of the attention's weights, and behind each attention and feed-forward.
    """

    def __init__(
        self, layers: int, width: int, heads: int, vocab: int, seq: int, tied: bool, context: int | None = None, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.wte = nn.Embedding(vocab, width)
        self.wpe = nn.Embedding(context or seq, width)
        self.h = nn.ModuleList(Block(width, heads, seq, dropout) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocab, bias=False)
        self.apply(initialise)
        if tied:
            self.lm_head.weight = self.wte.weight

    def forward(self, ids: Tensor) -> Tensor:
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = F.dropout(self.wte(ids) + self.wpe(positions), self.dropout, self.training)
        for block in self.h:
            x = block(x)
        logits: Tensor = self.lm_head(self.ln_f(x))
        return logits


def gpt(
    layers: int = 4,
    width: int = 256,
    heads: int = 8,
    vocab: int = 2048,
    batch: int = 8,
    seq: int = 128,
    tied: int = 1,
    dtype: str = "fp32",
    optimizer: str = "adamw",
    seed: int = 0,
    dropout: float = 0.0,
    attention: str = "eager",
) -> Program:
    """A GPT-2 style language model on random tokens of skewed frequency.

    Args:
        layers, width, heads, vocab: the architecture; heads must divide width.
        batch, seq: global batch and tokens per sample.
        tied: 1 shares the embedding with the head, 0 does not.
        dtype: "fp32", "bf16" or "fp16".
        optimizer: "sgd" or "adamw".
        dropout: rate behind embeddings, of attention weights, and behind attention and feed-forward.
        attention: "eager", written out, or "fused", torch's scaled_dot_product_attention.

    Raises:
        InvalidProgram: heads does not divide width, or an unknown dtype or attention.
    """
    if width % heads:
        raise InvalidProgram(f"gpt: {heads} heads do not divide a width of {width}")
    build = with_attention(lambda: GPT(layers, width, heads, vocab, seq, bool(tied), dropout=dropout), "gpt", attention)
    data = next_tokens(batch, seq, vocab, seed)
    return Program(deferred_module(in_format(build, "gpt", dtype), seed), data(0), token_loss, optimizer, name="gpt", data=data, seed=seed)
