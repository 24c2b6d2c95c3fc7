"""Models of sequences of random parts: each takes features [batch, tokens, width] and leaves as many, by indices, masks, writes, sums, states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.random_programs.nets import Part

__all__ = ["CLASSES", "TOKENS", "WIDTH", "WORDS", "SequenceModel", "random_part", "random_sequence_model"]

WORDS, TOKENS, WIDTH, CLASSES, HEADS = 11, 6, 8, 5, 2


class SequenceModel(nn.Module):
    """names: of its parts, in order."""

    def __init__(self, parts: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.names = tuple(name.partition(" ")[2] for name in parts)
        self.words, self.parts, self.head = nn.Embedding(WORDS, WIDTH), nn.ModuleList(parts.values()), nn.Linear(WIDTH, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        for part in self.parts:
            x = x + part(x, words)
        made: Tensor = self.head(x.mean(1))
        return made


def random_sequence_model(seed: int) -> SequenceModel:
    """Two to six parts, each beside a residual; same seed, same model."""
    random = Random(seed)
    torch.manual_seed(seed)
    names = random.choices(list(_PARTS), k=random.randint(2, 6))
    return SequenceModel({f"{number} {name}": _part(name) for number, name in enumerate(names)})


def random_part(random: Random) -> tuple[str, nn.Module]:
    """The name of a part, and the part."""
    name = random.choice(list(_PARTS))
    return name, _part(name)


def _part(name: str) -> Part:
    inner, function = _PARTS[name]
    return Part(function, inner())


def _wide() -> nn.Module:
    return nn.Linear(WIDTH, WIDTH)


def _of(function: Callable[[Tensor], Tensor]) -> tuple[Callable[[], nn.Module], Callable[[Any, Tensor, Tensor], Tensor]]:
    return _wide, lambda inner, x, _words: function(inner(x))


def _with(inner: Callable[[], nn.Module], function: Callable[[Any, Tensor], Tensor] = lambda inner, x: inner(x)) -> Any:
    return inner, lambda module, x, _words: function(module, x)


def _recurrent(kind: type[nn.RNNBase], **options: Any) -> Any:
    directions = 2 if options.get("bidirectional") else 1
    return _with(lambda: kind(WIDTH, WIDTH // directions, batch_first=True, **options), lambda inner, x: inner(x)[0])


def _last_state(inner: nn.GRU, x: Tensor) -> Tensor:
    made: Tensor = inner(x.transpose(0, 1))[1]
    return made[0].unsqueeze(1) * x


def _cells(inner: nn.GRUCell, x: Tensor) -> Tensor:
    state, states = x.new_zeros(x.shape[0], WIDTH), []
    for place in range(x.shape[1]):
        state = inner(x[:, place], state)
        states.append(state)
    return torch.stack(states, 1)


def _in_place(x: Tensor) -> Tensor:
    made = x.clone()
    made[:, 1:] = made[:, 1:] + x[:, :-1]
    made[..., 0].mul_(0.5)
    return made


def _filled(x: Tensor, words: Tensor) -> Tensor:
    made = x.new_zeros(x.shape)
    made[:, ::2, : WIDTH // 2] = x[:, ::2, WIDTH // 2 :]
    made.masked_fill_((words == 0).unsqueeze(-1), 0.25)
    return made


def _rotary(x: Tensor) -> Tensor:
    angles = torch.arange(x.shape[1], device=x.device)[:, None] / 10.0 ** torch.arange(WIDTH // 2, device=x.device)[None]
    cos, sin = angles.cos().repeat(1, 2).to(x.dtype), angles.sin().repeat(1, 2).to(x.dtype)
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def _interleaved(x: Tensor) -> Tensor:
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack([-odd, even], -1).flatten(-2)


def _complex(x: Tensor) -> Tensor:
    turned = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous()) * torch.polar(
        torch.ones(WIDTH // 2, dtype=x.dtype), torch.arange(WIDTH // 2, dtype=x.dtype)
    )
    return torch.view_as_real(turned).flatten(-2)


def _attended(inner: nn.Linear, x: Tensor, words: Tensor) -> Tensor:
    query, key, value = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in inner(x).chunk(3, -1))
    mask = (words != 0)[:, None, None, :] | torch.eye(x.shape[1], dtype=torch.bool)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2).flatten(2)


def _attended_by_hand(inner: nn.Linear, x: Tensor, words: Tensor) -> Tensor:
    query, key, value = (part.unflatten(-1, (HEADS, -1)) for part in inner(x).chunk(3, -1))
    scores = torch.einsum("bqhd,bkhd->bhqk", query, key) / 2.0
    scores = scores.masked_fill(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1), float("-inf"))
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), value).flatten(2)


def _multihead(inner: nn.MultiheadAttention, x: Tensor, words: Tensor) -> Tensor:
    made, weights = inner(x, x, x, key_padding_mask=(words == 0) & (torch.arange(words.shape[1]) > 0))
    return made * weights.diagonal(dim1=1, dim2=2).unsqueeze(-1)


def _experts(inner: nn.ModuleList, x: Tensor) -> Tensor:
    router, *experts = inner
    weight, chosen = router(x).softmax(-1).topk(2, -1)
    shares = torch.zeros(*x.shape[:-1], len(experts), dtype=x.dtype).scatter(-1, chosen, weight)
    return sum((expert(x) * shares[..., n : n + 1] for n, expert in enumerate(experts)), torch.zeros_like(x))


def _sorted_by(inner: nn.Linear, x: Tensor) -> Tensor:
    order = inner(x)[..., 0].argsort(1)
    return x.gather(1, order.unsqueeze(-1).expand_as(x)) * inner(x)


def _counted(inner: nn.Module, x: Tensor, words: Tensor) -> Tensor:
    counts = torch.zeros(x.shape[0], WORDS, dtype=x.dtype).scatter_add(1, words, torch.ones_like(words, dtype=x.dtype))
    made: Tensor = inner(x) * counts.gather(1, words).unsqueeze(-1)
    return made


def _per_word(inner: nn.Module, x: Tensor, words: Tensor) -> Tensor:
    sums = x.new_zeros(x.shape[0], WORDS, WIDTH).index_put((torch.arange(x.shape[0])[:, None], words), inner(x), accumulate=True)
    return sums[torch.arange(x.shape[0])[:, None], words]


def _windows(x: Tensor) -> Tensor:
    return F.pad(x, (0, 0, 2, 0)).unfold(1, 3, 1).amax(-1)


def _relative(inner: nn.Embedding, x: Tensor) -> Tensor:
    places = torch.arange(x.shape[1])
    bias = inner((places[None] - places[:, None]).clamp(-3, 3) + 3)
    return torch.einsum("qkw,bkw->bqw", bias.sigmoid(), x)


def _outer(inner: nn.Linear, x: Tensor) -> Tensor:
    made = inner(x)
    return torch.baddbmm(made, made @ x.mT, x, alpha=0.1) + torch.addcmul(made, x, x, value=0.5)


def _scan(inner: nn.Linear, x: Tensor) -> Tensor:
    decay, update = inner(x).sigmoid(), x
    state, made = torch.zeros_like(x[:, 0]), torch.empty_like(x)
    for place in range(x.shape[1]):
        state = decay[:, place] * state + update[:, place]
        made[:, place] = state
    return made


_PARTS: Mapping[str, tuple[Callable[[], nn.Module], Callable[[Any, Tensor, Tensor], Tensor]]] = {
    "linear": _of(F.gelu),
    "in place": _of(_in_place),
    "relu in place": _of(lambda x: F.relu(x, inplace=True)),
    "added in place": _of(lambda x: x.mul_(2).add_(x[:, :1].clone()).clamp_(-3, 3)),
    "filled": (_wide, lambda inner, x, words: _filled(inner(x), words)),
    "rotary": _of(_rotary),
    "interleaved": _of(_interleaved),
    "complex": _of(_complex),
    "fourier": _of(lambda x: torch.fft.irfft(torch.fft.rfft(x, dim=1) * 0.5, n=TOKENS, dim=1)),
    "attention": (lambda: nn.Linear(WIDTH, 3 * WIDTH), _attended),
    "attention by hand": (lambda: nn.Linear(WIDTH, 3 * WIDTH), _attended_by_hand),
    "multihead attention": (lambda: nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), _multihead),
    "encoder layer": _with(lambda: nn.TransformerEncoderLayer(WIDTH, HEADS, 16, 0.0, batch_first=True)),
    "experts": _with(lambda: nn.ModuleList(nn.Linear(WIDTH, n) for n in (3, WIDTH, WIDTH, WIDTH)), _experts),
    "LSTM": _recurrent(nn.LSTM),
    "LSTM both ways": _recurrent(nn.LSTM, bidirectional=True, num_layers=2),
    "GRU": _recurrent(nn.GRU),
    "RNN": _recurrent(nn.RNN, nonlinearity="relu"),
    "last state": _with(lambda: nn.GRU(WIDTH, WIDTH), _last_state),
    "cells": _with(lambda: nn.GRUCell(WIDTH, WIDTH), _cells),
    "scan": _with(_wide, _scan),
    "sorted": _with(_wide, _sorted_by),
    "largest": _of(lambda x: x.sort(1, descending=True).values.roll(1, 1)),
    "median": _of(lambda x: x - x.median(1, keepdim=True).values),
    "counted": (_wide, _counted),
    "per word": (_wide, _per_word),
    "another table": (
        lambda: nn.Embedding(WORDS, WIDTH, padding_idx=0, scale_grad_by_freq=False),
        lambda inner, x, words: inner(words) * x,
    ),
    "bag": (lambda: nn.EmbeddingBag(WORDS, WIDTH, mode="mean"), lambda inner, x, words: inner(words).unsqueeze(1) * x),
    "one hot": (lambda: nn.Linear(WORDS, WIDTH), lambda inner, x, words: inner(F.one_hot(words, WORDS).to(x.dtype)) * x),
    "windows": _of(_windows),
    "relative": _with(lambda: nn.Embedding(7, WIDTH), _relative),
    "outer": _with(_wide, _outer),
    "running maximum": _of(lambda x: x.cummax(1).values),
    "running product": _of(lambda x: x.tanh().cumprod(1)),
    "running sum in logs": _of(lambda x: x.logcumsumexp(1)),
    "differences": _of(lambda x: F.pad(x.diff(dim=1), (0, 0, 1, 0))),
    "norms": _of(lambda x: F.normalize(x, dim=-1) * x.norm(dim=1, keepdim=True)),
    "variance": _of(lambda x: (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True) + 1).sqrt()),
    "log sum": _of(lambda x: x - x.logsumexp(-1, keepdim=True)),
    "where": _of(lambda x: torch.where(x > 0, x, x.exp() - 1)),
    "one side": _of(lambda x: x.tril() + x.triu(1) * 0.5),
    "repeated": _of(lambda x: x.repeat_interleave(2, 1)[:, 1:-1:2].contiguous().repeat(1, 2, 1)[:, :TOKENS]),
    "as strided": _of(lambda x: x.contiguous().view(-1, TOKENS * WIDTH)[:, torch.arange(TOKENS * WIDTH - 1, -1, -1)].view(x.shape)),
    "batch norm": _with(lambda: nn.BatchNorm1d(WIDTH), lambda norm, x: norm(x.transpose(1, 2)).transpose(1, 2)),
    "rms norm": _with(lambda: nn.RMSNorm(WIDTH)),
    "layer norm of tokens": _with(lambda: nn.LayerNorm(TOKENS), lambda norm, x: norm(x.mT).mT),
    "convolution": _with(lambda: nn.Conv1d(WIDTH, WIDTH, 3, padding=1), lambda inner, x: inner(x.mT).mT),
    "causal convolution": _with(
        lambda: nn.Conv1d(WIDTH, WIDTH, 3, padding=2, groups=WIDTH), lambda inner, x: F.silu(inner(x.mT)[..., :TOKENS]).mT
    ),
    "transposed convolution": _with(lambda: nn.ConvTranspose1d(WIDTH, WIDTH, 2, 2), lambda inner, x: inner(x.mT[..., ::2]).mT[:, :TOKENS]),
    "pooled": _with(_wide, lambda inner, x: F.adaptive_avg_pool1d(inner(x).mT, 3).repeat_interleave(2, -1).mT),
    "bilinear": _with(lambda: nn.Bilinear(WIDTH, WIDTH, WIDTH), lambda inner, x: inner(x, x.flip(1))),
    "weight norm": _with(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))),
    "distances": _with(_wide, lambda inner, x: torch.cdist(inner(x), x + 1).softmax(-1) @ x),
    "cosines": _with(_wide, lambda inner, x: F.cosine_similarity(inner(x).unsqueeze(2), x.unsqueeze(1) + 0.1, dim=-1) @ x),
    "kron": _of(lambda x: torch.einsum("bti,btj->btij", x, x).sum(2)),
    "checkpointed": _with(_wide, lambda inner, x: torch.utils.checkpoint.checkpoint(lambda y: F.gelu(inner(y)), x, use_reentrant=False)),
    "detached": _of(lambda x: x * x.detach().sigmoid()),
}
