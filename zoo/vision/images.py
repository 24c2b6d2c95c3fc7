"""What the image classifiers share: random images with labels, and the Program around a module."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from planner.frontend import Program
from zoo.mlp import cross_entropy
from zoo.seeded import deferred_module, drawn_types, seeded_data
from zoo.text import float_type, in_format

__all__ = ["classifier"]


def classifier(
    name: str,
    build: Callable[[], nn.Module],
    *,
    batch: int,
    image: int,
    classes: int,
    optimizer: str,
    seed: int,
    dtype: str = "fp32",
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
) -> Program:
    """A Program that trains ``build()``, images (batch, 3, image, image) -> logits (batch, classes), on random images and labels."""

    number = float_type(name, dtype)

    def draw(generator: torch.Generator) -> tuple[Tensor, ...]:
        pixels = torch.randn(batch, 3, image, image, generator=generator).to(number)
        return pixels, torch.randint(0, classes, (batch,), generator=generator)

    data = seeded_data(draw, seed)
    return Program(
        deferred_module(in_format(build, name, dtype), seed), drawn_types(draw), loss, optimizer, name=name, data=data, seed=seed
    )
