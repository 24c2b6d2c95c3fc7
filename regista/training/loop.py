"""The training itself: runs of the Plan from one evaluation to the next, each beginning at the checkpoint that the last one left.

    plan once -> [run to the next evaluation -> checkpoint -> evaluate -> rows]* -> the table and the picture

What a run computes does not depend on where it began (SEMANTICS 6.1 and the checkpoints' laws), so a training that is cut into runs, or interrupted
and resumed, is bit for bit the training in one run.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import regista.api as api
from backend.monitor import Heartbeat
from backend.monitor.interrupts import Interrupts, noticing_interrupts
from backend.ops.inductor import Kernels
from planner.ir.errors import Mismatch
from planner.ir.files import load_plan
from planner.ir.plan import Plan
from planner.ir.text import content_id
from regista.performers import chosen_kernels
from regista.training.batches import Batches
from regista.training.evaluation import Evaluation, evaluation_plan, measured_names
from regista.training.folder import TrainFolder
from regista.training.history import History, load_history
from regista.training.job import TrainJob, epoch_of

__all__ = ["Screen", "Trained", "train"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What a training leaves.   history: its table.   first_step: steps that were done before this call.   plan: what was performed."""

    plan: Plan
    history: History
    first_step: int
    folder: Path

    @property
    def last_evaluation(self) -> dict[str, float] | None:
        """What the evaluation after the last step measured; None: there is none."""
        return self.history.evaluation(max(self.history.rows))


class Screen(Protocol):
    """Whoever watches: told the phase, each step, what ranks report, and each evaluation."""

    def __call__(self, step: int, loss: float) -> None: ...

    def on_heartbeat(self, heartbeat: Heartbeat) -> None: ...

    def on_evaluation(self, step: int, values: dict[str, float]) -> None: ...


Watching = Callable[[Plan, int], AbstractContextManager[Screen | None]]


def train(
    job: TrainJob,
    folder: str | Path,
    *,
    resume: bool = False,
    timeout_s: float = 30.0,
    max_restarts: int = 0,
    kernels: Kernels | str = Kernels.EAGER,
    watching: Watching = lambda plan, steps: nullcontext(),
) -> Trained:
    """Train a job; see the module's text and regista.training.folder.

    Args:
        folder: where everything goes.
        resume: go on where the newest checkpoint in ``folder`` ends; the same job, though it may last longer or evaluate at other steps.
        timeout_s: as in regista.run.
        max_restarts: after a fault each run starts again from the newest checkpoint, so often at most; Ctrl-C then saves nothing more.
        kernels: how the training's fragments are performed, as in regista.run; evaluations perform theirs op by op.
        watching: Plan, number of steps -> who watches while the training goes on.

    Raises:
        InvalidFile: the folder holds a training and ``resume`` is off, or another one goes on there; a file is damaged.
        InvalidProgram, Unsupported: what the job asks for and cannot be.   Mismatch: the folder's Plan is of another step.
        WorkerFailed: a process died, hung or raised.   KeyboardInterrupt: Ctrl-C; all rows until then are in the table, and the state is saved
            unless there was a second one.
    """
    kernels = chosen_kernels(kernels, {"cpu"})
    places = TrainFolder(Path(folder))
    if not resume:
        places.check_new()
    places.check_free()
    batches, eval_batches = job.training(), job.evaluation()
    steps = job.num_steps(batches)
    for step in range(steps):
        job.program.step_numbers(step)  # a schedule without a rate is refused before anything is written
    names = measured_names(job)
    done = (places.saved_steps or 0) if resume else 0
    history = load_history(places.metrics, names).up_to(done) if done else History(names)
    for feed in [batches.feed] if eval_batches is None else [batches.feed, eval_batches.feed]:
        if callable(feed):
            feed(0)  # so is data of another form
    plan = _plan(job, places, resume=resume)
    training = _Training(job, plan, places, batches, history, steps, timeout_s, max_restarts, kernels)
    eval_plan = None if eval_batches is None else evaluation_plan(job, places.eval_plan, resume=resume)
    with ExitStack() as stack:
        training.interrupts = stack.enter_context(noticing_interrupts())
        stack.enter_context(places.held())
        if not resume:
            places.check_new()  # since it was looked at, another training may have begun and ended
        if eval_batches is not None and eval_plan is not None:
            training.evaluation = stack.enter_context(closing(Evaluation(job, eval_batches, eval_plan, timeout_s)))
            places.save(eval_plan, places.eval_plan)
        places.save(plan, places.plan)
        training.go_on(done, stack.enter_context(watching(plan, steps)))
    return Trained(plan=plan, history=training.history, first_step=done, folder=places.path)


def _plan(job: TrainJob, places: TrainFolder, *, resume: bool) -> Plan:
    """The folder's Plan, or a new one."""
    if resume and places.plan.exists():
        plan = load_plan(str(places.plan))
        given = content_id(job.program.graph(plan.micro_batches))
        if plan.options.get("graph") != given:
            raise Mismatch(
                f"{places.plan} was made of graph {plan.options.get('graph')}, the job's step is graph {given} now: its ops, its batch or the "
                f"optimizer's numbers have changed; give another folder"
            )
        return plan
    arguments: dict[str, Any] = dict(job.plan)
    return api.plan(job.program, job.cluster, **arguments)


@dataclass
class _Training:
    job: TrainJob
    plan: Plan
    places: TrainFolder
    batches: Batches
    history: History
    steps: int
    timeout_s: float
    max_restarts: int
    kernels: Kernels
    evaluation: Evaluation | None = None
    interrupts: Interrupts = field(default_factory=Interrupts)

    def go_on(self, done: int, screen: Screen | None) -> None:
        """From ``done`` steps to the end."""
        ends = self.job.evaluated_at(self.steps)
        while True:
            self.interrupts.check()
            if self.evaluation is not None and done in ends and self.history.evaluation(done) is None:
                values = self.evaluation.measure(self.places.checkpoints)
                self.history.add_evaluation(done, values)
                self.history.save(self.places.metrics)
                if screen is not None:
                    screen.on_evaluation(done, values)
            if done >= self.steps:
                return
            done = self._run(done, next(end for end in ends if end > done), screen)

    def _run(self, done: int, end: int, screen: Screen | None) -> int:
        recorder = _Recorder(self, screen)
        try:
            outcome = api.run(
                self.plan,
                self.job.program,
                steps=end,
                data=self.batches.feed,
                checkpoint=str(self.places.checkpoints),
                save_every=self.job.save_every,
                keep=self.job.keep,
                resume=True,
                timeout_s=self.timeout_s,
                on_progress=recorder,
                max_restarts=self.max_restarts,
                kernels=self.kernels,
                save_when_interrupted=True,
                keep_states=False,
                trace_steps="last:1",  # nobody reads the trace, and memory stays flat
            )
        except BaseException:
            if self.history.rows:
                self.history.save(self.places.metrics)
            raise
        for number, loss in enumerate(outcome.losses, start=outcome.first_step):
            self.add_step(number, loss)
        self.history.save(self.places.metrics)
        return end

    def add_step(self, step: int, loss: float) -> None:
        """Step number ``step``, from 0, is done."""
        rates = self.job.program.step_numbers(step)
        rate = next(iter(rates.values())) if rates else self.job.program.groups[0].rule.lr
        self.history.add_step(step + 1, epoch=epoch_of(step + 1, self.batches), learning_rate=rate, train_loss=loss)


@dataclass
class _Recorder:
    """Rows of steps as they are reported, so that an interrupted run leaves them."""

    training: _Training
    screen: Screen | None

    def __call__(self, step: int, loss: float) -> None:
        self.training.add_step(step, loss)
        if self.screen is not None:
            self.screen(step, loss)

    def on_heartbeat(self, heartbeat: Heartbeat) -> None:
        if self.screen is not None:
            self.screen.on_heartbeat(heartbeat)
