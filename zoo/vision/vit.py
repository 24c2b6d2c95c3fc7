"""Vision Transformer: patches as tokens, a class token in front, pre-norm encoder blocks.    [Dosovitskiy et al. 2020, arXiv 2010.11929]

    x = cat(class, conv(image)) + positions;   x += attn(ln_1(x));   x += mlp(ln_2(x));   logits = head(ln(x)[class])

Query, key and value are separate matrices: a split of their rows is a split over heads.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.frontend import Program
from planner.ir.errors import InvalidProgram
from zoo.attention import SelfAttending, with_attention
from zoo.vision.images import classifier

__all__ = ["ViT", "vit"]


class SelfAttention(SelfAttending):
    """(batch, tokens, width) -> the same; every token sees every token."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__(heads, dropout)
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width)
        self.v = nn.Linear(width, width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.by_head(project(x)) for project in (self.q, self.k, self.v))
        out: Tensor = self.proj(self.mixed(q, k, v, is_causal=False))
        return out


class EncoderBlock(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.ln_1 = nn.LayerNorm(width, eps=1e-6)
        self.attn = SelfAttention(width, heads, dropout)
        self.ln_2 = nn.LayerNorm(width, eps=1e-6)
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self._dropped(self.attn(self.ln_1(x)))
        out: Tensor = x + self._dropped(self.fc2(self._dropped(F.gelu(self.fc1(self.ln_2(x))))))
        return out

    def _dropped(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


class ViT(nn.Module):
    """Images (batch, 3, image, image) -> logits (batch, classes)."""

    def __init__(
        self, image: int, patch: int, width: int, layers: int, heads: int, hidden: int, classes: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, width) * 0.02)
        self.blocks = nn.ModuleList(EncoderBlock(width, heads, hidden, dropout) for _ in range(layers))
        self.ln = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), tokens], 1) + self.positions
        x = F.dropout(x, self.dropout, self.training)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.ln(x)[:, 0])
        return logits


def vit(
    batch: int = 32,
    image: int = 224,
    patch: int = 16,
    classes: int = 1000,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    hidden: int = 0,
    optimizer: str = "adamw",
    seed: int = 0,
    dropout: float = 0.0,
    attention: str = "eager",
) -> Program:
    """A Vision Transformer on random images; ViT-B/16 with 86,567,656 parameters by default.

    Args:
        batch: global batch.
        image: height and width, a multiple of patch.
        patch: height and width of a patch; each becomes a token.
        classes: of the classifier.
        layers, width, heads: the architecture; heads must divide width.  (L: 24, 1024, 16.  H: 32, 1280, 16 with patch 14.)
        hidden: features inside a block's MLP, 0 for 4 width.
        optimizer: "sgd" or "adamw".
        dropout: rate behind the positions, of attention weights, behind attention and inside and behind the MLP.
        attention: "eager", written out, or "fused", torch's scaled_dot_product_attention.

    Raises:
        InvalidProgram: heads does not divide width, or patch the image.
    """
    if width % heads:
        raise InvalidProgram(f"vit: {heads} heads do not divide a width of {width}")
    if image % patch:
        raise InvalidProgram(f"vit: patches of {patch} do not divide an image of {image}")
    return classifier(
        "vit",
        with_attention(lambda: ViT(image, patch, width, layers, heads, hidden or 4 * width, classes, dropout), "vit", attention),
        batch=batch,
        image=image,
        classes=classes,
        optimizer=optimizer,
        seed=seed,
    )
