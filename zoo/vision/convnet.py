"""A small residual convolutional network with batch norm: three stages, global average pool, linear head."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.frontend import Program
from zoo.mlp import cross_entropy
from zoo.seeded import deferred_module, seeded_data
from zoo.text import float_type, in_format

__all__ = ["ConvNet", "convnet"]


class Stage(nn.Module):
    """conv-bn-relu, then conv-bn with a residual around it."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        return F.relu(x + self.bn2(self.conv2(x)))


class ConvNet(nn.Module):
    """Images (batch, 3, size, size) -> logits (batch, classes)."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.stage1 = Stage(3, channels, 1)
        self.stage2 = Stage(channels, 2 * channels, 2)
        self.stage3 = Stage(2 * channels, 4 * channels, 2)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(4 * channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stage3(self.stage2(self.stage1(x)))
        logits: Tensor = self.fc(self.pool(x).flatten(1))
        return logits


def convnet(
    batch: int = 16,
    channels: int = 16,
    size: int = 16,
    classes: int = 10,
    dtype: str = "fp32",
    optimizer: str = "sgd",
    seed: int = 0,
) -> Program:
    """A residual image classifier with batch norm on random images.

    Args:
        batch: global batch.
        channels: of the first stage; doubled in each of the next two.
        size: image height and width.
        dtype: "fp32", "bf16" or "fp16".
        optimizer: "sgd" or "adamw".

    Raises:
        InvalidProgram: an unknown dtype.
    """
    number = float_type("convnet", dtype)
    module = deferred_module(in_format(lambda: ConvNet(channels, classes), "convnet", dtype), seed)

    def draw(generator: torch.Generator) -> tuple[Tensor, ...]:
        images = torch.randn(batch, 3, size, size, generator=generator).to(number)
        return images, torch.randint(0, classes, (batch,), generator=generator)

    data = seeded_data(draw, seed)
    return Program(module, data(0), cross_entropy, optimizer, name="convnet", data=data, seed=seed)
