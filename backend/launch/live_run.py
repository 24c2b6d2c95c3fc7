"""The run behind a Session: its folder, its threads, and the channels to its workers.

runner thread      starts the workers and waits for their end
accept thread      takes the workers' connections
channel threads    one per worker: losses, answers to requests
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from backend.comm.authentic import new_key
from backend.comm.channel import Channel, Message, accept, listen
from backend.data.loader import Loader
from backend.initial.values import Values
from backend.launch.attempts import run_workers
from backend.launch.processes import WORKER
from backend.launch.workers import WorkerGroup
from backend.run_folder.files import Options, prepare
from planner.ir.errors import InvalidProgram, RegistaError, WorkerFailed
from planner.ir.plan import Plan

__all__ = ["LiveRun"]


class LiveRun:
    """Workers that do as many steps as they are allowed to; it is made once all are ready.

    losses: step -> loss, of those that are done.   failure: why the run broke.   over: no further step is taken.
    num_outputs: step -> acts that have handed over outputs of it.
    """

    def __init__(
        self, plan: Plan, state: Mapping[str, Tensor] | Values, data: Loader | None, options: Options, workdir: str | Path | None
    ) -> None:
        self.losses: dict[int, float] = {}
        self.num_outputs: dict[int, int] = {}
        self.failure: BaseException | None = None
        self.over = False
        self._plan, self._options = plan, options
        self._key = new_key()
        self._changed = threading.Condition()
        self._channels: dict[int, Channel] = {}
        self._num_requests = 0
        self._num_answers: dict[int, int] = {}
        self._group: WorkerGroup | None = None
        self.folder = Path(tempfile.mkdtemp(prefix=f"regista-{options.run_id}-", dir=workdir))
        try:
            prepare(self.folder, plan, state, data if data is not None else lambda step: (), options)
            self._listener = listen(options.run_id, plan.num_ranks)
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        self._runner = threading.Thread(target=self._run, daemon=True, name="session: run")
        self._runner.start()
        threading.Thread(target=self._accept, daemon=True, name="session: accept").start()
        try:
            self.wait_until(lambda: len(self._channels) == plan.num_ranks)
        except BaseException:
            self.end()
            raise

    def has_loss(self, step: int) -> bool:
        with self._changed:
            return step in self.losses

    def wait_until(self, ready: Callable[[], bool], timeout_s: float | None = None) -> None:
        """Wait until ``ready()``.

        Raises:
            WorkerFailed: the run broke.   InvalidProgram: the session is closed.   TimeoutError: it took longer than timeout_s.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: ready() or self.failure is not None or self.over, timeout_s):
                raise TimeoutError(f"nothing within {timeout_s:g} s")
            if ready():
                return
            if isinstance(self.failure, RegistaError):
                raise WorkerFailed(str(self.failure)) from self.failure
            if self.failure is not None:
                raise self.failure
            raise InvalidProgram("this session is closed; open another one")

    def allow(self, steps: int, *, final: bool) -> None:
        """Let the workers do ``steps`` steps in all.   final: no more will be allowed, so they end."""
        self._send_all(message="allow", steps=steps, final=final)

    def request(self, **message: Any) -> int:
        """Send a request to all workers and wait until each has answered; returns the request's number."""
        number = self._num_requests
        self._num_requests += 1
        self._send_all(number=number, **message)
        self.wait_until(lambda: self._num_answers.get(number, 0) == self._plan.num_ranks)
        return number

    def join(self) -> None:
        """Wait until the workers have ended."""
        self._runner.join()

    def end(self) -> None:
        """End the workers and remove the folder, whatever happened before."""
        self.over = True
        self._listener.close()
        if self._group is not None:
            self._group.kill()
        self._runner.join()
        for channel in self._channels.values():
            channel.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _send_all(self, **message: Any) -> None:
        try:
            for channel in self._channels.values():
                channel.send(**message)
        except OSError:
            self.wait_until(lambda: False)  # a worker is gone; the runner thread learns why

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            run_workers(self.folder, WORKER, self._plan.num_ranks, self._options, on_start=self._started, key=self._key)
        except BaseException as error:
            failure = error
        with self._changed:
            self.failure = failure if self.failure is None else self.failure
            self.over = True
            self._changed.notify_all()

    def _started(self, group: WorkerGroup) -> None:
        self._group = group
        if self.over:
            group.kill()  # the session was ended before its workers had begun

    def _accept(self) -> None:
        for _ in range(self._plan.num_ranks):
            try:
                channel = accept(self._listener, self._key)
            except OSError:
                return  # the session ended first
            channel.start_receiving(partial(self._handle, channel))

    def _handle(self, channel: Channel, message: Message) -> None:
        with self._changed:
            match message["message"]:
                case "ready":
                    self._channels[message["rank"]] = channel
                case "loss":
                    self.losses[message["step"]] = message["loss"]
                    (self.folder / f"batch{message['step']}.pt").unlink(missing_ok=True)
                case "output":
                    self.num_outputs[message["step"]] = self.num_outputs.get(message["step"], 0) + 1
                case "done":
                    self._num_answers[message["number"]] = self._num_answers.get(message["number"], 0) + 1
            self._changed.notify_all()
