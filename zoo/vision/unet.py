"""U-Net: a path down, a path up, and joins across.                      [Ronneberger et al. 2015, arXiv 1505.04597, figure 1]

    x0 = conv2(x); x1 = conv2(pool(x0)); ...                down: channels w, 2w, 4w, 8w, 16w
    y  = conv2(cat(x_k, up(y)))                             up: a 2x2 transposed convolution halves the channels, then the join

The convolutions are padded, so that the map has the image's size and the joins need no crop (the paper crops).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.frontend import Program
from planner.ir.errors import InvalidProgram
from zoo.mlp import cross_entropy
from zoo.seeded import deferred_module, drawn_types, seeded_data
from zoo.text import float_type, in_format

__all__ = ["UNet", "unet"]


class DoubleConv(nn.Module):
    """Two 3x3 convolutions, each with relu; with batch norm in between if asked for."""

    def __init__(self, channels_in: int, channels: int, norm: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, padding=1, bias=not norm)
        self.bn1: nn.Module = nn.BatchNorm2d(channels) if norm else nn.Identity()
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=not norm)
        self.bn2: nn.Module = nn.BatchNorm2d(channels) if norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn1(self.conv1(x)).relu()
        out: Tensor = self.bn2(self.conv2(x)).relu()
        return out


class Up(nn.Module):
    """(batch, 2c, h, w) and (batch, c, 2h, 2w) -> (batch, c, 2h, 2w)."""

    def __init__(self, channels: int, norm: bool, bilinear: bool) -> None:
        super().__init__()
        self.bilinear = bilinear
        self.up: nn.Module = nn.Conv2d(2 * channels, channels, 1) if bilinear else nn.ConvTranspose2d(2 * channels, channels, 2, stride=2)
        self.body = DoubleConv(2 * channels, channels, norm)

    def forward(self, x: Tensor, across: Tensor) -> Tensor:
        if self.bilinear:
            x = F.interpolate(x, scale_factor=2, mode="bilinear")
        out: Tensor = self.body(torch.cat([across, self.up(x)], 1))
        return out


class UNet(nn.Module):
    """Images (batch, channels, image, image) -> logits of every pixel (batch, classes, image, image)."""

    def __init__(self, channels: int, width: int, layers: int, classes: int, norm: bool, bilinear: bool) -> None:
        super().__init__()
        widths = [width * 2**k for k in range(layers + 1)]
        self.down = nn.ModuleList(DoubleConv(a, b, norm) for a, b in zip([channels, *widths], widths, strict=False))
        self.pool = nn.MaxPool2d(2, 2)
        self.up = nn.ModuleList(Up(w, norm, bilinear) for w in reversed(widths[:-1]))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        across: list[Tensor] = []
        for k, down in enumerate(self.down):
            x = down(self.pool(x) if k else x)
            across.append(x)
        for up, level in zip(self.up, reversed(across[:-1]), strict=True):
            x = up(x, level)
        logits: Tensor = self.head(x)
        return logits


def unet(
    batch: int = 16,
    image: int = 256,
    channels: int = 1,
    classes: int = 2,
    layers: int = 4,
    width: int = 64,
    norm: int = 0,
    bilinear: int = 0,
    dtype: str = "fp32",
    optimizer: str = "sgd",
    seed: int = 0,
) -> Program:
    """U-Net that labels every pixel of random images; 31,030,658 parameters by default.

    Args:
        batch: global batch.
        image: height and width, a multiple of 2^layers.
        channels: of the image.
        classes: of a pixel.
        layers: times that the image is halved.
        width: channels of the first level, doubled in each next one.
        norm: 1 puts batch norm behind every 3x3 convolution, 0 does not (the paper).
        bilinear: 1 enlarges by interpolation and a 1x1 convolution, 0 by a transposed convolution (the paper).
        dtype: "fp32", "bf16" or "fp16".
        optimizer: "sgd" or "adamw".

    Raises:
        InvalidProgram: the image cannot be halved that often, or an unknown dtype.
    """
    if image % 2**layers:
        raise InvalidProgram(f"unet: an image of {image} cannot be halved {layers} times; take a multiple of {2**layers}")
    number = float_type("unet", dtype)
    build = in_format(lambda: UNet(channels, width, layers, classes, bool(norm), bool(bilinear)), "unet", dtype)

    def draw(generator: torch.Generator) -> tuple[Tensor, ...]:
        pixels = torch.randn(batch, channels, image, image, generator=generator).to(number)
        return pixels, torch.randint(0, classes, (batch, image, image), generator=generator)

    data = seeded_data(draw, seed)
    return Program(deferred_module(build, seed), drawn_types(draw), cross_entropy, optimizer, name="unet", data=data, seed=seed)
