"""Residual networks of bottleneck blocks, and their wide forms.

    block: 1x1 to r channels, 3x3 to s channels (this one strides), 1x1 to 4c channels; each with batch norm; a residual around them

    ResNet          c = 64 2^stage,    r = s = c                                  [He et al. 2015, arXiv 1512.03385; stride as in v1.5]
    Wide-ResNet     c = base 2^stage,  r = c,  s = widen c                        [Zheng et al. 2022, "Alpa", OSDI, table 7]

Batch norm counts the whole micro-batch, however it is distributed: its sums become P (SEMANTICS 1.4).  Statistics of parts are another
model, which ``statistics`` asks for (batchnorm.py).
"""

from __future__ import annotations

from torch import Tensor, nn

from planner.frontend import Program
from planner.ir.errors import InvalidProgram
from zoo.vision.batchnorm import batch_norm
from zoo.vision.images import classifier

__all__ = ["Bottleneck", "ResNet", "resnet50", "wide_resnet"]

# Layers with weights -> blocks per stage.
STAGES = {8: (1, 1), 14: (1, 1, 1, 1), 26: (2, 2, 2, 2), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}

# Name -> (layers, channels of the first stage, widening of the 3x3 convolutions).  [Alpa's artifact; TePDist has the same family]
SIZES = {
    "250M": (50, 160, 2),
    "500M": (50, 224, 2),
    "1B": (50, 320, 2),
    "2B": (50, 448, 2),
    "4B": (50, 640, 2),
    "6.8B": (50, 320, 16),
    "13B": (101, 320, 16),
}


class Bottleneck(nn.Module):
    """(batch, channels_in, h, w) -> (batch, 4 channels, h / stride, w / stride)."""

    def __init__(self, channels_in: int, channels: int, widen: int, stride: int, groups: int) -> None:
        super().__init__()
        inner, out = widen * channels, 4 * channels
        self.conv1 = nn.Conv2d(channels_in, channels, 1, bias=False)
        self.bn1 = batch_norm(channels, groups)
        self.conv2 = nn.Conv2d(channels, inner, 3, stride=stride, padding=1, bias=False)
        self.bn2 = batch_norm(inner, groups)
        self.conv3 = nn.Conv2d(inner, out, 1, bias=False)
        self.bn3 = batch_norm(out, groups)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != out:
            self.shortcut = nn.Sequential(nn.Conv2d(channels_in, out, 1, stride=stride, bias=False), batch_norm(out, groups))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn1(self.conv1(x)).relu()
        y = self.bn2(self.conv2(y)).relu()
        out: Tensor = (self.bn3(self.conv3(y)) + self.shortcut(x)).relu()
        return out


class ResNet(nn.Module):
    """Images (batch, 3, image, image) -> logits (batch, classes)."""

    def __init__(self, blocks: tuple[int, ...], base: int, widen: int, classes: int, groups: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, base, 7, stride=2, padding=3, bias=False)
        self.bn = batch_norm(base, groups)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.blocks = nn.ModuleList()
        channels_in = base
        for stage, count in enumerate(blocks):
            channels = base * 2**stage
            for index in range(count):
                self.blocks.append(Bottleneck(channels_in, channels, widen, 2 if stage and not index else 1, groups))
                channels_in = 4 * channels
        self.mean = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels_in, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.bn(self.conv(x)).relu())
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.fc(self.mean(x).flatten(1))
        return logits


def _stages(layers: int, name: str) -> tuple[int, ...]:
    if layers not in STAGES:
        raise InvalidProgram(f"{name}: there is no bottleneck ResNet of {layers} layers; layers is one of {', '.join(map(str, STAGES))}")
    return STAGES[layers]


def resnet50(
    batch: int = 32,
    image: int = 224,
    classes: int = 1000,
    layers: int = 50,
    width: int = 64,
    statistics: int = 1,
    dtype: str = "fp32",
    optimizer: str = "sgd",
    seed: int = 0,
) -> Program:
    """ResNet v1.5 on random images; 25,557,032 parameters by default.

    Args:
        batch: global batch.
        image: height and width.
        classes: of the classifier.
        layers: layers with weights: 8 (two stages), 14, 26, 50, 101 or 152 (the paper has the last three).
        width: channels of the first stage.
        statistics: groups of the (micro-)batch that have batch norm statistics of their own.
        dtype: "fp32", "bf16" or "fp16".
        optimizer: "sgd" or "adamw".

    Raises:
        InvalidProgram: there is no such number of layers, or an unknown dtype.
    """
    blocks = _stages(layers, "resnet50")
    return classifier(
        f"resnet{layers}",
        lambda: ResNet(blocks, width, 1, classes, statistics),
        batch=batch,
        image=image,
        classes=classes,
        optimizer=optimizer,
        seed=seed,
        dtype=dtype,
    )


def wide_resnet(
    size: str = "250M",
    batch: int = 32,
    image: int = 224,
    classes: int = 1024,
    layers: int = 0,
    width: int = 0,
    widen: int = 0,
    statistics: int = 1,
    optimizer: str = "sgd",
    seed: int = 0,
) -> Program:
    """A Wide-ResNet of the family that Alpa and TePDist are measured on, on random images.

    Args:
        size: "250M", "500M", "1B", "2B", "4B", "6.8B" (or "7B") or "13B".
        batch: global batch (Alpa: 1536 in 24 to 38 micro-batches).
        image: height and width.
        classes: of the classifier.
        layers, width, widen: depth, channels of the first stage and widening of the 3x3 convolutions, in place of the size's own.
        statistics: groups of the (micro-)batch that have batch norm statistics of their own.
        optimizer: "sgd" or "adamw".

    Raises:
        InvalidProgram: the size has no such name, or there is no such number of layers.
    """
    key = "6.8B" if size == "7B" else size
    if key not in SIZES:
        raise InvalidProgram(f"wide_resnet: size {size} is unknown; it is one of {', '.join(SIZES)}")
    depth, base, factor = SIZES[key]
    blocks = _stages(layers or depth, "wide_resnet")
    return classifier(
        f"wide_resnet_{key}",
        lambda: ResNet(blocks, width or base, widen or factor, classes, statistics),
        batch=batch,
        image=image,
        classes=classes,
        optimizer=optimizer,
        seed=seed,
    )
