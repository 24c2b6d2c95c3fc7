"""Evaluation between training steps: the loss, and values computed from outputs, of a state on batches that it was not trained on.

    plan = regista.plan(program, "local:2", mode="eval", outputs=True)
    with regista.evaluator(plan, program, metrics={"accuracy": accuracy}) as evaluator:
        ...                                                        train, with another Plan of the same program
        evaluation = evaluator.evaluate(outcome.states, batches)
        print(evaluation.loss, evaluation.metrics["accuracy"])

The state may come from a Plan of any layout and number of devices: it is cut anew, as when a run is resumed under another Plan.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from types import TracebackType

from torch import Tensor

import backend
from backend import inprocess
from backend.acts.outputs import StepOutputs
from backend.initial import Values
from backend.launch import Session
from backend.launch.session import Step
from planner.frontend import Program
from planner.ir.errors import InvalidProgram, Unsupported
from planner.ir.graph import Mode
from planner.ir.plan import Plan
from regista.performers import Performer, chosen
from regista.programs import check_program, program_for
from regista.starting import beginning, typed_state

__all__ = ["Evaluation", "Evaluator", "Metric", "evaluator"]

Metric = Callable[[StepOutputs, tuple[Tensor, ...]], "float | Tensor"]
"""Called as metric(outputs, batch): the outputs by name, and the tensors of one global batch, its targets last.  Returns one number."""

_AHEAD = 2
_CHUNK = 16
"""Batches whose outputs are held at once in this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """losses: per batch; none where the plan has no loss.   metrics: means over the batches, which are of one size.   duration_s: of all."""

    losses: tuple[float, ...]
    metrics: Mapping[str, float]
    duration_s: float

    @property
    def loss(self) -> float:
        """The mean over the batches.  Raises Unsupported: the module returns no loss."""
        if not self.losses:
            raise Unsupported("this evaluation has no loss, since the module returns none; ask for its metrics")
        return sum(self.losses) / len(self.losses)


def evaluator(
    plan: Plan,
    program: Program | None = None,
    *,
    performer: Performer | str = Performer.GLOO,
    metrics: Mapping[str, Metric] | None = None,
    timeout_s: float = 30.0,
) -> Evaluator:
    """What evaluates one state after another by a Plan of mode ``eval``.

    Args:
        program: that of the training; None: the program that the Plan names.
        performer: gloo: worker processes are started at the first evaluation and wait between evaluations; else in this process.
        metrics: name -> function; they need a Plan with outputs.
        timeout_s: give up when nothing happens for so long.

    Raises:
        Unsupported: the Plan is no evaluation, or has no outputs for the metrics.   Mismatch: it was made for another program.
    """
    if plan.mode is not Mode.EVAL:
        raise Unsupported(f"plan {plan.plan_id} is a training step; an evaluation needs a plan of mode eval")
    if metrics and not plan.outputs:
        raise Unsupported(f"metrics {', '.join(metrics)} are computed from outputs, and the plan has none; plan with outputs=True")
    return Evaluator(plan, program_for(plan, program), chosen(Performer, performer, "performer"), dict(metrics or {}), timeout_s)


class Evaluator:
    """See ``evaluator``.  A context manager: leaving it ends the workers."""

    def __init__(self, plan: Plan, program: Program, performer: Performer, metrics: Mapping[str, Metric], timeout_s: float) -> None:
        self.plan, self._program, self._performer, self._metrics, self._timeout_s = plan, program, performer, metrics, timeout_s
        self._session: Session | None = None

    def evaluate(self, state: Mapping[str, Tensor] | Values | None, batches: Iterable[object], *, ema: bool = False) -> Evaluation:
        """Loss and metrics of a state.

        Args:
            state: values by name, of any Plan of the program: Outcome.states, PausedRun.read(), backend.checkpoint.Saved; what the Plan has no
                state for (optimizer state) is left out.   None: the program's own.
            batches: global batches in the form of the example inputs, each of as many samples.
            ema: the moving averages of the parameters instead of the parameters.

        Raises:
            Mismatch: the state is of another program.   InvalidProgram: there is no batch, one has another form, or a metric raised.
            Unsupported: there are no moving averages.   WorkerFailed: a process died, hung or raised.
        """
        began_s = time.monotonic()
        values = beginning(self.plan, self._program, state=state, ema=ema).values
        check_program(self.plan, self._program, typed_state(self.plan, values))
        measured: dict[str, list[float]] = {name: [] for name in self._metrics}
        if self._performer is Performer.GLOO:
            losses = self._in_processes(values, batches, measured)
        else:
            losses = self._in_process(values, batches, measured)
        if not losses:
            raise InvalidProgram("an evaluation needs at least one batch")
        means = {name: sum(numbers) / len(numbers) for name, numbers in measured.items()}
        return Evaluation(losses=tuple(losses) if self.plan.has_loss else (), metrics=means, duration_s=time.monotonic() - began_s)

    def _in_processes(
        self, values: Mapping[str, Tensor] | Values, batches: Iterable[object], measured: dict[str, list[float]]
    ) -> list[float]:
        if self._session is None:
            self._session = Session(self.plan, values, ahead=_AHEAD, timeout_s=self._timeout_s, allow_nan=True)
        else:
            with self._session.between_steps() as paused:
                paused.load(values)
        losses: list[float] = []
        waiting: deque[tuple[tuple[Tensor, ...], Step]] = deque()

        def take() -> None:
            batch, step = waiting.popleft()
            losses.append(step.loss())
            if self.plan.outputs:
                self._measure(step.outputs(), batch, measured)

        for number, given in enumerate(batches):
            batch = self._program.tensors(given, f"batch {number}")
            waiting.append((batch, self._session.step(batch)))
            if len(waiting) == _AHEAD:
                take()
        while waiting:
            take()
        return losses

    def _in_process(
        self, values: Mapping[str, Tensor] | Values, batches: Iterable[object], measured: dict[str, list[float]]
    ) -> list[float]:
        losses: list[float] = []
        perform = (
            backend.perform if self._performer is Performer.REFERENCE else partial(inprocess.run, timeout_s=self._timeout_s, allow_nan=True)
        )
        whole = (self._program.tensors(given, f"batch {number}") for number, given in enumerate(batches))
        while chunk := list(islice(whole, _CHUNK)):
            outcome = perform(self.plan, values, chunk.__getitem__, len(chunk))
            losses += outcome.losses or [0.0] * len(chunk)
            for outputs, batch in zip(outcome.outputs, chunk, strict=False):
                self._measure(outputs, batch, measured)
        return losses

    def _measure(self, outputs: StepOutputs, batch: tuple[Tensor, ...], measured: dict[str, list[float]]) -> None:
        for name, metric in self._metrics.items():
            try:
                measured[name].append(float(metric(outputs, batch)))
            except Exception as error:
                raise InvalidProgram(
                    f"metric {name} raised {type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}; "
                    "it is called as metric(outputs by name, batch) and returns one number"
                ) from error

    def close(self) -> None:
        """End the workers."""
        if self._session is not None:
            session, self._session = self._session, None
            session.end()

    def __enter__(self) -> Evaluator:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()
