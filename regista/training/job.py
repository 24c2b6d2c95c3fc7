"""What a training is made of."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import regista.api as api
from planner.frontend import Program
from planner.ir.errors import InvalidProgram
from regista.sweep.keys import nearest
from regista.training.batches import Batches, TrainData, batches_of
from regista.training.metrics import Metric, check_metrics

__all__ = ["PLAN_OPTIONS", "TrainJob", "epoch_of"]

_OF_THE_PROGRAM = ("batch_dim", "update", "precision", "grad_dtype", "attention")
_NOT_OF_A_JOB = ("program", "cluster", "mode", "outputs", "on_progress", "on_shape", *_OF_THE_PROGRAM)
PLAN_OPTIONS = tuple(name for name in inspect.signature(api.plan).parameters if name not in _NOT_OF_A_JOB)
"""The arguments of regista.plan that a job may have."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainJob:
    """A program, the data that it sees, and for how long.

    Args:
        program: module, loss, optimizer, schedule, clipping, averages, seed.  Its example inputs are one batch of the data.
        train_data: tensors (one per input of the batch, samples along its batch dim), a torch Dataset with a length, a DataLoader, or the text of
            a description (``tokens:PATH?seq=128``); None: the program's own ``data``.
        eval_data: what evaluations see, in the same forms, in its own order; its samples fill batches of the program's size.  None: no evaluation.
        steps, epochs: how long; one of the two.  An epoch has as many steps as its data fills batches.
        eval_every: evaluate after every so many steps, and at the end; 0: at the end only.
        eval_ema: evaluate the moving averages of the parameters, which Program(ema=...) keeps, instead of the parameters.
        metrics: name -> Metric, beside the loss of the evaluation; or names of regista.training.metrics (``accuracy``, ``perplexity``).
        save_every: save a checkpoint after every so many steps, beside those that evaluations need; 0: only those.
        keep: so many newest checkpoints stay; 0: all.
        shuffle: draw the order of tensors and Datasets anew in each epoch, from the program's seed.
        cluster: as regista.plan takes it.   plan: further arguments of regista.plan by name, ``{"stages": 2, "micro_batches": 4}``.

    Raises:
        InvalidProgram: numbers that cannot be, or a metric that is not known.
    """

    program: Program
    train_data: TrainData = None
    eval_data: TrainData = None
    steps: int | None = None
    epochs: int | None = None
    eval_every: int = 0
    eval_ema: bool = False
    metrics: Mapping[str, Metric] | tuple[str, ...] = ()
    save_every: int = 0
    keep: int = 3
    shuffle: bool = True
    cluster: str = "local:2"
    plan: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise InvalidProgram(f"a job lasts steps = {self.steps} or epochs = {self.epochs}; give one of the two")
        for name, least in (("steps", 1), ("epochs", 1), ("eval_every", 0), ("save_every", 0), ("keep", 0)):
            number = getattr(self, name)
            if number is not None and (not isinstance(number, int) or number < least):
                raise InvalidProgram(f"{name} = {number!r}; a whole number of at least {least} is needed")
        if self.epochs is not None and self.train_data is None:
            raise InvalidProgram(f"epochs = {self.epochs} of a program's own data, which has no length; give steps, or train_data")
        if self.eval_ema and not self.program.averages:
            raise InvalidProgram(
                "eval_ema evaluates moving averages, and the program keeps none; give Program(ema=0.999), or leave eval_ema out"
            )
        for name in self.plan:
            if name in _OF_THE_PROGRAM:
                raise InvalidProgram(f"plan option {name} is of the program that a job trains; give it to Program(...)")
            if name not in PLAN_OPTIONS:
                raise InvalidProgram(f"a job has no plan option {name!r}{nearest(name, PLAN_OPTIONS)} (it has {', '.join(PLAN_OPTIONS)})")
        check_metrics(self.metrics)

    def training(self) -> Batches:
        """Batches by step.  Raises InvalidProgram, InvalidFile: what the data lacks."""
        return batches_of(self.train_data, self.program, shuffle=self.shuffle, what="train_data")

    def evaluation(self) -> Batches | None:
        """Batches of one evaluation, in order; None: there is none.

        Raises:
            InvalidProgram: its samples do not fill whole batches.
        """
        if self.eval_data is None:
            return None
        batches = batches_of(self.eval_data, self.program, shuffle=False, what="eval_data")
        if batches.rest:
            raise InvalidProgram(
                f"eval_data leaves {batches.rest} samples over after {batches.per_epoch} batches of {self.program.batch_size}, and every sample counts "
                "once; give a multiple of the batch"
            )
        return batches

    def num_steps(self, training: Batches) -> int:
        """How many steps there are in all."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None and training.per_epoch is not None
        return self.epochs * training.per_epoch

    def evaluated_at(self, steps: int) -> tuple[int, ...]:
        """After how many steps there is an evaluation: the ends of the runs that the training consists of."""
        every = self.eval_every or steps
        return (*range(every, steps, every), steps)


def epoch_of(step: int, training: Batches) -> float:
    """How often all samples were seen after ``step`` steps; nan: the data has no length."""
    return step / training.per_epoch if training.per_epoch else math.nan
