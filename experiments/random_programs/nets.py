"""Convolutional networks of random parts: each leaves features [batch, channels, height, width] in some order, with some strides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["CLASSES", "Net", "Part", "random_net"]

HEADS, CLASSES = 4, 5


class Shape(NamedTuple):
    """Of the features of one sample."""

    channels: int
    height: int
    width: int


class Part(nn.Module):
    """A layer that computes ``function(inner, *inputs)``."""

    def __init__(self, function: Callable[..., Tensor], inner: nn.Module | None = None) -> None:
        super().__init__()
        self.inner, self.function = inner or nn.Identity(), function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(self.inner, *inputs)


class Net(nn.Module):
    """names: of its parts, in order."""

    def __init__(self, parts: Mapping[str, nn.Module], channels: int) -> None:
        super().__init__()
        self.names = tuple(name.partition(" ")[2] for name in parts)
        self.parts, self.head = nn.ModuleList(parts.values()), nn.Linear(channels, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        made: Tensor = self.head(x.mean((2, 3)))
        return made


def random_net(seed: int) -> Net:
    """Three to nine parts behind a convolution of 3 channels; same seed, same net."""
    random = Random(seed)
    torch.manual_seed(seed)
    shape = Shape(12, 8, 8)
    parts: dict[str, nn.Module] = {"0 convolution": nn.Conv2d(3, shape.channels, 3, padding=1)}
    for _ in range(random.randint(3, 9)):
        name = random.choice(list(_PARTS))
        made = _PARTS[name](random, shape)
        if made is not None:
            module, shape = made
            parts[f"{len(parts)} {name}"] = module
    return Net(parts, shape.channels)


_Made = tuple[nn.Module, Shape] | None


def _same(function: Callable[[Tensor], Tensor]) -> Callable[[Random, Shape], _Made]:
    return lambda random, shape: (Part(lambda _, x: function(x)), shape)


def _with(
    inner: Callable[[Shape], nn.Module], function: Callable[[nn.Module, Tensor], Tensor] = lambda inner, x: inner(x), divisor: int = 1
) -> Callable[[Random, Shape], _Made]:
    """A part with a module that leaves the shape; ``divisor``: of the channels that it can take."""
    return lambda random, shape: None if shape.channels % divisor else (Part(function, inner(shape)), shape)


def _convolution(kernel: int, stride: int = 1) -> Callable[[Random, Shape], _Made]:
    def make(random: Random, shape: Shape) -> _Made:
        if min(shape[1:]) < 2 * stride:
            return None
        channels = random.choice([8, 12, 16, 24])
        height, width = ((extent + stride - 1) // stride for extent in shape[1:])
        return nn.Conv2d(shape.channels, channels, kernel, stride, kernel // 2), Shape(channels, height, width)

    return make


def _halved(function: Callable[[Tensor], Tensor]) -> Callable[[Random, Shape], _Made]:
    def make(random: Random, shape: Shape) -> _Made:
        if min(shape[1:]) < 4:
            return None
        return Part(lambda _, x: function(x)), shape._replace(height=shape.height // 2, width=shape.width // 2)

    return make


def _split(random: Random, shape: Shape) -> _Made:
    if shape.channels % 4:
        return None
    rest = shape.channels // 4

    def function(_: nn.Module, x: Tensor) -> Tensor:
        most, others = torch.split(x, [x.shape[1] - rest, rest], 1)
        return most * others.mean(1, keepdim=True)

    return Part(function), shape._replace(channels=shape.channels - rest)


def _gated(random: Random, shape: Shape) -> _Made:
    if shape.channels % 2 or shape.channels < 8:
        return None
    return Part(lambda _, x: F.glu(x, 1)), shape._replace(channels=shape.channels // 2)


def _twice(random: Random, shape: Shape) -> _Made:
    if shape.channels > 24:
        return None
    return Part(lambda _, x: torch.cat([x, x.flip(2)], 1)), shape._replace(channels=2 * shape.channels)


def _upsampled(random: Random, shape: Shape) -> _Made:
    if max(shape[1:]) > 8:
        return None
    mode = random.choice(["bilinear", "nearest"])
    return Part(lambda _, x: F.interpolate(x, scale_factor=2, mode=mode)), shape._replace(height=2 * shape.height, width=2 * shape.width)


def _narrowed(random: Random, shape: Shape) -> _Made:
    return (Part(lambda _, x: x[..., 1:]), shape._replace(width=shape.width - 1)) if shape.width > 2 else None


def _padded(random: Random, shape: Shape) -> _Made:
    return (Part(lambda _, x: F.pad(x, (1, 1))), shape._replace(width=shape.width + 2)) if shape.width < 10 else None


def _turned(random: Random, shape: Shape) -> _Made:
    return Part(lambda _, x: x.transpose(2, 3)), Shape(shape.channels, shape.width, shape.height)


def _half_normed(norm: nn.Module, x: Tensor) -> Tensor:
    first, second = x.chunk(2, 1)
    return torch.cat([norm(first), second], 1)


def _shuffled(x: Tensor) -> Tensor:
    batch, channels, height, width = x.shape
    return x.view(batch, 4, channels // 4, height, width).transpose(1, 2).reshape(x.shape)


def _attended(projection: nn.Module, x: Tensor) -> Tensor:
    batch, channels, height, width = x.shape
    parts = projection(x.flatten(2).transpose(1, 2)).chunk(3, -1)
    query, key, value = (part.reshape(batch, height * width, HEADS, channels // HEADS).transpose(1, 2) for part in parts)
    made = F.scaled_dot_product_attention(query, key, value)
    return made.transpose(1, 2).reshape(batch, height * width, channels).transpose(1, 2).reshape(x.shape)


def _unfolded(projection: nn.Module, x: Tensor) -> Tensor:
    made: Tensor = projection(F.unfold(x, 3, padding=1).transpose(1, 2))
    return made.transpose(1, 2).view(x.shape)


def _across(inner: nn.Module, x: Tensor) -> Tensor:
    made: Tensor = inner(x.transpose(2, 3))
    return made.transpose(2, 3)


def _sampled(inner: nn.Linear, x: Tensor) -> Tensor:
    turn = inner(x.mean((2, 3))).tanh().view(-1, 2, 3) * 0.3 + torch.eye(2, 3, dtype=x.dtype)
    return F.grid_sample(x, F.affine_grid(turn, list(x.shape), align_corners=False), align_corners=False, padding_mode="border")


def _unpooled(x: Tensor) -> Tensor:
    most, places = F.max_pool2d(x, 2, return_indices=True)
    return F.max_unpool2d(most, places, 2, output_size=x.shape[2:])


def _folded(x: Tensor) -> Tensor:
    return F.fold(F.unfold(x, 3, padding=1), x.shape[2:], 3, padding=1)


def _deep(inner: nn.Conv3d, x: Tensor) -> Tensor:
    made: Tensor = inner(x.unsqueeze(1))
    return made.squeeze(1)


def _by_rank(x: Tensor) -> Tensor:
    order = x.amax((2, 3)).argsort(stable=True, dim=1)
    return x.take_along_dim(order[:, :, None, None], 1) + x.index_select(1, torch.arange(x.shape[1] - 1, -1, -1))


def _pooled_by_place(x: Tensor) -> Tensor:
    places = torch.arange(x.shape[2] * x.shape[3]) % 3
    sums = torch.zeros(*x.shape[:2], 3, dtype=x.dtype).scatter_reduce(
        2, places.expand(*x.shape[:2], -1), x.flatten(2), "amax", include_self=False
    )
    return x - sums.index_select(2, places).view(x.shape)


def _whitened(x: Tensor) -> Tensor:
    seen = x.flatten(2)
    covariance = seen @ seen.mT / seen.shape[-1] + torch.eye(x.shape[1], dtype=x.dtype)
    return torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), seen, upper=False).view(x.shape)


def _halved_pixels(random: Random, shape: Shape) -> _Made:
    if min(shape[1:]) < 4 or shape.height % 2 or shape.width % 2 or shape.channels > 8:
        return None
    return Part(lambda _, x: F.pixel_unshuffle(x, 2)), Shape(4 * shape.channels, shape.height // 2, shape.width // 2)


def _doubled_pixels(random: Random, shape: Shape) -> _Made:
    if shape.channels % 4 or shape.channels < 16 or max(shape[1:]) > 8:
        return None
    return Part(lambda _, x: F.pixel_shuffle(x, 2)), Shape(shape.channels // 4, 2 * shape.height, 2 * shape.width)


def _transposed_convolution(random: Random, shape: Shape) -> _Made:
    if max(shape[1:]) > 8 or shape.channels % 2:
        return None
    inner = nn.ConvTranspose2d(shape.channels, shape.channels, 3, 2, 1, output_padding=1, groups=random.choice([1, 2]))
    return inner, shape._replace(height=2 * shape.height, width=2 * shape.width)


def _three_by_three(function: Callable[[Tensor], Tensor]) -> Callable[[Random, Shape], _Made]:
    """Pooled to 3 x 3."""
    return lambda random, shape: (Part(lambda _, x: function(x)), shape._replace(height=3, width=3)) if min(shape[1:]) >= 3 else None


_PARTS: Mapping[str, Callable[[Random, Shape], _Made]] = {
    "convolution": _convolution(3),
    "pointwise convolution": _convolution(1),
    "strided convolution": _convolution(3, stride=2),
    "depthwise convolution": _with(lambda s: nn.Conv2d(s.channels, s.channels, 3, padding=1, groups=s.channels)),
    "batch norm": _with(lambda s: nn.BatchNorm2d(s.channels)),
    "batch norm, turned": _with(lambda s: nn.BatchNorm2d(s.channels), _across),
    "batch norm of half the channels": _with(lambda s: nn.BatchNorm2d(s.channels // 2), _half_normed, divisor=2),
    "batch norm of a sequence": _with(lambda s: nn.BatchNorm1d(s.channels), lambda norm, x: norm(x.flatten(2)).view(x.shape)),
    "instance norm": _with(lambda s: nn.InstanceNorm2d(s.channels, affine=True)),
    "group norm": _with(lambda s: nn.GroupNorm(4, s.channels), divisor=4),
    "group norm, turned": _with(lambda s: nn.GroupNorm(4, s.channels), _across, divisor=4),
    "layer norm": _with(lambda s: nn.LayerNorm(s.width)),
    "layer norm of channels": _with(lambda s: nn.LayerNorm(s.channels), lambda norm, x: norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)),
    "relu": _same(F.relu),
    "gelu": _same(F.gelu),
    "sigmoid": _same(torch.sigmoid),
    "prelu": _with(lambda s: nn.PReLU(s.channels)),
    "softmax of channels": _same(lambda x: x.softmax(1)),
    "log softmax of places": _same(lambda x: x.flatten(2).log_softmax(-1).view(x.shape)),
    "scaled by its mean": _same(lambda x: x * x.mean((2, 3), keepdim=True)),
    "without its mean": _same(lambda x: x - x.mean(1, keepdim=True)),
    "below its maximum": _same(lambda x: x - x.amax(3, keepdim=True)),
    "running sum": _same(lambda x: x.cumsum(2)),
    "flipped": _same(lambda x: x.flip(3)),
    "rolled": _same(lambda x: x.roll(1, 2)),
    "turned": _turned,
    "split": _split,
    "channels shuffled": lambda random, shape: None if shape.channels % 4 else (Part(lambda _, x: _shuffled(x)), shape),
    "gated": _gated,
    "twice": _twice,
    "narrowed": _narrowed,
    "padded": _padded,
    "upsampled": _upsampled,
    "max pool": _halved(lambda x: F.max_pool2d(x, 2)),
    "average pool": _halved(lambda x: F.avg_pool2d(x, 2)),
    "linear": _with(lambda s: nn.Linear(s.width, s.width)),
    "attention": _with(lambda s: nn.Linear(s.channels, 3 * s.channels), _attended, divisor=HEADS),
    "convolution of a sequence": _with(
        lambda s: nn.Conv1d(s.channels, s.channels, 3, padding=1), lambda inner, x: inner(x.mean(3)).unsqueeze(3) * x
    ),
    "product of neighbourhoods": _with(lambda s: nn.Linear(9 * s.channels, s.channels), _unfolded),
    "transposed convolution": _transposed_convolution,
    "dilated convolution": _with(lambda s: nn.Conv2d(s.channels, s.channels, 3, padding=2, dilation=2, groups=2), divisor=2),
    "circular convolution": _with(lambda s: nn.Conv2d(s.channels, s.channels, 3, padding=1, padding_mode="circular")),
    "reflected convolution": _with(lambda s: nn.Conv2d(s.channels, s.channels, (1, 3), padding="same", padding_mode="replicate")),
    "deep convolution": _with(lambda s: nn.Conv3d(1, 1, 3, padding=1), _deep),
    "normed convolution": _with(lambda s: nn.utils.parametrizations.weight_norm(nn.Conv2d(s.channels, s.channels, 1))),
    "spectral convolution": _with(lambda s: nn.utils.parametrizations.spectral_norm(nn.Conv2d(s.channels, s.channels, 1))),
    "sampled": _with(lambda s: nn.Linear(s.channels, 6), _sampled),
    "unpooled": lambda random, shape: (Part(lambda _, x: _unpooled(x)), shape) if min(shape[1:]) >= 2 else None,
    "folded": _same(_folded),
    "channels by rank": _same(_by_rank),
    "maxima of places": _same(_pooled_by_place),
    "whitened": _same(_whitened),
    "pixels halved": _halved_pixels,
    "pixels doubled": _doubled_pixels,
    "pooled to three": _three_by_three(lambda x: F.adaptive_avg_pool2d(x, 3)),
    "largest of three": _three_by_three(lambda x: F.adaptive_max_pool2d(x, 3)),
    "bicubic": _three_by_three(lambda x: F.interpolate(x, (3, 3), mode="bicubic", align_corners=True)),
    "smoothed": _same(lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)),
    "overlapping maxima": _same(lambda x: F.max_pool2d(x, 3, 1, 1)),
    "response norm": _same(lambda x: F.local_response_norm(x, 3)),
    "power pooled": _same(lambda x: F.lp_pool2d(F.pad(x, (1, 1, 1, 1)), 2.0, 3, 1)),
    "quantile": _same(lambda x: x - x.flatten(2).quantile(0.3, -1)[..., None, None]),
    "deviation": _same(lambda x: x / (x.std((2, 3), keepdim=True) + 1)),
    "turned by a quarter": lambda random, shape: (Part(lambda _, x: x.rot90(1, (2, 3))), Shape(shape.channels, shape.width, shape.height)),
}
