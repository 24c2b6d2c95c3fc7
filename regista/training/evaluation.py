"""One evaluation: the states of a checkpoint, the module as it predicts (no dropout, kept statistics), every batch once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from backend.checkpoint import Saved, find
from backend.initial.values import whole_box
from planner.ir.plan import Plan
from regista.data import loader
from regista.training.batches import Batches
from regista.training.job import TrainJob
from regista.training.metrics import Measured, check_metrics

__all__ = ["Evaluation", "evaluation_of"]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How a job is evaluated."""

    job: TrainJob
    batches: Batches

    @property
    def names(self) -> tuple[str, ...]:
        """What is measured, in the table's order."""
        metrics = self.job.metrics
        return ("loss", *(check_metrics(metrics) if isinstance(metrics, Mapping) else metrics))

    def measure(self, plan: Plan, checkpoints: Path, timeout_s: float) -> dict[str, float]:
        """Name -> value, of the newest checkpoint.

        Raises:
            InvalidFile: the checkpoint is damaged.   InvalidProgram: a metric cannot be computed.
        """
        program = self.job.program
        module = copy.deepcopy(program.module).eval()
        _fill(module, Saved(str(find(checkpoints))))
        feed = self.batches.feed
        batch_of: Callable[[int], tuple[Tensor, ...]] = (
            feed if callable(feed) else loader(plan, feed) if feed is not None else program.batch
        )
        measured = Measured(self.job.metrics)
        outputs: list[object] = []
        module.register_forward_hook(lambda module, args, output: outputs.append(output))
        with torch.no_grad():
            for number in range(self.batches.per_epoch or 1):
                tensors = batch_of(number)
                outputs.clear()
                loss = program.loss_of(module, tensors)
                measured.add(float(loss), outputs[-1], tensors[len(tensors) - program.num_targets :])
        return measured.values()


def _fill(module: nn.Module, saved: Saved) -> None:
    with torch.no_grad():
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            type_ = saved.type_of(name)
            if type_ is not None:
                tensor.copy_(saved.part(name, whole_box(type_.shape)))


def evaluation_of(job: TrainJob) -> Evaluation | None:
    """How ``job`` is evaluated; None: not at all.  Raises InvalidProgram: its data does not serve."""
    batches = job.evaluation()
    return None if batches is None else Evaluation(job, batches)
