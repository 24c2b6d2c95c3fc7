"""The same weights and the same data from the same seed, whatever ran before."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

__all__ = ["seeded_data", "seeded_module"]


def seeded_module(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Build a module under its own seed; the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def seeded_data(draw: Callable[[torch.Generator], tuple[Tensor, ...]], seed: int) -> Callable[[int], tuple[Tensor, ...]]:
    """step -> batch, each step from its own generator so that steps can be drawn in any order."""

    def data(step: int) -> tuple[Tensor, ...]:
        return draw(torch.Generator().manual_seed(seed * 1_000_003 + step + 1))

    return data
