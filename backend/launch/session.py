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

import shutil
import tempfile
import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from backend.checkpoint.handover import compact
from backend.comm.channel import Channel, Message, listen
from backend.data.loader import Loader
from backend.initial.values import Values
from backend.launch.processes import WORKER, check_batch, run_workers, warn_of_cores
from backend.launch.workers import WorkerGroup
from backend.memory.blocks import check_state
from backend.run_folder.files import Options, prepare
from backend.run_folder.merge import merge
from backend.run_folder.outcome import Outcome, gather, state_locations, unpacked
from planner.ir.actors.verify import verify
from planner.ir.errors import InvalidPlan, InvalidProgram, RegistaError, WorkerFailed
from planner.ir.plan import Plan

__all__ = ["PausedRun", "Session", "Step"]


class Step:
    """A step that was asked for.  ``number`` counts from 0."""

    def __init__(self, session: Session, number: int) -> None:
        self._session, self.number = session, number

    @property
    def done(self) -> bool:
        """Its loss has arrived."""
        return self._session._has_loss(self.number)

    def loss(self, timeout_s: float | None = None) -> float:
        """Wait for this step's loss, and for nothing else.

        Raises:
            WorkerFailed: the run broke before.   TimeoutError: it took longer than timeout_s.
        """
        return self._session._loss(self.number, timeout_s)


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
        workdir: where the run's temporary folder is made.

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
        workdir: str | Path | None = None,
    ) -> None:
        if ahead < 1:
            raise InvalidProgram(f"ahead = {ahead}; a session needs room for at least 1 step")
        verify(plan)
        check_state(plan, state)
        warn_of_cores(plan)
        self.plan = plan
        self.outcome: Outcome | None = None
        self._ahead = ahead
        self._options = Options(run_id=uuid.uuid4().hex[:12], steps=0, gradients=gradients, timeout_s=timeout_s, live=True)
        self._folder = Path(tempfile.mkdtemp(prefix=f"regista-{self._options.run_id}-", dir=workdir))
        self._changed = threading.Condition()
        self._section = threading.RLock()
        self._losses: dict[int, float] = {}
        self._channels: dict[int, Channel] = {}
        self._num_answers: dict[int, int] = {}
        self._num_asked = self._num_requests = 0
        self._failure: BaseException | None = None
        self._over = False
        self._group: WorkerGroup | None = None
        self._data = data
        prepare(self._folder, plan, state, data if data is not None else lambda step: (), self._options)
        self._listener = listen(self._options.run_id, plan.num_ranks)
        self._runner = threading.Thread(target=self._run, daemon=True, name="session: run")
        self._runner.start()
        threading.Thread(target=self._accept, daemon=True, name="session: accept").start()
        try:
            self._await(lambda: len(self._channels) == plan.num_ranks)
        except BaseException:
            self._end()
            raise

    # What the user calls.

    def step(self, batch: Sequence[Tensor] | None = None) -> Step:
        """Ask for one more step on this global batch (in the order of plan.batch_inputs; None: the session's own data); returns at once.

        The batch is copied, so its tensors may be written to afterwards.

        Raises:
            InvalidProgram: the batch is not what the Plan was made for, or the session is closed.   WorkerFailed: the run broke.
        """
        if (batch is None) != (self._data is not None):
            raise InvalidProgram("give a batch to every step, or data to the session; one of the two")
        if batch is not None:
            check_batch(self.plan, lambda step: tuple(batch))
        with self._section:
            if self._over:
                raise InvalidProgram("this session is closed; open another one")
            number = self._num_asked
            self._await(lambda: number - len(self._losses) < self._ahead)
            if self._data is not None:
                self._data.check_steps(number + 1)
            else:
                assert batch is not None
                torch.save([compact(tensor) for tensor in batch], self._folder / f"batch{number}.pt")
            self._num_asked += 1
            self._send_all(message="allow", steps=self._num_asked, final=False)
        return Step(self, number)

    @contextmanager
    def between_steps(self) -> Iterator[PausedRun]:
        """A critical section: waits until all steps asked for are done; other threads' ``step`` waits until it ends."""
        with self._section:
            self._request(message="pause")
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
                self._end()
                raise InvalidProgram("this session is closed and no step was asked for; there is nothing to return")
            try:
                if not self._over:
                    self._over = True
                    self._send_all(message="allow", steps=self._num_asked, final=True)
                    self._runner.join()
                if self._failure is not None:
                    raise self._failure
                self.outcome = merge(self.plan, self._folder, replace(self._options, steps=self._num_asked)).outcome
            finally:
                self._end()
        return self.outcome

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if kind is None and self._num_asked:
            self.close()
        else:
            self._end()

    # Steps.

    def _has_loss(self, number: int) -> bool:
        with self._changed:
            return number in self._losses

    def _loss(self, number: int, timeout_s: float | None) -> float:
        self._await(lambda: number in self._losses, timeout_s)
        return self._losses[number]

    # Critical sections.

    def _read(self, names: Collection[str] | None) -> dict[str, Tensor]:
        homes = state_locations(self.plan)
        wanted = list(homes) if names is None else list(names)
        self._check_names(wanted, homes)
        number = self._request(message="read", names=wanted)
        parts: dict[int, dict[str, Tensor]] = {}
        for rank in range(self.plan.num_ranks):
            path = self._folder / f"read{number}.{rank}.pt"
            parts[rank] = torch.load(path, weights_only=True)
            path.unlink()
        return gather(self.plan, {name: homes[name] for name in wanted}, unpacked(parts))

    def _write(self, values: Mapping[str, Tensor]) -> None:
        types = {entry.name: self.plan.regst[entry.regst].tensors[entry.index] for entry in self.plan.states}
        self._check_names(values, types)
        for name, value in values.items():
            wanted = types[name]
            if tuple(value.shape) != wanted.shape or str(value.dtype) != f"torch.{wanted.dtype.value}":
                raise InvalidPlan(
                    f"state {name} is {wanted.dtype.value}{list(wanted.shape)}, not {str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
                )
        path = self._folder / f"write{self._num_requests}.pt"
        torch.save({name: compact(value) for name, value in values.items()}, path)
        self._request(message="write", file=path.name)
        path.unlink()

    def _check_names(self, names: Collection[str], types: Mapping[str, object]) -> None:
        unknown = [name for name in names if name not in types]
        if unknown:
            raise InvalidPlan(f"plan {self.plan.plan_id} has no state {unknown[0]}; it has {', '.join(list(types)[:8])}, ...")

    # Threads.

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            run_workers(self._folder, WORKER, self.plan.num_ranks, self._options, on_start=self._started)
        except BaseException as error:
            failure = error
        with self._changed:
            self._failure = failure if self._failure is None else self._failure
            self._over = True
            self._changed.notify_all()

    def _started(self, group: WorkerGroup) -> None:
        self._group = group
        if self._over:
            group.kill()  # the session was ended before its workers had begun

    def _accept(self) -> None:
        for _ in range(self.plan.num_ranks):
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # the session ended first
            channel = Channel(connection)
            channel.start_receiving(partial(self._handle, channel))

    def _handle(self, channel: Channel, message: Message) -> None:
        with self._changed:
            match message["message"]:
                case "ready":
                    self._channels[message["rank"]] = channel
                case "loss":
                    self._losses[message["step"]] = message["loss"]
                    (self._folder / f"batch{message['step']}.pt").unlink(missing_ok=True)
                case "done":
                    self._num_answers[message["number"]] = self._num_answers.get(message["number"], 0) + 1
            self._changed.notify_all()

    def _send_all(self, **message: Any) -> None:
        try:
            for channel in self._channels.values():
                channel.send(**message)
        except OSError:
            self._await(lambda: False)  # a worker is gone; the runner thread learns why

    def _request(self, **message: Any) -> int:
        """Send a request to all workers and wait until each has answered; the request's number."""
        number = self._num_requests
        self._num_requests += 1
        self._send_all(number=number, **message)
        self._await(lambda: self._num_answers.get(number, 0) == self.plan.num_ranks)
        return number

    def _await(self, ready: Callable[[], bool], timeout_s: float | None = None) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: ready() or self._failure is not None or self._over, timeout_s):
                raise TimeoutError(f"nothing within {timeout_s:g} s")
            if ready():
                return
            if isinstance(self._failure, RegistaError):
                raise WorkerFailed(str(self._failure)) from self._failure
            if self._failure is not None:
                raise self._failure
            raise InvalidProgram("this session is closed; open another one")

    def _end(self) -> None:
        """Whatever happened: no worker and no file is left."""
        self._over = True
        self._listener.close()
        if self._group is not None:
            self._group.kill()
        self._runner.join()
        for channel in self._channels.values():
            channel.close()
        shutil.rmtree(self._folder, ignore_errors=True)
