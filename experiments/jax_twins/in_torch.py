"""The models of in_flax.py as a torch user writes them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.jax_twins.in_flax import CLASSES, HEADS, IMAGE, LAYERS, PATCH, TOKENS, VOCAB, WIDTH, batch_of
from planner.frontend import AdamW, Program

__all__ = ["twin_of"]


class Attention(nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.q, self.v, self.proj = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.k = nn.Linear(WIDTH, WIDTH, bias=False)
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        q, k, v = (p(x).view(batch, time, HEADS, width // HEADS).transpose(1, 2) for p in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        out: Tensor = self.proj(mixed.transpose(1, 2).reshape(batch, time, width))
        return out


class Mlp(nn.Module):
    def __init__(self, width: int, hidden: int, bias: bool = True) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.gelu(self.up(x), approximate="tanh"))
        return out


class Block(nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH, eps=1e-6), nn.LayerNorm(WIDTH, eps=1e-6)
        self.attn, self.mlp = Attention(causal), Mlp(WIDTH, 4 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.h = nn.ModuleList(Block(True) for _ in range(LAYERS))
        self.ln_f, self.head = nn.LayerNorm(WIDTH, eps=1e-6), nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        out: Tensor = self.head(self.ln_f(x))
        return out


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.positions = nn.Parameter(torch.randn(1, (IMAGE // PATCH) ** 2, WIDTH) * 0.02)
        self.h = nn.ModuleList(Block(False) for _ in range(LAYERS))
        self.ln_f, self.head = nn.LayerNorm(WIDTH, eps=1e-6), nn.Linear(WIDTH, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        for block in self.h:
            x = block(x)
        out: Tensor = self.head(self.ln_f(x).mean(1))
        return out


class MixerBlock(nn.Module):
    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH, eps=1e-6), nn.LayerNorm(WIDTH, eps=1e-6)
        self.of_tokens, self.of_channels = Mlp(tokens, 2 * tokens, bias=False), Mlp(WIDTH, 4 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.of_tokens(self.ln_1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.of_channels(self.ln_2(x))


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(3 * PATCH * PATCH, WIDTH)
        self.h = nn.ModuleList(MixerBlock((IMAGE // PATCH) ** 2) for _ in range(LAYERS))
        self.ln_f, self.head = nn.LayerNorm(WIDTH, eps=1e-6), nn.Linear(WIDTH, CLASSES)

    def forward(self, patches: Tensor) -> Tensor:
        x = self.stem(patches)
        for block in self.h:
            x = block(x)
        out: Tensor = self.head(self.ln_f(x).mean(1))
        return out


def _loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1).long(), reduction="none").mean()


def twin_of(name: str) -> Program:
    """The Program of a model in torch, with the same batch and AdamW; images have their channels first."""
    inputs, labels = (torch.from_numpy(array) for array in batch_of(name))
    given = inputs.permute(0, 3, 1, 2).contiguous() if name == "vit" else inputs
    module = {"gpt": GPT, "vit": ViT, "mixer": Mixer}[name]()
    return Program(module, (given, labels), loss=_loss, optimizer=AdamW(lr=1e-3, eps=1e-6, weight_decay=0.01), name=name)
