"""Asynchronous control: the user's Python and the Plan run side by side.

    with Session(plan, state) as session:
        handles = [session.step(batch) for batch in batches]       returns at once; waits only while ``ahead`` steps are unfinished
        print(handles[0].loss())                                   waits for just that
        with session.between_steps() as paused:                    nothing runs in here: the critical section
            paused.write({"wte.weight": paused.read(["wte.weight"])["wte.weight"].half().float()})
    session.outcome                                                trace, losses, final states

The steps' boundary is no barrier: the next step's loading and forward pass begin while the last one is updated, as in ``run``.
"""

from __future__ import annotations

import json
import shutil
import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import isfinite
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor

from backend.acts.act import check_batch
from backend.acts.outputs import StepOutputs, num_handovers
from backend.acts.step_inputs import StepNumbers, check_numbers, no_numbers
from backend.checkpoint.handover import compact, hand_over
from backend.data.loader import Loader
from backend.initial.values import Values
from backend.launch.live_run import LiveRun
from backend.launch.processes import warn_of_cores
from backend.memory.blocks import check_state
from backend.run_folder.files import Options
from backend.run_folder.merge import merge
from backend.run_folder.outcome import Outcome, gather, parts_of_ranks, state_locations
from backend.run_folder.outputs import take_outputs
from planner.ir.actors.verify import verify
from planner.ir.errors import InvalidPlan, InvalidProgram
from planner.ir.plan import Plan
from planner.ir.text import save_text

__all__ = ["PausedRun", "Session", "Step"]


class Step:
    """A step that was asked for.  ``number`` counts from 0."""

    def __init__(self, session: Session, number: int) -> None:
        self._session, self.number = session, number

    @property
    def done(self) -> bool:
        """Whether its loss has arrived."""
        return self._session._run.has_loss(self.number)

    def loss(self, timeout_s: float | None = None) -> float:
        """Wait for this step's loss, and for nothing else.

        Raises:
            WorkerFailed: the run broke before.   TimeoutError: it took longer than timeout_s.
        """
        return self._session._loss(self.number, timeout_s)

    def outputs(self, timeout_s: float | None = None) -> StepOutputs:
        """Wait for this step's outputs, and for nothing else; they can be had once.

        Raises:
            InvalidProgram: the Plan has no outputs, or they were had before.   WorkerFailed, TimeoutError: as loss().
        """
        return self._session._outputs(self.number, timeout_s)


class PausedRun:
    """The run between two steps: no act is running, and none starts before the critical section ends."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def read(self, names: Collection[str] | None = None) -> dict[str, Tensor]:
        """Logical states by name (parameters, buffers, optimizer state); None: all.

        Raises:
            InvalidPlan: the Plan has no state of that name.
        """
        return self._session._read(names)

    def load(self, state: Mapping[str, Tensor] | Values) -> None:
        """Replace the values of all states.  Each rank reads its own parts alone, so no process needs to hold a whole state.

        Raises:
            InvalidPlan: a state of the Plan is missing there, or has another shape or dtype.
        """
        self._session._load(state)

    def write(self, values: Mapping[str, Tensor]) -> None:
        """Give states new values, on every rank that holds a part.

        Raises:
            InvalidPlan: an unknown name, another shape or dtype.
        """
        self._session._write(values)


class Session:
    """Workers that train as far as they are asked to.

    Args:
        state: logical tensors by the names of plan.states.
        data: a reader that serves the Plan (backend.data.Loader): workers read, and ``step()`` takes no batch.
        ahead: how many unfinished steps there may be; ``step`` waits for the oldest when there are so many.
        gradients: keep the last step's mean gradients for ``outcome``.
        timeout_s: when steps are waiting and nothing moves for so long, the run is given up.
        allow_nan: go on when a loss is no finite number.
        workdir: where the run's temporary folder is made.
        numbers: step -> what its STEP_INPUT tasks write (learning rates), of Plans that have such.
        fed: a batch as the caller has it -> as the Plan takes it (padded).

    Raises:
        As backend.run.
    """

    def __init__(
        self,
        plan: Plan,
        state: Mapping[str, Tensor] | Values,
        *,
        data: Loader | None = None,
        ahead: int = 2,
        gradients: bool = False,
        timeout_s: float = 30.0,
        allow_nan: bool = False,
        workdir: str | Path | None = None,
        numbers: StepNumbers = no_numbers,
        fed: Callable[[Sequence[Tensor]], Sequence[Tensor]] = tuple,
    ) -> None:
        if ahead < 1:
            raise InvalidProgram(f"ahead = {ahead}; a session needs room for at least 1 step")
        verify(plan)
        check_state(plan, state)
        warn_of_cores(plan)
        self.plan = plan
        self.outcome: Outcome | None = None
        self._ahead = ahead
        self._options = Options(
            run_id=uuid.uuid4().hex[:12], steps=0, gradients=gradients, timeout_s=timeout_s, live=True, allow_nan=allow_nan
        )
        self._section = threading.RLock()
        self._num_asked = 0
        self._num_handovers, self._outputs_taken = num_handovers(plan), set[int]()
        self._data = data
        self._numbers, self._fed = numbers, fed
        self._run = LiveRun(plan, state, data, self._options, workdir)

    # What the user calls.

    def step(self, batch: Sequence[Tensor] | None = None, *, lr: float | Sequence[float] | None = None) -> Step:
        """Ask for one more step on this global batch (in the order of plan.batch_inputs; None: the session's own data); returns at once.

        The batch is copied, so its tensors may be written to afterwards.

        Args:
            lr: the learning rate of this step instead of the schedule's, of all parameter groups or one each.

        Raises:
            InvalidProgram: ``lr`` is no rate, or the plan has no schedule; the batch is not what the Plan was made for; the session is closed.
            WorkerFailed: the run broke.
        """
        if (batch is None) != (self._data is not None):
            raise InvalidProgram("give a batch to every step, or data to the session; one of the two")
        if batch is not None:
            batch = self._fed(batch)
            check_batch(self.plan, lambda step: tuple(batch))
        with self._section:
            if self._run.over:
                raise InvalidProgram("this session is closed; open another one")
            number = self._num_asked
            numbers = self._numbers_of(number, lr)
            check_numbers(self.plan, lambda step: numbers, range(number, number + 1))
            self._run.wait_until(lambda: number - len(self._run.losses) < self._ahead)
            if self._data is not None:
                self._data.check_steps(number + 1)
            else:
                assert batch is not None
                torch.save([compact(tensor) for tensor in batch], self._run.folder / f"batch{number}.pt")
            save_text(self._run.folder / f"numbers{number}.json", json.dumps(numbers))
            self._num_asked += 1
            self._run.allow(self._num_asked, final=False)
        return Step(self, number)

    def _numbers_of(self, number: int, lr: float | Sequence[float] | None) -> dict[str, float]:
        numbers = dict(self._numbers(number))
        if lr is None:
            return numbers
        names = [name for name in numbers if name.startswith("lr.")]
        rates = [float(rate) for rate in lr] if isinstance(lr, Sequence) else [float(lr)] * len(names)
        if not names or len(rates) != len(names) or not all(isfinite(rate) and rate >= 0 for rate in rates):
            raise InvalidProgram(
                f"step {number} was given lr={lr}, and the plan takes {len(names)} learning rates from outside, finite numbers of at least 0; "
                "plan a Program with lr_schedule=... to change rates, and give one rate or as many as there are groups"
            )
        return numbers | dict(zip(names, rates, strict=True))

    @contextmanager
    def between_steps(self) -> Iterator[PausedRun]:
        """A critical section: it begins when all steps asked for are done, and another thread's ``step`` waits until it ends."""
        with self._section:
            self._run.request(message="pause")
            yield PausedRun(self)

    def close(self) -> Outcome:
        """Do what was asked for, end the workers, and return what the run leaves (also ``outcome``).

        Raises:
            WorkerFailed: the run broke.   InvalidProgram: no step was asked for.
        """
        with self._section:
            if self.outcome is not None:
                return self.outcome
            if self._num_asked == 0:
                self._run.end()
                raise InvalidProgram("this session is closed and no step was asked for; there is nothing to return")
            try:
                if not self._run.over:
                    self._run.over = True
                    self._run.allow(self._num_asked, final=True)
                    self._run.join()
                if self._run.failure is not None:
                    raise self._run.failure
                self.outcome = merge(self.plan, self._run.folder, replace(self._options, steps=self._num_asked)).outcome
            finally:
                self._run.end()
        return self.outcome

    def end(self) -> None:
        """End the workers at once, without a result."""
        self._run.end()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if kind is None and self._num_asked:
            self.close()
        else:
            self._run.end()

    def _loss(self, number: int, timeout_s: float | None) -> float:
        self._run.wait_until(lambda: number in self._run.losses, timeout_s)
        return self._run.losses[number]

    def _outputs(self, number: int, timeout_s: float | None) -> StepOutputs:
        if not self.plan.outputs:
            raise InvalidProgram("the plan has no outputs; plan it with mode='eval' and outputs=True")
        if number in self._outputs_taken:
            raise InvalidProgram(f"the outputs of step {number} were had before, and are not kept; keep them yourself")
        self._run.wait_until(lambda: self._run.num_outputs.get(number, 0) == self._num_handovers, timeout_s)
        self._outputs_taken.add(number)
        return take_outputs(self._run.folder, self.plan, number)

    # Critical sections.

    def _read(self, names: Collection[str] | None) -> dict[str, Tensor]:
        locations = state_locations(self.plan)
        wanted = list(locations) if names is None else list(names)
        self._check_names(wanted, locations)
        number = self._run.request(message="read", names=wanted)
        parts: dict[int, dict[tuple[str, int], Tensor]] = {}
        for rank in range(self.plan.num_ranks):
            path = self._run.folder / f"read{number}.{rank}.pt"
            parts[rank] = torch.load(path, weights_only=True)
            path.unlink()
        return gather(self.plan, {name: locations[name] for name in wanted}, parts_of_ranks(parts))

    def _write(self, values: Mapping[str, Tensor]) -> None:
        given = [entry for entry in self.plan.states if entry.copy_of is None]
        types = {entry.name: self.plan.regst[entry.regst].tensors[entry.index] for entry in given}
        self._check_names(values, types)
        for name, value in values.items():
            wanted = types[name]
            if tuple(value.shape) != wanted.shape or str(value.dtype) != f"torch.{wanted.dtype.value}":
                raise InvalidPlan(
                    f"state {name} is {wanted.dtype.value}{list(wanted.shape)}, not {str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
                )
        path = self._run.folder / "write.pt"
        torch.save({name: compact(value) for name, value in values.items()}, path)
        self._run.request(message="write", file=path.name)
        path.unlink()

    def _load(self, state: Mapping[str, Tensor] | Values) -> None:
        check_state(self.plan, state)
        folder = self._run.folder / "load"
        folder.mkdir()
        hand_over(folder, state, {entry.given_as for entry in self.plan.states})
        self._run.request(message="load", folder=folder.name)
        shutil.rmtree(folder)

    def _check_names(self, names: Collection[str], types: Mapping[str, object]) -> None:
        unknown = [name for name in names if name not in types]
        if unknown:
            raise InvalidPlan(f"plan {self.plan.plan_id} has no state {unknown[0]}; it has {', '.join(list(types)[:8])}, ...")
