"""Face recognition: a residual network to a vector of 512, and a classifier over all persons of the training set.

    cos = normal(vector) . normal(person);   logits = 64 (cos - 0.4 [person is the target])                 [CosFace: Wang et al. 2018]

The backbone is the improved residual network of the InsightFace project (batch norm first, PReLU, 112 x 112 images); with 10^5 to 10^7
persons the classifier outgrows it, and its persons are what a planner should split.           [Deng et al. 2018, arXiv 1801.07698]
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.frontend import Program
from planner.ir.errors import InvalidProgram
from zoo.vision.images import classifier

__all__ = ["FaceNet", "insightface", "margin_loss"]

# Layers with weights -> blocks per stage.
STAGES = {6: (1, 1), 10: (1, 1, 1, 1), 18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 14, 3), 100: (3, 13, 30, 3)}

SCALE, MARGIN = 64.0, 0.4


class Unit(nn.Module):
    """norm, 3x3, norm, PReLU, 3x3 (this one strides), norm; a residual around them."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels_in)
        self.conv1 = nn.Conv2d(channels_in, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.prelu = nn.PReLU(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride=stride, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(nn.Conv2d(channels_in, channels, 1, stride=stride, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        y = self.prelu(self.bn2(self.conv1(self.bn1(x))))
        out: Tensor = self.bn3(self.conv2(y)) + self.shortcut(x)
        return out


class FaceNet(nn.Module):
    """Images (batch, 3, image, image) -> cosines with every person (batch, classes)."""

    def __init__(self, blocks: tuple[int, ...], image: int, width: int, vector: int, classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(width)
        self.prelu = nn.PReLU(width)
        channels = [width * 2 ** max(stage - 1, 0) for stage in range(len(blocks) + 1)]
        self.units = nn.ModuleList(
            Unit(channels[stage + (index > 0)], channels[stage + 1], 1 if index else 2)
            for stage, count in enumerate(blocks)
            for index in range(count)
        )
        self.last = nn.BatchNorm2d(channels[-1])
        self.fc = nn.Linear(channels[-1] * (image // 2 ** len(blocks)) ** 2, vector)
        self.vector = nn.BatchNorm1d(vector)
        self.persons = nn.Parameter(torch.randn(classes, vector) * 0.01)

    def forward(self, x: Tensor) -> Tensor:
        x = self.prelu(self.bn(self.conv(x)))
        for unit in self.units:
            x = unit(x)
        vector = self.vector(self.fc(self.last(x).flatten(1)))
        return F.linear(F.normalize(vector), F.normalize(self.persons))


def margin_loss(cosines: Tensor, target: Tensor) -> Tensor:
    """Mean cross-entropy of the scaled cosines (batch, classes), the target's own one lowered by the margin."""
    own = torch.arange(cosines.shape[1], device=cosines.device) == target.unsqueeze(1)
    return F.cross_entropy(SCALE * torch.where(own, cosines - MARGIN, cosines), target)


def insightface(
    batch: int = 64,
    image: int = 112,
    classes: int = 85742,
    layers: int = 100,
    width: int = 64,
    vector: int = 512,
    optimizer: str = "sgd",
    seed: int = 0,
) -> Program:
    """A face recognition network on random images; backbone of 65,156,160 parameters and 85,742 persons by default.

    Args:
        batch: global batch.
        image: height and width, a multiple of 2^stages: of 16.
        classes: persons (MS1M: 85742, 85744 to split them over 8 devices; Glint360K: 360232).
        layers: of the backbone: 6 (two stages), 10, 18, 34, 50 or 100.
        width: channels of the first stage.
        vector: features of a face.
        optimizer: "sgd" or "adamw".

    Raises:
        InvalidProgram: there is no such number of layers, or the image cannot be halved that often.
    """
    if layers not in STAGES:
        raise InvalidProgram(f"insightface: there is no backbone of {layers} layers; layers is one of {', '.join(map(str, STAGES))}")
    halvings = len(STAGES[layers])
    if image % 2**halvings:
        raise InvalidProgram(f"insightface: an image of {image} cannot be halved {halvings} times; take a multiple of {2**halvings}")
    return classifier(
        "insightface",
        lambda: FaceNet(STAGES[layers], image, width, vector, classes),
        batch=batch,
        image=image,
        classes=classes,
        optimizer=optimizer,
        seed=seed,
        loss=margin_loss,
    )
