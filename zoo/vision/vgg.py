"""VGG: 3x3 convolutions in five blocks, then three wide layers.       [Simonyan & Zisserman 2014, arXiv 1409.1556, table 1]

With ``classes=1000000`` the last layer alone holds 4.1e9 parameters: the widened classifier of the TePDist article, whose planner
splits that layer's classes over the devices and the batch of everything else.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch.nn.functional as F
from torch import Tensor, nn

from planner.frontend import Program
from planner.ir.errors import InvalidProgram
from zoo.vision.images import classifier

__all__ = ["VGG", "vgg19"]

# Layers with weights -> convolutions per block (columns A, B, D and E of the table).
BLOCKS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


def _block(channels_in: int, channels: int, convolutions: int) -> Iterator[nn.Module]:
    for index in range(convolutions):
        yield nn.Conv2d(channels if index else channels_in, channels, 3, padding=1)
        yield nn.ReLU()
    yield nn.MaxPool2d(2, 2)


class VGG(nn.Module):
    """Images (batch, 3, image, image) -> logits (batch, classes); channels w, 2w, 4w, 8w, 8w and 64w hidden features."""

    def __init__(self, blocks: tuple[int, ...], width: int, classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        channels = [3, *(width * factor for factor in (1, 2, 4, 8, 8))]
        self.blocks = nn.ModuleList(
            nn.Sequential(*_block(channels[i], channels[i + 1], convolutions)) for i, convolutions in enumerate(blocks)
        )
        self.pool = nn.AdaptiveAvgPool2d(7)
        self.fc1 = nn.Linear(8 * width * 7 * 7, 64 * width)
        self.fc2 = nn.Linear(64 * width, 64 * width)
        self.fc3 = nn.Linear(64 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        x = F.dropout(self.fc1(self.pool(x).flatten(1)).relu(), self.dropout, self.training)
        logits: Tensor = self.fc3(F.dropout(self.fc2(x).relu(), self.dropout, self.training))
        return logits


def vgg19(
    batch: int = 32,
    image: int = 224,
    classes: int = 1000,
    layers: int = 19,
    width: int = 64,
    optimizer: str = "sgd",
    seed: int = 0,
    dropout: float = 0.0,
) -> Program:
    """VGG on random images; 143,667,240 parameters by default.

    Args:
        batch: global batch.
        image: height and width, at least 32.
        classes: of the classifier.
        layers: layers with weights: 11, 13, 16 or 19.
        width: channels of the first block; all others follow it.
        optimizer: "sgd" or "adamw".
        dropout: rate behind each of the first two wide layers (the paper: 0.5).

    Raises:
        InvalidProgram: the paper has no such number of layers.
    """
    if layers not in BLOCKS:
        raise InvalidProgram(f"vgg19: there is no VGG of {layers} layers; layers is one of {', '.join(map(str, BLOCKS))}")
    return classifier(
        f"vgg{layers}",
        lambda: VGG(BLOCKS[layers], width, classes, dropout),
        batch=batch,
        image=image,
        classes=classes,
        optimizer=optimizer,
        seed=seed,
    )
