"""Seeded sizes and tensors, and how a family of ops enters its builders into a table."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from tests.oracles.sbp_check import Case

F64, I64 = torch.float64, torch.int64


class Draw:
    """Seeded sizes and tensors."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)

    def size(self) -> int:
        return self.rng.choice((1, 2, 3, 4, 6, 6, 12))

    def sizes(self, count: int) -> list[int]:
        return [self.size() for _ in range(count)]

    def real(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=F64)

    def positive(self, *shape: int) -> Tensor:
        return self.real(*shape).abs() + 0.1

    def index(self, high: int, *shape: int) -> Tensor:
        return torch.randint(0, high, shape, generator=self.generator)

    def mask(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator) < 0.5


Builder = Callable[[Draw], Iterator[Case]]


def add_each(table: dict[str, Builder], names: str, build: Callable[[str, Draw], Iterator[Case]]) -> None:
    """Enter one builder under several targets (of aten, unless a name says regista)."""
    for name in names.split():
        target = name if name.startswith("regista.") else f"aten.{name}"
        table[target] = lambda draw, target=target: build(target, draw)  # type: ignore[misc]
