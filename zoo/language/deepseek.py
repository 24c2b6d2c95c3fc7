"""DeepSeek-V3: attention whose keys and values come from few numbers per token, and experts of which each token asks 8 of 256.   [DeepSeek-AI 2024]

    q          = W_qb norm(W_qa x)                    [heads, size + rotary]     a part of each head is rotated
    c, r       = W_kva x                              [rank], [rotary]           r is rotated, one for all heads
    k, v       = W_kvb norm(c); k = (k, r)            [heads, size + rotary], [heads, size]
    s          = sigmoid(W_g x)                       [experts]                  section 2.1.2
    choice     = the best ``chosen`` of s + bias within the best groups of experts, those whose two best add up to most
    y          = shared(x) + sum over choice of scale s_e / (sum of the chosen s) expert_e(x)

Tokens go to their experts by index: the choices of a sample are sorted by expert, and each expert takes the first ``room`` of its own, [E, G C, M] in
all for G samples.  Whom there is no room for gets the shared expert only.  Numbers of one sample stay together until the tokens travel, so that
samples can lie on devices of their own.

What the paper has and this has not: the bias moves by 0.001 after each step (here it stays), a further block predicts the token after next, matrix
products are in fp8, and no token is turned away.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.frontend import Program
from planner.ir.errors import InvalidProgram
from zoo.attention import Attending, with_attention
from zoo.language.llama import FeedForward, RMSNorm, rotary_angles, rotated
from zoo.seeded import deferred_module
from zoo.text import chosen, divides, in_format, initialise, next_tokens, token_loss

__all__ = ["DeepSeek", "deepseek"]

_ROTARY_BASE = 10_000.0
_BALANCE = 1e-4


@dataclass(frozen=True, slots=True)
class _Size:
    """head, rotary: numbers of a head that are not rotated, and that are.   dense: layers without experts, the first.   groups, groups_asked: of
    experts.   shared: experts that every token asks."""

    layers: int
    width: int
    heads: int
    q_rank: int
    kv_rank: int
    head: int
    rotary: int
    dense: int
    hidden: int
    experts: int
    asked: int
    groups: int
    groups_asked: int
    expert_hidden: int
    shared: int
    scale: float
    vocab: int


_SIZES: Mapping[str, _Size] = {
    "V3": _Size(61, 7168, 128, 1536, 512, 128, 64, 3, 18432, 256, 8, 8, 4, 2048, 1, 2.5, 129280),
}


class LatentAttention(Attending):
    """(batch, time, width) -> the same; causal."""

    cos: Tensor
    sin: Tensor
    mask: Tensor

    def __init__(self, size: _Size, seq: int) -> None:
        super().__init__()
        self.heads, self.size, self.rotary, self.kv_rank = size.heads, size.head, size.rotary, size.kv_rank
        self.q_down = nn.Linear(size.width, size.q_rank, bias=False)
        self.q_norm = RMSNorm(size.q_rank)
        self.q_up = nn.Linear(size.q_rank, size.heads * (size.head + size.rotary), bias=False)
        self.kv_down = nn.Linear(size.width, size.kv_rank + size.rotary, bias=False)
        self.kv_norm = RMSNorm(size.kv_rank)
        self.kv_up = nn.Linear(size.kv_rank, size.heads * 2 * size.head, bias=False)
        self.o_proj = nn.Linear(size.heads * size.head, size.width, bias=False)
        angle = rotary_angles(seq, size.rotary, _ROTARY_BASE)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        self.register_buffer("mask", torch.ones(seq, seq, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, _ = x.shape

        def by_head(projected: Tensor) -> Tensor:
            return projected.view(batch, time, self.heads, -1).transpose(1, 2)

        q_plain, q_turned = torch.split(by_head(self.q_up(self.q_norm(self.q_down(x)))), [self.size, self.rotary], -1)
        compressed, k_turned = torch.split(self.kv_down(x), [self.kv_rank, self.rotary], -1)
        k_plain, v = by_head(self.kv_up(self.kv_norm(compressed))).chunk(2, -1)
        k_shared = rotated(k_turned.unsqueeze(1), self.cos, self.sin).expand(-1, self.heads, -1, -1)
        q = torch.cat([q_plain, rotated(q_turned, self.cos, self.sin)], -1)
        k = torch.cat([k_plain, k_shared], -1)
        if self.fused:
            mixed = self.attend(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(self.size + self.rotary))
            mixed = F.softmax(scores.masked_fill(self.mask, float("-inf")), dim=-1) @ v
        out: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, time, self.heads * self.size))
        return out


class Experts(nn.Module):
    """Routed and shared experts: (batch, time, width) -> (the same shape, the balance loss of equation 17)."""

    bias: Tensor

    def __init__(self, size: _Size, room: int) -> None:
        super().__init__()
        self.experts, self.asked, self.room, self.scale = size.experts, size.asked, room, size.scale
        self.groups, self.groups_asked = size.groups, size.groups_asked
        self.gate = nn.Linear(size.width, size.experts, bias=False)
        self.register_buffer("bias", torch.zeros(size.experts))
        shape = size.experts, size.width, size.expert_hidden
        self.w_gate, self.w_up = nn.Parameter(torch.empty(shape)), nn.Parameter(torch.empty(shape))
        self.w_down = nn.Parameter(torch.empty(size.experts, size.expert_hidden, size.width))
        for weight in (self.w_gate, self.w_up, self.w_down):
            nn.init.normal_(weight, std=0.02)
        self.shared = FeedForward(size.width, size.shared * size.expert_hidden)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        groups, _, width = x.shape
        scores = torch.sigmoid(self.gate(x).float())
        choice = self._choice(scores.detach() + self.bias)
        share = scores.gather(-1, choice)
        share = self.scale * share / share.sum(-1, keepdim=True)

        wanted = choice.flatten(1)
        order = wanted.sort(dim=1, stable=True)[1]
        counts = torch.zeros_like(scores[:, 0], dtype=torch.long).scatter_add(1, wanted, torch.ones_like(wanted))
        place = torch.arange(self.room, device=x.device)
        first = (counts.cumsum(1) - counts).unsqueeze(-1)
        picked = order.gather(1, (first + place).flatten(1).clamp(max=wanted.shape[1] - 1))
        weight = share.flatten(1).gather(1, picked) * (place < counts.unsqueeze(-1)).flatten(1)
        token = (picked // self.asked).unsqueeze(-1).expand(-1, -1, width)

        sent = x.gather(1, token).view(groups, self.experts, self.room, width).transpose(0, 1)
        inputs = sent.reshape(self.experts, groups * self.room, width)
        outputs = torch.bmm(F.silu(torch.bmm(inputs, self.w_gate)) * torch.bmm(inputs, self.w_up), self.w_down)
        back = outputs.view(self.experts, groups, self.room, width).transpose(0, 1).reshape(groups, -1, width)
        out = torch.zeros_like(x).scatter_add(1, token, back * weight.unsqueeze(-1).to(x.dtype))

        asked = counts.float() * (self.experts / wanted.shape[1])
        balance = (asked * (scores / scores.sum(-1, keepdim=True)).mean(1)).sum(-1).mean()
        return out + self.shared(x), balance

    def _choice(self, affinity: Tensor) -> Tensor:
        """Which experts each token asks, [G, S, asked] of affinities [G, S, E]."""
        if self.groups > 1:
            grouped = affinity.view(*affinity.shape[:-1], self.groups, -1)
            best = grouped.topk(2, dim=-1)[0].sum(-1)
            open_to = torch.zeros_like(best, dtype=torch.bool).scatter(-1, best.topk(self.groups_asked, dim=-1)[1], True)
            affinity = grouped.masked_fill(~open_to.unsqueeze(-1), float("-inf")).flatten(-2)
        return affinity.topk(self.asked, dim=-1)[1]


class Layer(nn.Module):
    """Dense, or with experts: then the balance of their choice comes along."""

    def __init__(self, size: _Size, seq: int, mlp: nn.Module) -> None:
        super().__init__()
        self.input_norm = RMSNorm(size.width)
        self.attention = LatentAttention(size, seq)
        self.mlp_norm = RMSNorm(size.width)
        self.mlp = mlp

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        x = x + self.attention(self.input_norm(x))
        output = self.mlp(self.mlp_norm(x))
        if isinstance(output, Tensor):
            return x + output, None
        return x + output[0], output[1]


class DeepSeek(nn.Module):
    """Token ids (batch, seq) -> (logits (batch, seq, vocab), sum of the layers' balances)."""

    def __init__(self, size: _Size, seq: int, room: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(size.vocab, size.width)
        mlps = [FeedForward(size.width, size.hidden) if i < size.dense else Experts(size, room) for i in range(size.layers)]
        self.layers = nn.ModuleList(Layer(size, seq, mlp) for mlp in mlps)
        self.norm = RMSNorm(size.width)
        self.lm_head = nn.Linear(size.width, size.vocab, bias=False)
        self.apply(initialise)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        x = self.embed_tokens(ids)
        balances = []
        for layer in self.layers:
            x, balance = layer(x)
            if balance is not None:
                balances.append(balance)
        return self.lm_head(self.norm(x)), torch.stack(balances).sum()


def _balanced_loss(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    logits, balance = output
    return token_loss(logits, target) + _BALANCE * balance


def deepseek(
    size: str = "V3",
    layers: int | None = None,
    width: int | None = None,
    heads: int | None = None,
    head: int | None = None,
    rotary: int | None = None,
    q_rank: int | None = None,
    kv_rank: int | None = None,
    dense: int | None = None,
    hidden: int | None = None,
    experts: int | None = None,
    asked: int | None = None,
    groups: int | None = None,
    groups_asked: int | None = None,
    expert_hidden: int | None = None,
    vocab: int | None = None,
    capacity: float = 1.0,
    batch: int = 8,
    seq: int = 4096,
    dtype: str = "fp32",
    optimizer: str = "adamw",
    seed: int = 0,
    attention: str = "fused",
) -> Program:
    """DeepSeek-V3 on random tokens.

    Args:
        size: "V3"; layers, width, heads, head and rotary (numbers of a head that are not rotated, and that are), q_rank, kv_rank, dense (layers
            without experts), hidden, experts, asked (of which each token asks), groups (of experts), groups_asked, expert_hidden, vocab each
            override one number of it.
        capacity: room per expert, as a multiple of the even load of asked x seq / experts tokens per sample.
        batch, seq: global batch and tokens per sample.
        dtype: "fp32", "bf16" or "fp16".
        optimizer: "sgd" or "adamw".
        attention: "fused", torch's scaled_dot_product_attention, or "eager", written out.

    Raises:
        InvalidProgram: an unknown size or dtype, no layer with experts, groups that do not divide the experts or hold fewer than two or than are
            asked, or more experts than tokens.
    """
    given = {
        "layers": layers,
        "width": width,
        "heads": heads,
        "head": head,
        "rotary": rotary,
        "q_rank": q_rank,
        "kv_rank": kv_rank,
        "dense": dense,
        "hidden": hidden,
        "experts": experts,
        "asked": asked,
        "groups": groups,
        "groups_asked": groups_asked,
        "expert_hidden": expert_hidden,
        "vocab": vocab,
    }
    sizes = replace(chosen("deepseek", _SIZES, size), **{name: number for name, number in given.items() if number is not None})
    _check(sizes, batch, seq)
    room = max(ceil(capacity * sizes.asked * seq / sizes.experts), 1)
    build = with_attention(lambda: DeepSeek(sizes, seq, room), "deepseek", attention)
    data = next_tokens(batch, seq, sizes.vocab, seed)
    module = deferred_module(in_format(build, "deepseek", dtype), seed)
    return Program(module, data(0), _balanced_loss, optimizer, name=f"deepseek-{size}", data=data, seed=seed)


def _check(size: _Size, batch: int, seq: int) -> None:
    """Raises InvalidProgram, with the numbers."""
    divides("deepseek", 2, "halves", size.rotary, "the rotated part of a head, of size")
    divides("deepseek", size.groups, "groups", size.experts, "the experts,")
    if not 0 <= size.dense < size.layers:
        raise InvalidProgram(f"deepseek: {size.dense} dense of {size.layers} layers; at least one layer has experts")
    open_experts = size.groups_asked * size.experts // size.groups
    if (
        not 1 <= size.groups_asked <= size.groups
        or not 1 <= size.asked <= open_experts
        or (size.groups > 1 and size.experts < 2 * size.groups)
    ):
        raise InvalidProgram(
            f"deepseek: each token asks {size.asked} of {size.experts} experts, in {size.groups_asked} of {size.groups} groups; "
            f"take groups of at least 2 experts, and at most as many as are in the groups that are asked"
        )
    if size.experts > batch * seq:
        raise InvalidProgram(
            f"deepseek: {size.experts} experts for {batch} samples of {seq} tokens, {batch * seq} in all; take at most as many experts as tokens"
        )
