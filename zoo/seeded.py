"""The same weights and the same data from the same seed, whatever ran before."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from planner.frontend import Deferred

__all__ = ["deferred_module", "drawn_types", "seeded_data", "seeded_module"]


def seeded_module(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Build a module under its own seed; the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def deferred_module(build: Callable[[], nn.Module], seed: int) -> Deferred:
    """What ``Program`` takes in a module's place: shapes now, and the values of ``seeded_module(build, seed)`` once somebody asks."""
    return Deferred(lambda: seeded_module(build, seed))


def seeded_data(draw: Callable[[torch.Generator], tuple[Tensor, ...]], seed: int) -> Callable[[int], tuple[Tensor, ...]]:
    """step -> batch, each step from its own generator so that steps can be drawn in any order."""

    def data(step: int) -> tuple[Tensor, ...]:
        return draw(torch.Generator().manual_seed(seed * 1_000_003 + step + 1))

    return data


def drawn_types(draw: Callable[[torch.Generator], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """A batch without values (on the meta device), as example inputs of a Program whose ``data`` draws the real ones: a batch of 1536
    images is planned without its 0.9 GB."""
    with FakeTensorMode():
        batch = draw(torch.Generator())
    return tuple(torch.empty(t.shape, dtype=t.dtype, device="meta") for t in batch)
