"""The loop that people write: a module, an optimizer of torch, perhaps a scheduler and clipping, on one device."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Sequence

import torch
from oracle import Outcome
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from planner.frontend import Program

__all__ = ["train_plainly"]


def train_plainly(
    program: Program,
    optimizer: torch.optim.Optimizer,
    steps: int,
    *,
    micro_batches: int = 1,
    schedulers: Sequence[LRScheduler] = (),
    clip: Callable[[Iterable[Tensor]], object] | None = None,
) -> Outcome:
    """Train copies of the program's module, of its optimizer and of schedulers on it; what is given is left as it is.

    Args:
        clip: called with the parameters between backward and step.
    """
    module: nn.Module
    module, optimizer, schedulers = copy.deepcopy((program.module, optimizer, tuple(schedulers)))
    losses: list[float] = []
    for step in range(steps):
        optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for index in range(micro_batches):
            loss = program.loss_of(module, program.micro_batch(program.batch(step), micro_batches, index))
            torch.autograd.backward(loss / micro_batches)
            total += loss.item() / micro_batches
        losses.append(total)
        gradients = {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
        if clip is not None:
            clip([p for group in optimizer.param_groups for p in group["params"]])
        optimizer.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a copy of an optimizer does not tell its scheduler that it was stepped
            for scheduler in schedulers:
                scheduler.step()
    return Outcome(
        losses=tuple(losses),
        gradients_of_last_step=gradients,
        parameters={n: p.detach().clone() for n, p in module.named_parameters()},
        buffers={n: b.detach().clone() for n, b in module.named_buffers()},
    )
