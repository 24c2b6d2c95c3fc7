"""Blocks of a language model under a random optimizer, schedule and clipping, distributed at random."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim
from torch.optim import lr_scheduler

__all__ = ["Training", "random_training"]

WIDTH, WORDS, TOKENS = 8, 32, 5
_EPS = 1e-4
"""Large, so that a gradient that is 0 but for rounding makes no step."""


class Block(nn.Module):
    """mixes: attention among the tokens as well."""

    def __init__(self, *, mixes: bool) -> None:
        super().__init__()
        self.norm, self.wide, self.narrow = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.mixed = nn.Linear(WIDTH, 3 * WIDTH) if mixes else None

    def forward(self, x: Tensor) -> Tensor:
        if self.mixed is not None:
            query, key, value = (p.unflatten(-1, (2, -1)).transpose(1, 2) for p in self.mixed(self.norm(x)).chunk(3, -1))
            x = x + F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2)
        made: Tensor = x + self.narrow(F.gelu(self.wide(self.norm(x))))
        return made


class Language(nn.Module):
    def __init__(self, random: Random) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.h = nn.ModuleList([Block(mixes=random.random() < 0.5) for _ in range(random.choice([2, 4]))])
        self.last, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        if random.random() < 0.3:
            self.head.weight = self.words.weight
        if random.random() < 0.3:
            self.h[0].wide.bias.requires_grad_(False)  # type: ignore[union-attr]

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        for block in self.h:
            x = block(x)
        made: Tensor = self.head(self.last(x))
        return made


def _loss(output: Tensor, words: Tensor) -> Tensor:
    return F.cross_entropy(output.flatten(0, 1), words.flatten())


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """clip: called with the parameters before each step.   options: of the Program that do the same.   ways: how its Plan is asked for."""

    module: nn.Module
    batch: tuple[Tensor, Tensor]
    loss: Callable[..., Tensor]
    optimizer: optim.Optimizer
    scheduler: lr_scheduler.LRScheduler | None
    clip: Callable[[Iterable[Tensor]], object] | None
    options: dict[str, Any]
    devices: int
    ways: dict[str, Any]
    names: tuple[str, ...]


def random_training(seed: int) -> Training:
    """The same for the same seed, in float64."""
    random = Random(seed)
    torch.manual_seed(seed)
    module, samples = Language(random).double(), random.choice([8, 8, 8, 7, 6])
    words, target = torch.randint(0, WORDS, (samples, TOKENS)), torch.randint(0, WORDS, (samples, TOKENS))
    if random.random() < 0.3:
        target[0, :3] = -100
    kind, optimizer = _optimizer(random, module)
    schedule, scheduler = _scheduler(random, optimizer)
    clipping = random.choice(["no clipping", "clipped norm", "clipped values"])
    clip, options = _CLIPS[clipping]
    return Training(
        module=module,
        batch=(words, target),
        loss=_loss,
        optimizer=optimizer,
        scheduler=scheduler,
        clip=clip,
        options=options,
        devices=random.choice([2, 2, 4]),
        ways=_ways(random, samples),
        names=(kind, schedule, clipping),
    )


_CLIPS: dict[str, tuple[Callable[[Iterable[Tensor]], object] | None, dict[str, Any]]] = {
    "no clipping": (None, {}),
    "clipped norm": (lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.3), {"clip_norm": 0.3}),
    "clipped values": (lambda parameters: nn.utils.clip_grad_value_(parameters, 0.02), {"clip_value": 0.02}),
}


def _optimizer(random: Random, module: nn.Module) -> tuple[str, optim.Optimizer]:
    trained = [p for p in module.parameters() if p.requires_grad]
    decay = random.choice([0.0, 0.1])
    groups: Any = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": decay},
        {"params": [p for p in trained if p.ndim <= 1], "lr": 0.005},
    ]
    given = groups if random.random() < 0.6 else trained
    kinds: dict[str, Callable[[], optim.Optimizer]] = {
        "SGD": lambda: optim.SGD(given, lr=0.02, momentum=random.choice([0.0, 0.9]), weight_decay=0.01),
        "SGD, Nesterov": lambda: optim.SGD(given, lr=0.02, momentum=0.9, nesterov=True),
        "Adam": lambda: optim.Adam(given, lr=0.01, eps=_EPS, weight_decay=0.02),
        "AdamW": lambda: optim.AdamW(given, lr=0.01, eps=_EPS),
        "AdamW, AMSGrad": lambda: optim.AdamW(given, lr=0.01, eps=_EPS, amsgrad=True),
        "Adagrad": lambda: optim.Adagrad(given, lr=0.02, lr_decay=0.01, eps=_EPS),
        "RMSprop": lambda: optim.RMSprop(given, lr=0.01, eps=_EPS, momentum=0.5),
        "RMSprop, centred": lambda: optim.RMSprop(given, lr=0.01, eps=1e-2, centered=True),
        "NAdam": lambda: optim.NAdam(given, lr=0.01, eps=_EPS),
        "RAdam": lambda: optim.RAdam(given, lr=0.01, eps=_EPS),
        "Adamax": lambda: optim.Adamax(given, lr=0.01, eps=_EPS),
        "Adadelta": lambda: optim.Adadelta(given, lr=0.5, eps=_EPS),
    }
    kind = random.choice(list(kinds))
    return kind, kinds[kind]()


def _scheduler(random: Random, optimizer: optim.Optimizer) -> tuple[str, lr_scheduler.LRScheduler | None]:
    kinds: dict[str, Callable[[], lr_scheduler.LRScheduler]] = {
        "StepLR": lambda: lr_scheduler.StepLR(optimizer, 1, 0.7),
        "ExponentialLR": lambda: lr_scheduler.ExponentialLR(optimizer, 0.9),
        "CosineAnnealingLR": lambda: lr_scheduler.CosineAnnealingLR(optimizer, 5),
        "CosineAnnealingWarmRestarts": lambda: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 2),
        "LambdaLR": lambda: lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
        "MultiStepLR": lambda: lr_scheduler.MultiStepLR(optimizer, [1, 2], 0.3),
        "PolynomialLR": lambda: lr_scheduler.PolynomialLR(optimizer, 5),
        "LinearLR": lambda: lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3),
    }
    if "betas" in optimizer.defaults or optimizer.defaults.get("momentum"):
        kinds["OneCycleLR"] = lambda: lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=9)
        kinds["CyclicLR"] = lambda: lr_scheduler.CyclicLR(optimizer, 0.001, 0.02, step_size_up=2)
    kind = random.choice(["no schedule", *kinds])
    return kind, kinds[kind]() if kind in kinds else None


def _ways(random: Random, samples: int) -> dict[str, Any]:
    ways: dict[str, Any] = {"stages": random.choice([1, 1, 2]), "micro_batches": random.choice([1, 1, 2, 4] if samples == 8 else [1, 2])}
    ways |= {"zero": random.choice([0, 1, 2, 3])} if random.random() < 0.5 else {}
    ways |= {"pins": ["input.*=S(0)"]} if random.random() < 0.5 else {}
    ways |= {"recompute": random.choice([1, 2])} if random.random() < 0.3 else {}
    ways |= {"bucket_bytes": random.choice([256, 1024])} if random.random() < 0.3 else {}
    if ways["stages"] > 1 and random.random() < 0.5:
        ways["schedule"] = random.choice(["gpipe", "1f1b"] if ways.get("zero") == 3 else ["gpipe", "1f1b", "zb-h1"])
    return ways
