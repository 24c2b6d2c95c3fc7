"""A decoder whose every other feed-forward is a mixture of experts, as in GShard: each token goes to two experts, each expert has room for C.

    gates     = softmax(x W)                                         [G, S, E]      G groups (the samples) of S tokens, E experts
    dispatch  : token s of group g takes place c of expert e         [G, S, E, C]   0 or 1, from cumulative sums along S
    inputs    = einsum("gsec,gsm->egcm", dispatch, x)                [E, G, C, M]   cut by groups before, by experts after: an all-to-all
    outputs   = relu(inputs W_in[e]) W_out[e]                        [E, G, C, M]   one batched product: experts are a tensor dim
    y         = einsum("gsec,egcm->gsm", combine, outputs)           [G, S, M]      the second all-to-all
    balance   = E mean over g, e of (share of tokens whose first choice is e) (mean gate of e)        [Lepikhin et al. 2020, algorithm 1]

A token that finds both its experts full passes by on the residual.  The second expert is always asked: GShard flips a coin for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.frontend import Program
from planner.ir.errors import InvalidProgram
from zoo.attention import with_attention
from zoo.language.gpt import Attention
from zoo.seeded import deferred_module
from zoo.text import chosen, divides, in_format, initialise, next_tokens, token_loss

__all__ = ["MoE", "moe"]

_BALANCE = 0.01


@dataclass(frozen=True, slots=True)
class _Size:
    layers: int
    width: int
    heads: int
    experts: int
    vocab: int = 32000


_SIZES: Mapping[str, _Size] = {
    "380M": _Size(8, 768, 16, 8),
    "690M": _Size(8, 768, 16, 16),
    "1.3B": _Size(16, 768, 16, 16),
    "2.4B": _Size(16, 1024, 16, 16),
    "10B": _Size(16, 1536, 16, 32),
    "27B": _Size(16, 2048, 16, 48),
    "70B": _Size(32, 2048, 16, 64),
}
"""The mixtures that Zheng et al. 2022 (OSDI) measure Alpa on; all feed-forwards are 8 times as wide as the model, which gives their names."""


class Experts(nn.Module):
    """(batch, time, width) -> (the same, balance)."""

    def __init__(self, width: int, hidden: int, experts: int, capacity: int) -> None:
        super().__init__()
        self.experts, self.capacity = experts, capacity
        self.gate = nn.Linear(width, experts, bias=False)
        self.w_in = nn.Parameter(torch.empty(experts, width, hidden))
        self.w_out = nn.Parameter(torch.empty(experts, hidden, width))
        nn.init.normal_(self.w_in, std=0.02)
        nn.init.normal_(self.w_out, std=0.02)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        gates = F.softmax(self.gate(x), dim=-1)
        first = self._choice(gates)
        second = self._choice(gates.masked_fill(first, -1.0))
        taken = torch.cumsum(first.float(), 1)  # bf16 would count to 256 only
        # those who come second queue behind all who come first
        queued = torch.cumsum(second.float(), 1) + taken[:, -1:]
        dispatch = (self._places(first, taken) | self._places(second, queued)).to(x.dtype)
        share = gates / (gates * (first | second)).sum(-1, keepdim=True)
        combine = share.unsqueeze(-1) * dispatch

        inputs = torch.einsum("gsec,gsm->egcm", dispatch, x)
        experts, groups, places, width = inputs.shape
        hidden = F.relu(torch.bmm(inputs.reshape(experts, groups * places, width), self.w_in))
        outputs = torch.bmm(hidden, self.w_out).view(experts, groups, places, width)
        out = torch.einsum("gsec,egcm->gsm", combine, outputs)
        balance = self.experts * (first.to(x.dtype).mean(1) * gates.mean(1)).sum(-1).mean()
        return out, balance

    def _choice(self, gates: Tensor) -> Tensor:
        """Where each token's largest gate is, bool [G, S, E]."""
        best = gates.detach().argmax(-1, keepdim=True)
        return best == torch.arange(self.experts, device=gates.device)

    def _places(self, chosen_by: Tensor, order: Tensor) -> Tensor:
        """Where token s takes place c of expert e, bool [G, S, E, C]; ``order`` counts from 1, and whom there is no room for takes none."""
        place = torch.arange(1, self.capacity + 1, device=order.device)
        return (order.unsqueeze(-1) == place) & chosen_by.unsqueeze(-1)


class FeedForward(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.c_fc = nn.Linear(width, hidden)
        self.c_proj = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.c_proj(F.relu(self.c_fc(x)))
        return out


class Block(nn.Module):
    """Dense, or with experts: then the balance of its gate comes along."""

    def __init__(self, width: int, heads: int, hidden: int, seq: int, mlp: nn.Module, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.ln_1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads, seq, dropout)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = mlp

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        x = x + self._dropped(self.attn(self.ln_1(x)))
        output = self.mlp(self.ln_2(x))
        if isinstance(output, Tensor):
            return x + self._dropped(output), None
        return x + self._dropped(output[0]), output[1]

    def _dropped(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


class MoE(nn.Module):
    """Token ids (batch, seq) -> (logits (batch, seq, vocab), mean balance of the gates)."""

    def __init__(
        self,
        layers: int,
        width: int,
        heads: int,
        hidden: int,
        experts: int,
        capacity: int,
        vocab: int,
        seq: int,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.wte = nn.Embedding(vocab, width)
        self.wpe = nn.Embedding(seq, width)
        mixed = [Experts(width, hidden, experts, capacity) if i % 2 else FeedForward(width, hidden) for i in range(layers)]
        self.h = nn.ModuleList(Block(width, heads, hidden, seq, mlp, dropout) for mlp in mixed)
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocab, bias=False)
        self.apply(initialise)
        self.lm_head.weight = self.wte.weight

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        x = F.dropout(x, self.dropout, self.training)
        balances = []
        for block in self.h:
            x, balance = block(x)
            if balance is not None:
                balances.append(balance)
        return self.lm_head(self.ln_f(x)), torch.stack(balances).mean()


def _balanced_loss(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    logits, balance = output
    return token_loss(logits, target) + _BALANCE * balance


def moe(
    size: str = "380M",
    layers: int | None = None,
    width: int | None = None,
    heads: int | None = None,
    experts: int | None = None,
    hidden: int | None = None,
    capacity: float = 2.0,
    vocab: int | None = None,
    batch: int = 8,
    seq: int = 1024,
    dtype: str = "fp32",
    optimizer: str = "adamw",
    seed: int = 0,
    dropout: float = 0.0,
    attention: str = "eager",
) -> Program:
    """A mixture of experts on random tokens.

    Args:
        size: 380M ... 70B; layers (the odd ones have experts), width, heads, experts, hidden, vocab each override one number of it.
        capacity: room per expert, as a multiple of seq / experts.
        batch, seq: global batch and tokens per sample; a sample is a group of GShard.
        dtype: "fp32", "bf16" or "fp16".
        optimizer: "sgd" or "adamw".
        dropout: rate behind embeddings, of attention weights, and behind attention and feed-forward.
        attention: "eager", written out, or "fused", torch's scaled_dot_product_attention.

    Raises:
        InvalidProgram: an unknown size or dtype, heads that do not divide the width, fewer than 2 layers or experts, or more experts than tokens.
    """
    base = chosen("moe", _SIZES, size)
    depth, features, parts = layers or base.layers, width or base.width, heads or base.heads
    many, inner, words = experts or base.experts, hidden or 8 * features, vocab or base.vocab
    divides("moe", parts, "heads", features, "a width of")
    if depth < 2 or many < 2:
        raise InvalidProgram(f"moe: {depth} layers and {many} experts; at least 2 of each are needed")
    if many > batch * seq:
        raise InvalidProgram(
            f"moe: {many} experts for {batch} samples of {seq} tokens, {batch * seq} in all; take at most as many experts as tokens"
        )
    room = max(ceil(capacity * seq / many), 1)
    build = with_attention(lambda: MoE(depth, features, parts, inner, many, room, words, seq, dropout), "moe", attention)
    data = next_tokens(batch, seq, words, seed)
    return Program(
        deferred_module(in_format(build, "moe", dtype), seed), data(0), _balanced_loss, optimizer, name=f"moe-{size}", data=data, seed=seed
    )
