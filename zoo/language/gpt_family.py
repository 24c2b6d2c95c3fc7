"""GPT-2 and GPT-3 by their published sizes; the module is that of gpt.py with biases, learned positions and a tied head.

    GPT-2    Radford et al. 2019, table 2; the parameters as the released weights count them (124M, 355M, 774M, 1.5B)
    GPT-3    Brown et al. 2020, table 2.1; two rows there do not divide into heads and are taken as everybody runs them: 1.3B has 16 heads
             (24 printed), 13B is 5120 wide (5140 printed).  Attention is dense in every layer.
    alpa-*   the GPT rows of Zheng et al. 2022 (OSDI), 1024 tokens, vocabulary 51200

A vocabulary of 50257 cannot be cut evenly; vocab=50304 can, up to 128 ways.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from planner.frontend import Program
from planner.ir.errors import InvalidProgram
from zoo.attention import with_attention
from zoo.language.gpt import GPT
from zoo.seeded import deferred_module
from zoo.text import chosen, divides, in_format, next_tokens, token_loss

__all__ = ["gpt2", "gpt3", "published_sizes"]


@dataclass(frozen=True, slots=True)
class _Size:
    layers: int
    width: int
    heads: int
    context: int
    vocab: int = 50257


_GPT2: Mapping[str, _Size] = {
    "117M": _Size(12, 768, 12, 1024),
    "345M": _Size(24, 1024, 16, 1024),
    "762M": _Size(36, 1280, 20, 1024),
    "1.5B": _Size(48, 1600, 25, 1024),
}

_GPT3: Mapping[str, _Size] = {
    "125M": _Size(12, 768, 12, 2048),
    "350M": _Size(24, 1024, 16, 2048),
    "760M": _Size(24, 1536, 16, 2048),
    "1.3B": _Size(24, 2048, 16, 2048),
    "2.7B": _Size(32, 2560, 32, 2048),
    "6.7B": _Size(32, 4096, 32, 2048),
    "13B": _Size(40, 5120, 40, 2048),
    "175B": _Size(96, 12288, 96, 2048),
    "alpa-350M": _Size(24, 1024, 16, 1024, 51200),
    "alpa-760M": _Size(24, 1536, 16, 1024, 51200),
    "alpa-1.3B": _Size(24, 2048, 32, 1024, 51200),
    "alpa-2.6B": _Size(32, 2560, 32, 1024, 51200),
    "alpa-6.7B": _Size(32, 4096, 32, 1024, 51200),
    "alpa-15B": _Size(48, 5120, 40, 1024, 51200),
    "alpa-39B": _Size(48, 8192, 64, 1024, 51200),
}


def published_sizes(name: str) -> Mapping[str, Mapping[str, int]]:
    """Sizes of ``gpt2`` and ``gpt3`` by name, each with layers, width, heads, seq and vocab; of others none."""
    sizes = {"gpt2": _GPT2, "gpt3": _GPT3}.get(name, {})
    return {key: {"layers": s.layers, "width": s.width, "heads": s.heads, "seq": s.context, "vocab": s.vocab} for key, s in sizes.items()}


def gpt2(
    size: str = "117M",
    layers: int | None = None,
    width: int | None = None,
    heads: int | None = None,
    vocab: int | None = None,
    batch: int = 8,
    seq: int | None = None,
    tied: int = 1,
    dtype: str = "fp32",
    optimizer: str = "adamw",
    seed: int = 0,
    dropout: float = 0.0,
    attention: str = "eager",
) -> Program:
    """GPT-2 (117M, 345M, 762M, 1.5B) on random tokens.

    Args:
        size: a published size; layers, width, heads, vocab each override one number of it.
        batch, seq: global batch and tokens per sample (None: the whole context).
        tied: 1 shares the embedding with the head, 0 does not.
        dtype: "fp32", "bf16" or "fp16".
        optimizer: "sgd" or "adamw".
        dropout: rate behind embeddings, of attention weights, and behind attention and feed-forward.
        attention: "eager", written out, or "fused", torch's scaled_dot_product_attention.

    Raises:
        InvalidProgram: an unknown size or dtype, heads that do not divide the width, or more tokens than the context.
    """
    return _program("gpt2", _GPT2, size, layers, width, heads, vocab, batch, seq, tied, dtype, optimizer, seed, dropout, attention)


def gpt3(
    size: str = "175B",
    layers: int | None = None,
    width: int | None = None,
    heads: int | None = None,
    vocab: int | None = None,
    batch: int = 8,
    seq: int | None = None,
    tied: int = 1,
    dtype: str = "fp32",
    optimizer: str = "adamw",
    seed: int = 0,
    dropout: float = 0.0,
    attention: str = "eager",
) -> Program:
    """GPT-3 (125M ... 175B) and the GPTs of Alpa (alpa-350M ... alpa-39B); the arguments are those of gpt2.

    Raises:
        InvalidProgram: as gpt2.
    """
    return _program("gpt3", _GPT3, size, layers, width, heads, vocab, batch, seq, tied, dtype, optimizer, seed, dropout, attention)


def _program(
    model: str,
    sizes: Mapping[str, _Size],
    size: str,
    layers: int | None,
    width: int | None,
    heads: int | None,
    vocab: int | None,
    batch: int,
    seq: int | None,
    tied: int,
    dtype: str,
    optimizer: str,
    seed: int,
    dropout: float,
    attention: str,
) -> Program:
    base = chosen(model, sizes, size)
    depth, features, parts = layers or base.layers, width or base.width, heads or base.heads
    tokens, words = seq or base.context, vocab or base.vocab
    divides(model, parts, "heads", features, "a width of")
    if tokens > base.context:
        raise InvalidProgram(f"{model}: {tokens} tokens exceed the context of {base.context}; give a smaller seq")
    build = with_attention(lambda: GPT(depth, features, parts, words, tokens, bool(tied), base.context, dropout), model, attention)
    data = next_tokens(batch, tokens, words, seed)
    return Program(
        deferred_module(in_format(build, model, dtype), seed), data(0), token_loss, optimizer, name=f"{model}-{size}", data=data, seed=seed
    )
