"""Performers with one mistake each, as a runtime under work has them; the check of transparency must catch every one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from backend.reference import ReferencePerformer
from planner.ir.plan import Boxing, Plan, RegstKind, Task

__all__ = [
    "DropsABiasGradientAtTheBorder",
    "ForgetsToReduce",
    "GathersInTheWrongOrder",
    "LeavesOutAMicroBatch",
    "ReadsLastStepsWeights",
    "ScalesTwice",
    "Wrong",
]


class Wrong(ReferencePerformer):
    """``slips`` counts how often the mistake was made: a plan that gives no occasion proves nothing."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.slips = 0
        super().__init__(*args, **options)


class ForgetsToReduce(Wrong):
    """Its all-reduce hands every rank its own partial value."""

    def run_boxing(self, task: Task, body: Boxing, parts: Sequence[Tensor]) -> Sequence[Tensor]:
        if "all_reduce" not in task.id:
            return super().run_boxing(task, body, parts)
        self.slips += 1
        return list(parts)


class GathersInTheWrongOrder(Wrong):
    """Its all-gather puts the parts together from the last rank to the first."""

    def run_boxing(self, task: Task, body: Boxing, parts: Sequence[Tensor]) -> Sequence[Tensor]:
        if "all_gather" not in task.id:
            return super().run_boxing(task, body, parts)
        self.slips += 1
        return super().run_boxing(task, body, list(reversed(parts)))


class LeavesOutAMicroBatch(Wrong):
    """The second micro-batch never reaches the sum."""

    def accumulate(self, held: Tensor | None, value: Tensor, acts_per_block: int) -> Tensor:
        if acts_per_block > 1 and held is not None:
            self.slips += 1
            if self.slips % acts_per_block == 1:
                value = torch.zeros_like(value)
        return super().accumulate(held, value, acts_per_block)


class ScalesTwice(Wrong):
    """Divides by the number of micro-batches once too often."""

    def accumulate(self, held: Tensor | None, value: Tensor, acts_per_block: int) -> Tensor:
        self.slips += acts_per_block > 1
        return super().accumulate(held, value / acts_per_block, acts_per_block)


class ReadsLastStepsWeights(Wrong):
    """Forward and backward parts see the parameters as they were before the last update."""

    def __init__(self, plan: Plan, *args: Any, **options: Any) -> None:
        self.acts: dict[tuple[str, int], int] = defaultdict(int)
        self.before: dict[tuple[str, int, int, int], Tensor] = {}
        super().__init__(plan, *args, **options)

    def run_fragment(self, task: Task, rank: int, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        step, self.acts[task.id, rank] = self.acts[task.id, rank] // task.acts, self.acts[task.id, rank] + 1
        if not task.kind.is_compute or not any(port.acts_per_block == task.acts for port in task.consumes):
            return super().run_fragment(task, rank, inputs)
        parameters = {state.name for state in self.plan.states if ":" not in state.name}
        seen = list(inputs)
        for place, (access, value) in enumerate(zip(task.reads, inputs, strict=True)):
            regst = self.plan.regst[access.regst]
            name = access.name.removeprefix("parameter:").partition("@")[0]
            if regst.kind is RegstKind.STATE and name in parameters and task.kind.value in ("forward", "backward", "weight"):
                self.before.setdefault((task.id, rank, place, step), value.clone())
                if step:
                    seen[place] = self.before[task.id, rank, place, step - 1]
                    self.slips += 1
        return super().run_fragment(task, rank, seen)


class DropsABiasGradientAtTheBorder(Wrong):
    """The gradient of the last vector (a bias or a scale) before the border of the first two stages stays 0."""

    def run_fragment(self, task: Task, rank: int, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        results = list(super().run_fragment(task, rank, inputs))
        vectors = [
            home
            for home in self.plan.gradients.values()
            if self.plan.regst[home.regst].placement == "s0" and len(self.plan.regst[home.regst].tensors[home.index].shape) == 1
        ]
        last = (vectors[-1].regst, vectors[-1].index)
        for place, access in enumerate(task.writes):
            if (access.regst, access.index) == last:
                results[place] = torch.zeros_like(results[place])
                self.slips += 1
        return results
