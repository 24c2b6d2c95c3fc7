"""A module that evaluation treats otherwise than training in every way that there is, and what one device gives of it."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import regista
from planner.frontend import Program

BATCH, CLASSES = 8, 4

WAYS: dict[str, dict[str, object]] = {
    "one device": {"cluster": "local:1"},
    "data parallel": {"pins": ["input.*=S(0)"]},
    "tensor parallel": {"pins": ["blocks.0.up.weight=S(0)"]},
    "micro-batches": {"micro_batches": 4},
    "pipeline": {"stages": 2, "micro_batches": 4},
    "pipeline of data parallel stages": {"cluster": "local:4", "stages": 2, "micro_batches": 2, "pins": ["input.*=S(0)"]},
}
"""The six ways; of two devices where nothing else is said."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.drop = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.5)
        self.down = nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(self.drop(F.relu(self.norm(self.up(x)))))
        return out


class Classifier(nn.Module):
    """Batch norm with running statistics, dropout, and a buffer that training alone moves on."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(8, CLASSES)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> dict[str, Tensor | tuple[Tensor, Tensor]]:
        if self.training:
            self.calls = self.calls + 1
        h = x
        for block in self.blocks:
            h = block(h)
        return {"logits": self.head(h) + self.calls, "hidden": (h, x[:, :2])}


def classification(returned: Mapping[str, Tensor], target: Tensor) -> Tensor:
    return F.cross_entropy(returned["logits"], target)


def batch_of(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(BATCH, 8, generator=generator), torch.randint(CLASSES, (BATCH,), generator=generator)


def classifier(**settings: object) -> Program:
    """A program whose running statistics are no longer those of a new module."""
    torch.manual_seed(3)
    module = Classifier()
    for child in module.modules():
        if isinstance(child, nn.BatchNorm1d):
            child.running_mean.normal_()  # type: ignore[union-attr]
            child.running_var.uniform_(0.5, 2.0)  # type: ignore[union-attr]
    return Program(module, batch_of(0), loss=classification, data=batch_of, seed=5, **settings)  # type: ignore[arg-type]


def eager(program: Program, state: Mapping[str, Tensor], seed: int) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss and outputs of one device: module.eval() under no_grad, with this state."""
    module = copy.deepcopy(program.module)
    held = module.state_dict()
    module.load_state_dict({name: state.get(name, value) for name, value in held.items()})
    x, target = batch_of(seed)
    with torch.no_grad():
        returned = module.eval()(x)
        loss = classification(returned, target)
    return loss, {"logits": returned["logits"], "hidden.0": returned["hidden"][0], "hidden.1": returned["hidden"][1]}


def planned(program: Program, way: str, **options: object) -> regista.Plan:
    """The evaluation in one of the ways, with all outputs."""
    settings = {"cluster": "local:2", "mode": "eval", "outputs": True, **WAYS[way], **options}
    return regista.plan(program, **settings)  # type: ignore[arg-type]
