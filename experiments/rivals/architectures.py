"""Architectures that the zoo lacks, in the shapes of their papers and at sizes whose step takes some tens of milliseconds on one core.

mobilenet_v2    inverted residuals, depthwise convolutions, ReLU6            [Sandler et al. 2018, arXiv 1801.04381]
mobilenet_v3    with squeeze-and-excitation and hardswish                    [Howard et al. 2019, arXiv 1905.02244]
efficientnet    with squeeze-and-excitation and SiLU                         [Tan & Le 2019, arXiv 1905.11946]
densenet        every layer reads all earlier ones of its block              [Huang et al. 2016, arXiv 1608.06993]
convnext        depthwise 7x7, layer norm over channels, layer scale         [Liu et al. 2022, arXiv 2201.03545]
swin            attention in windows that are shifted every second layer     [Liu et al. 2021, arXiv 2103.14030]
lstm, gru       two recurrent layers between an embedding and a vocabulary   [Hochreiter & Schmidhuber 1997; Cho et al. 2014]

Each function is a factory for ``program_of("FILE.py:NAME")``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.frontend import Program
from zoo.seeded import deferred_module
from zoo.text import next_tokens, token_loss
from zoo.vision.images import classifier

__all__ = ["convnext", "densenet", "efficientnet", "gru", "lstm", "mobilenet_v2", "mobilenet_v3", "swin"]

BATCH, IMAGE, CLASSES = 8, 64, 100


def _images(name: str, build: Callable[[], nn.Module], batch: int = BATCH, image: int = IMAGE) -> Program:
    return classifier(name, build, batch=batch, image=image, classes=CLASSES, optimizer="adamw", seed=0)


def _normed(channels_in: int, channels: int, kernel: int, stride: int, act: type[nn.Module], groups: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(channels_in, channels, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(channels), act()]


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int, inner: int, act: type[nn.Module], gate: type[nn.Module]) -> None:
        super().__init__()
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, inner, 1), act(), nn.Conv2d(inner, channels, 1), gate())

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x * self.gate(x)
        return out


class InvertedResidual(nn.Module):
    """1x1 to ``inner`` channels, depthwise, perhaps squeeze-and-excitation, 1x1 to ``channels``."""

    def __init__(
        self, channels_in: int, inner: int, channels: int, kernel: int, stride: int, act: type[nn.Module], gate: type[nn.Module] | None
    ) -> None:
        super().__init__()
        self.residual = stride == 1 and channels_in == channels
        layers = _normed(channels_in, inner, 1, 1, act) if inner != channels_in else []
        layers += _normed(inner, inner, kernel, stride, act, groups=inner)
        layers += [SqueezeExcite(inner, inner // 4, nn.ReLU, gate)] if gate is not None else []
        self.layers = nn.Sequential(*layers, *_normed(inner, channels, 1, 1, nn.Identity))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return x + out if self.residual else out


def _head(channels_in: int, channels: int, act: type[nn.Module]) -> list[nn.Module]:
    return [*_normed(channels_in, channels, 1, 1, act), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES)]


def _inverted(
    stem: int, rows: list[tuple[int, int, int, int, int]], head: int, act: type[nn.Module], gate: type[nn.Module] | None
) -> nn.Module:
    """rows: (expansion, channels, blocks, stride, kernel)."""
    layers, channels = _normed(3, stem, 3, 2, act), stem
    for expansion, made, blocks, stride, kernel in rows:
        for number in range(blocks):
            layers.append(InvertedResidual(channels, expansion * channels, made, kernel, stride if number == 0 else 1, act, gate))
            channels = made
    return nn.Sequential(*layers, *_head(channels, head, act))


def mobilenet_v2() -> Program:
    rows = [(1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 32, 3, 2, 3), (6, 64, 4, 2, 3), (6, 96, 3, 1, 3), (6, 160, 3, 2, 3), (6, 320, 1, 1, 3)]
    return _images("mobilenet_v2", lambda: _inverted(32, rows, 1280, nn.ReLU6, None))


def mobilenet_v3() -> Program:
    rows = [(1, 16, 1, 1, 3), (4, 24, 2, 2, 3), (3, 40, 3, 2, 5), (6, 80, 4, 2, 3), (6, 112, 2, 1, 3), (6, 160, 3, 2, 5)]
    return _images("mobilenet_v3", lambda: _inverted(16, rows, 960, nn.Hardswish, nn.Hardsigmoid))


def efficientnet() -> Program:
    rows = [(1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3)]
    return _images("efficientnet", lambda: _inverted(32, rows, 1280, nn.SiLU, nn.Sigmoid))


class DenseLayer(nn.Module):
    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, 4 * growth, 1, bias=False),
            nn.BatchNorm2d(4 * growth),
            nn.ReLU(),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.layers(x)], 1)


def _densenet() -> nn.Module:
    growth, channels = 24, 48
    layers: list[nn.Module] = [*_normed(3, channels, 7, 2, nn.ReLU), nn.MaxPool2d(3, 2, 1)]
    for place, blocks in enumerate((4, 6, 8, 6)):
        for _ in range(blocks):
            layers.append(DenseLayer(channels, growth))
            channels += growth
        if place < 3:
            layers += [nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, channels // 2, 1, bias=False), nn.AvgPool2d(2)]
            channels //= 2
    layers += [nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES)]
    return nn.Sequential(*layers)


def densenet() -> Program:
    return _images("densenet", _densenet)


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of [N, C, H, W]."""

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias, self.eps).permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.up, self.down = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.full((channels,), 1e-1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(F.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


def _convnext() -> nn.Module:
    widths = (48, 96, 192, 384)
    layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 4, 4), ChannelNorm(widths[0])]
    for place, (width, blocks) in enumerate(zip(widths, (2, 2, 4, 2), strict=True)):
        layers += [ConvNeXtBlock(width) for _ in range(blocks)]
        if place < 3:
            layers += [ChannelNorm(width), nn.Conv2d(width, widths[place + 1], 2, 2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(widths[-1]), nn.Linear(widths[-1], CLASSES))


def convnext() -> Program:
    return _images("convnext", _convnext, image=96)


class WindowAttention(nn.Module):
    """Attention within windows of ``window`` x ``window`` of an image of ``side`` x ``side`` positions, rolled by ``shift``."""

    bias_index: Tensor

    def __init__(self, width: int, heads: int, window: int, shift: int) -> None:
        super().__init__()
        self.heads, self.window, self.shift = heads, window, shift
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.bias = nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads))
        place = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        apart = place[:, :, None] - place[:, None, :] + window - 1
        self.register_buffer("bias_index", apart[0] * (2 * window - 1) + apart[1], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, side, _, width = x.shape
        w, count = self.window, side // self.window
        x = torch.roll(x, (-self.shift, -self.shift), (1, 2)) if self.shift else x
        x = x.view(batch, count, w, count, w, width).permute(0, 1, 3, 2, 4, 5).reshape(-1, w * w, width)
        q, k, v = self.qkv(x).view(-1, w * w, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        bias = self.bias[self.bias_index.view(-1)].view(w * w, w * w, self.heads).permute(2, 0, 1)
        weights = torch.softmax((q * (width // self.heads) ** -0.5) @ k.transpose(-2, -1) + bias, -1)
        x = self.project((weights @ v).transpose(1, 2).reshape(-1, w * w, width))
        x = x.view(batch, count, count, w, w, width).permute(0, 1, 3, 2, 4, 5).reshape(batch, side, side, width)
        return torch.roll(x, (self.shift, self.shift), (1, 2)) if self.shift else x


class SwinBlock(nn.Module):
    def __init__(self, width: int, heads: int, window: int, shift: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = WindowAttention(width, heads, window, shift)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x))
        out: Tensor = x + self.mlp(self.norm_2(x))
        return out


class PatchMerging(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.reduce = nn.LayerNorm(4 * width), nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        quarters = [x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
        out: Tensor = self.reduce(self.norm(torch.cat(quarters, -1)))
        return out


class Swin(nn.Module):
    def __init__(self, width: int, window: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        layers: list[nn.Module] = []
        for place in range(2):
            layers += [SwinBlock(width, width // 16, window, shift) for shift in (0, window // 2)]
            layers += [PatchMerging(width)] if place == 0 else []
            width *= 2 if place == 0 else 1
        self.layers, self.norm, self.head = nn.Sequential(*layers), nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(self.patches(x).permute(0, 2, 3, 1))
        out: Tensor = self.head(self.norm(x).mean((1, 2)))
        return out


def swin() -> Program:
    return _images("swin", lambda: Swin(64, 4))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU], width: int, vocab: int) -> None:
        super().__init__()
        self.embedding, self.layers = nn.Embedding(vocab, width), kind(width, width, 2, batch_first=True)
        self.head = nn.Linear(width, vocab)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.layers(self.embedding(ids))[0])
        return out


def _recurrent(name: str, kind: type[nn.LSTM] | type[nn.GRU], *, batch: int = 16, seq: int = 32, vocab: int = 512) -> Program:
    data = next_tokens(batch, seq, vocab, 0)
    module = deferred_module(lambda: Recurrent(kind, 192, vocab), 0)
    return Program(module, data(0), token_loss, "adamw", name=name, data=data, seed=0)


def lstm() -> Program:
    return _recurrent("lstm", nn.LSTM)


def gru() -> Program:
    return _recurrent("gru", nn.GRU)
