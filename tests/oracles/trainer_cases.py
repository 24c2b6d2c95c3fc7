"""A small model with what trainers use: two groups (decay, no decay), warm-up and cosine, and batches that differ from step to step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import lr_scheduler

from planner.frontend import Program

__all__ = ["Training", "small_training"]


def mse(output: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(output, target)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.wide, self.narrow = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.narrow(F.gelu(self.wide(self.norm(x))))  # type: ignore[no-any-return]


class Blocks(nn.Module):
    """Numbered blocks, as pipelines cut them."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.h = nn.ModuleList([Block(width) for _ in range(blocks)])
        self.head = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.h:
            x = block(x)
        return self.head(x)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    module: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: lr_scheduler.LRScheduler

    def program(self, **options: object) -> Program:
        """lr_schedule, clip_norm, ...: as of Program; the scheduler by default."""
        generator = torch.Generator().manual_seed(1)
        inputs, targets = torch.randn(8, 8, generator=generator), torch.randn(8, 8, generator=generator)
        return Program(
            self.module,
            (inputs, targets),
            mse,
            self.optimizer,
            data=lambda step: (inputs * (1 + step % 3), targets - step % 5),
            **{"lr_schedule": self.scheduler, **options},  # type: ignore[arg-type]
        )


def small_training(*, lr: float = 0.02) -> Training:
    torch.manual_seed(0)
    module = Blocks(8, 2)
    decayed = [p for p in module.parameters() if p.ndim > 1]
    plain = [p for p in module.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0, "lr": lr / 2}]
    optimizer = torch.optim.AdamW(groups, lr=lr, eps=1e-4)
    warm_up, cosine = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5), lr_scheduler.CosineAnnealingLR(optimizer, 15)
    return Training(module=module, optimizer=optimizer, scheduler=lr_scheduler.SequentialLR(optimizer, [warm_up, cosine], [5]))
