"""The oracle: plain eager training on one device, with gradient accumulation over the same slices."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from planner.frontend import SGD, AdamW, Program
from planner.ir.graph import InputKind

__all__ = ["Outcome", "train_eagerly"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """losses: the mean loss of each step; gradients: of the last step, by parameter name; the rest: after the last step."""

    losses: tuple[float, ...]
    gradients_of_last_step: dict[str, Tensor]
    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]


def torch_optimizer(program: Program, parameters: list[Tensor]) -> torch.optim.Optimizer:
    match program.optimizer:
        case SGD(lr, momentum, weight_decay, nesterov):
            return torch.optim.SGD(parameters, lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov, foreach=False)
        case AdamW(lr, betas, eps, weight_decay):
            return torch.optim.AdamW(parameters, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, foreach=False)
        case other:
            raise AssertionError(f"{other}: train_plainly (tests/oracles/trainer.py) trains with torch's own")


def _backward_of_each(program: Program, module: nn.Module, micro_batches: int, step: int, *, is_random: bool) -> float:
    """Accumulate over micro-batches; the mean of their losses."""
    total = 0.0
    for index in range(micro_batches):
        inputs = program.micro_batch(program.batch(step), micro_batches, index)
        with program.drawing(step, index) if is_random else nullcontext():
            loss = program.loss_of(module, inputs)
            torch.autograd.backward(loss / micro_batches)
        total += loss.item() / micro_batches
    return total


def _backward_of_the_whole(program: Program, module: nn.Module, micro_batches: int, step: int) -> float:
    """One loss over what the module returned of each micro-batch with the draws of that one; its batch dim is the first."""
    outputs, targets = [], []
    for index in range(micro_batches):
        inputs = program.micro_batch(program.batch(step), micro_batches, index)
        with program.drawing(step, index):
            returned, wanted = program.form.output(module, inputs)
        outputs.append(returned)
        targets.append(wanted)
    assert program.loss is not None
    loss = program.loss(torch.cat(outputs), *(torch.cat(parts) for parts in zip(*targets, strict=True)))
    assert isinstance(loss, Tensor)
    torch.autograd.backward(loss)
    return loss.item()


def train_eagerly(program: Program, micro_batches: int, steps: int, like: Program | None = None) -> Outcome:
    """Train a deep copy of the program's module; the program is left as it is.

    Args:
        micro_batches: slices per step; each loss is divided by it before backward.  Where the step divides by what the whole batch counts, the
            whole batch is taken at once; the forward pass of a module that draws sees micro-batch by micro-batch, which have draws of their own.
        steps: number of optimizer steps, on program.batch(0), program.batch(1), ...
        like: a program of the same step with other numbers, traced already: what its graphs draw and count, those of this one do.
    """
    module = copy.deepcopy(program.module)
    optimizer = torch_optimizer(program, [p for p in module.parameters() if p.requires_grad])
    losses: list[float] = []
    given = (like or program).graph(micro_batches).inputs
    is_random = any(entry.kind is InputKind.RANDOM for entry in given)
    counts_the_whole = any(entry.whole_of is not None for entry in given)
    if counts_the_whole and not is_random:
        micro_batches = 1
    for step in range(steps):
        optimizer.zero_grad(set_to_none=True)
        if counts_the_whole and is_random:
            losses.append(_backward_of_the_whole(program, module, micro_batches, step))
        else:
            losses.append(_backward_of_each(program, module, micro_batches, step, is_random=is_random))
        optimizer.step()
    return Outcome(
        losses=tuple(losses),
        gradients_of_last_step={n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None},
        parameters={n: p.detach().clone() for n, p in module.named_parameters()},
        buffers={n: b.detach().clone() for n, b in module.named_buffers()},
    )
