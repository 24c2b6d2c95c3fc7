"""Residual multi-layer perceptron: one big batch dim, wide matrices; the smallest model with every parallelism."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.frontend import Program
from zoo.seeded import deferred_module, seeded_data
from zoo.text import float_type, in_format

__all__ = ["MLP", "mlp"]


class Block(nn.Module):
    def __init__(self, width: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(F.dropout(F.relu(self.up(x)), self.dropout, self.training))
        return out


class MLP(nn.Module):
    """``depth`` residual blocks width -> hidden -> width and a linear head."""

    def __init__(self, width: int, hidden: int, depth: int, classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block(width, hidden, dropout) for _ in range(depth)))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.blocks(x))
        return logits


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits, target)


def mlp(
    batch: int = 32,
    width: int = 256,
    hidden: int = 1024,
    depth: int = 2,
    classes: int = 10,
    dtype: str = "fp32",
    optimizer: str = "sgd",
    seed: int = 0,
    dropout: float = 0.0,
) -> Program:
    """A residual MLP classifier on random data.

    Args:
        batch: global batch.
        width, hidden: features outside and inside a block.
        depth: number of blocks.
        dtype: "fp32", "bf16" or "fp16".
        optimizer: "sgd" or "adamw".
        dropout: rate of a block's hidden features.

    Raises:
        InvalidProgram: an unknown dtype.
    """
    number = float_type("mlp", dtype)
    module = deferred_module(in_format(lambda: MLP(width, hidden, depth, classes, dropout), "mlp", dtype), seed)

    def draw(generator: torch.Generator) -> tuple[Tensor, ...]:
        return torch.randn(batch, width, generator=generator).to(number), torch.randint(0, classes, (batch,), generator=generator)

    data = seeded_data(draw, seed)
    return Program(module, data(0), cross_entropy, optimizer, name="mlp", data=data, seed=seed)
