"""One evaluation after another: a Plan of mode ``eval``, fed by the checkpoints of the training, sees every batch once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

import regista.api as api
from backend.acts.outputs import StepOutputs
from backend.checkpoint import Saved, find
from planner.ir.errors import InvalidProgram
from planner.ir.files import load_plan
from planner.ir.plan import Plan
from regista.data import loader
from regista.evaluation import evaluator
from regista.training.batches import Batches
from regista.training.job import TrainJob
from regista.training.metrics import Measured, check_metrics

__all__ = ["Evaluation", "evaluation_plan", "measured_names"]

_CARRIED = ("stages", "mesh", "micro_batches", "cuts", "balance", "strict", "method", "seconds")
"""Planning options of a training that an evaluation has, too; beside pins."""


def measured_names(job: TrainJob) -> tuple[str, ...]:
    """What an evaluation of the job measures, in the table's order; nothing without data."""
    if job.eval_data is None:
        return ()
    return ("loss", *(check_metrics(job.metrics) if isinstance(job.metrics, Mapping) else job.metrics))


def evaluation_plan(job: TrainJob, path: Path, *, resume: bool) -> Plan:
    """The Plan at ``path``, or a new one that is not saved yet.

    Raises:
        RegistaError: see regista.plan and load_plan.
    """
    if resume and path.exists():
        return load_plan(str(path))
    options: dict[str, Any] = {name: job.plan[name] for name in _CARRIED if name in job.plan}
    pins: Any = job.plan.get("pins", ())
    options["pins"] = [pin for pin in pins if ":" not in pin or pin.startswith("out:")]  # an evaluation has no optimizer state
    return api.plan(job.program, job.cluster, mode="eval", outputs=bool(check_metrics(job.metrics)), **options)


class Evaluation:
    """Measures checkpoints of one job; the workers wait between two evaluations, and end with ``close``.

    Raises:
        RegistaError: see regista.evaluator.
    """

    def __init__(self, job: TrainJob, batches: Batches, plan: Plan, timeout_s: float) -> None:
        self._job, self._batches, self._plan = job, batches, plan
        self._measured, self._failures = Measured(job.metrics), list[InvalidProgram]()
        metrics = {"all": self._measure} if check_metrics(job.metrics) else None
        self._workers = evaluator(plan, job.program, metrics=metrics, timeout_s=timeout_s)

    def measure(self, checkpoints: Path) -> dict[str, float]:
        """Name -> value, of the newest checkpoint.

        Raises:
            InvalidFile: the checkpoint is damaged.   InvalidProgram: a metric cannot be computed.   WorkerFailed: a process died, hung or raised.
        """
        self._measured = Measured(self._job.metrics)
        evaluation = self._workers.evaluate(Saved(str(find(checkpoints))), self._all_batches(), ema=self._job.eval_ema)
        if self._failures:
            raise self._failures[0]
        self._measured.losses.extend(evaluation.losses)
        return self._measured.values()

    def close(self) -> None:
        """End the workers."""
        self._workers.close()

    def _all_batches(self) -> Iterator[object]:
        feed, program = self._batches.feed, self._job.program
        assert feed is not None
        batch_of = feed if callable(feed) else loader(self._plan, feed)
        for number in range(self._batches.per_epoch or 1):
            yield program.form.entries(batch_of(number))

    def _measure(self, outputs: StepOutputs, batch: tuple[Tensor, ...]) -> float:
        """One batch; its sums and counts are kept here, where batches weigh by what they count."""
        output = outputs["output"] if tuple(outputs) == ("output",) else outputs
        try:
            self._measured.add_output(output, batch[len(batch) - self._job.program.num_targets :])
        except InvalidProgram as error:
            self._failures.append(error)
        return 0.0
