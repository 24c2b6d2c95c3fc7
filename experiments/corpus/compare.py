"""A Plan's training against plain eager training on one device, of the same draws."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from backend.run_folder import Outcome
from planner.frontend import Program

__all__ = ["LR", "MOMENTUM", "STEPS", "Errors", "Eager", "errors", "train_eagerly"]

STEPS, LR, MOMENTUM = 2, 0.01, 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Eager:
    """losses of each step, gradients of the last one, parameters and buffers after it."""

    losses: tuple[float, ...]
    gradients: Mapping[str, Tensor]
    states: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Largest |difference| of a tensor as a share of its largest |value|; where: the tensor with the largest of all."""

    loss: float
    gradient: float
    state: float
    where: str

    @property
    def worst(self) -> float:
        return max(self.loss, self.gradient, self.state)


def train_eagerly(program: Program, micro_batches: int) -> Eager:
    """Plain PyTorch, accumulating over the same micro-batches; the program's module is left as it is.

    Where the step divides by what the whole batch counts (SEMANTICS 6), the whole batch is taken at once.
    """
    with program.drawing():
        program.loss_of(copy.deepcopy(program.module), program.batch(0))  # a model that cannot be used says so before it is traced
    if any(entry.whole_of is not None for entry in program.graph(micro_batches).inputs):
        micro_batches = 1
    module = copy.deepcopy(program.module)
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=LR, momentum=MOMENTUM)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for index in range(micro_batches):
            inputs = program.micro_batch(program.batch(step), micro_batches, index)
            with program.drawing(step, index):
                loss = program.loss_of(module, inputs)
                torch.autograd.backward(loss / micro_batches)
            total += loss.item() / micro_batches
        losses.append(total)
        optimizer.step()
    return Eager(
        losses=tuple(losses),
        gradients={n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None},
        states={n: t.detach().clone() for n, t in (*module.named_parameters(), *module.named_buffers())},
    )


def errors(outcome: Outcome, eager: Eager) -> Errors:
    """Tensors whose values are rounding alone (a bias in front of a norm has gradient 0) are judged beside the largest of all: a thousandth of it."""
    loss = max(_share(torch.tensor(a), torch.tensor(b), 0.0) for a, b in zip(outcome.losses, eager.losses, strict=True))
    if set(outcome.gradients) != set(eager.gradients):
        return Errors(loss=loss, gradient=inf, state=inf, where=f"gradients of {sorted(set(outcome.gradients) ^ set(eager.gradients))[:3]}")
    most = max(float(g.abs().max()) for g in eager.gradients.values() if g.numel())
    gradient = max((_share(outcome.gradients[n], g, 1e-3 * most), n) for n, g in eager.gradients.items())
    states = [(_share(outcome.states[n], value, 1e-3), n) for n, value in eager.states.items() if n in outcome.states]
    state = max(states)
    return Errors(loss=loss, gradient=gradient[0], state=state[0], where=max((loss, "the loss"), gradient, state)[1])


def _share(value: Tensor, wanted: Tensor, floor: float) -> float:
    """Largest |difference| over the larger of floor and the largest |wanted|; infinite where a number is missing or a type is another."""
    if value.shape != wanted.shape or value.dtype != wanted.dtype:
        return inf
    if value.numel() == 0 or torch.equal(value, wanted):
        return 0.0
    wide = torch.complex128 if wanted.is_complex() else torch.float64
    here, there = value.detach().to(wide), wanted.detach().to(wide)
    gap = torch.where(here == there, 0.0, (here - there).abs())
    gap = torch.where(here.isnan() & there.isnan(), 0.0, gap)
    largest = float(there.abs().nan_to_num(posinf=0.0).max())
    return float(gap.nan_to_num(nan=inf, posinf=inf).max()) / max(floor, largest, 1e-30)
