"""The same training on one device in plain PyTorch: the same batches, the same draws, torch's own optimizer, schedule and clipping.

for each step:  for each micro-batch:  program.drawing(step, micro_batch): loss.backward()     clip     optimizer.step()     scheduler.step()
"""

from __future__ import annotations

import torch
from torch import nn

import regista
from regista.training.history import History
from regista.training.metrics import Measured

__all__ = ["train_plain"]


def train_plain(
    job: regista.TrainJob,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    *,
    clip_norm: float,
    steps: int | None = None,
) -> History:
    """Train ``module`` as the job says; its table has the columns of the job's.

    Args:
        module, optimizer, schedule: built as the job's were, a second time.   clip_norm: the job's.   steps: as many; None: all of the job's.
    """
    program, batches, evaluation = job.program, job.training(), job.evaluation()
    last, micro_batches = job.num_steps(batches), int(str(job.plan.get("micro_batches", 1)))
    assert callable(batches.feed) and evaluation is not None and callable(evaluation.feed) and not isinstance(job.metrics, dict)
    history = History(("loss", *job.metrics))
    for step in range(steps or last):
        batch, losses = batches.feed(step), []
        optimizer.zero_grad()
        for number in range(micro_batches):
            with program.drawing(step, number):
                loss = program.loss_of(module, program.micro_batch(batch, micro_batches, number)) / micro_batches
                loss.backward()
            losses.append(loss.item())
        nn.utils.clip_grad_norm_(module.parameters(), clip_norm)
        rate = optimizer.param_groups[0]["lr"]
        optimizer.step()
        schedule.step()
        history.add_step(step + 1, epoch=(step + 1) / (batches.per_epoch or 1), learning_rate=rate, train_loss=sum(losses))
        if step + 1 in job.evaluated_at(last):
            history.add_evaluation(step + 1, evaluate(job, module))
    return history


def evaluate(job: regista.TrainJob, module: nn.Module) -> dict[str, float]:
    """What the job measures, of a module that is not trained meanwhile."""
    evaluation, measured, targets = job.evaluation(), Measured(job.metrics), job.program.num_targets
    assert evaluation is not None and callable(evaluation.feed) and evaluation.per_epoch is not None
    module.eval()
    with torch.no_grad():
        for number in range(evaluation.per_epoch):
            batch = evaluation.feed(number)
            output = module(*batch[:-targets])
            measured.losses.append(job.program.loss_of(module, batch).item())
            measured.add_output(output, batch[-targets:])
    module.train()
    return measured.values()
