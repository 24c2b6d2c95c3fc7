"""What the image classifiers share: random images with labels, and the Program around a module."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from planner.frontend import Program
from regista.zoo.mlp import cross_entropy
from regista.zoo.seeded import deferred_module, drawn_types, seeded_data

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
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
) -> Program:
    """A Program that trains ``build()``, images (batch, 3, image, image) -> logits (batch, classes), on random images and labels."""

    def draw(generator: torch.Generator) -> tuple[Tensor, ...]:
        return torch.randn(batch, 3, image, image, generator=generator), torch.randint(0, classes, (batch,), generator=generator)

    data = seeded_data(draw, seed)
    return Program(deferred_module(build, seed), drawn_types(draw), loss, optimizer, name=name, data=data, seed=seed)
