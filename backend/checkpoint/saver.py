"""Saving while training goes on: one rank's side.

    SAVE act of step k (its stream's thread)     copy this rank's shares into staging memory; that is the act
    writer thread                                 files -> disk -> report to the store of the run
    writer thread of rank 0                       all reported? manifest -> disk, one rename, older ones removed

The next save waits until the last one is written.  Nothing here uses the collectives of the run.  Where acts need the core that writes, the
writer takes a small share of it, unless somebody waits for the save: the next one, the run's end, or who has interrupted the run.
"""

from __future__ import annotations

import json
import math
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from backend.checkpoint.folder import PreparedFile, commit, make_folder, remove_leftovers, write_part
from backend.checkpoint.manifest import Manifest, SavedFile
from backend.checkpoint.owner import Owner, lock, unlock
from backend.checkpoint.pace import SHARE, Pace
from backend.checkpoint.shares import Share, file_name, optimizer_groups, saved_states, shares
from backend.checkpoint.stopping import Stop
from planner.ir.errors import RegistaError, WorkerFailed
from planner.ir.plan import Plan, Task, TaskKind
from planner.lower.data_actors.saving import plain

__all__ = ["Saver", "SaveRequest"]

_LOOK_S, _LOOK_IN_HURRY_S = 0.1, 0.02
"""Rank 0 asks so often whether all have written, and where somebody waits for it; a waiting call would hold the store's connection."""
_NICE = 19
_PROGRESS_S = 1.0
"""A rank that is writing reports its bytes as often."""


class Store(Protocol):
    """What is used of torch's Store."""

    def set(self, key: str, value: str) -> None: ...

    def get(self, key: str) -> bytes: ...

    def check(self, keys: list[str]) -> bool: ...

    def delete_key(self, key: str) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveRequest:
    """Where and how often a run saves.

    every: save when so many steps are done, and again (0: only at the end).   keep: so many newest stay (0: all).
    when_interrupted: Ctrl-C lets the run save before it ends (backend.checkpoint.stopping).
    """

    folder: str
    every: int = 0
    keep: int = 0
    when_interrupted: bool = False


def _yield_the_core() -> None:
    """Let this thread run when the acts of its rank, which has perhaps one core, leave room: writing is work of a core, too."""
    if sys.platform == "linux":  # where a thread has a priority of its own
        own = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, own, min(19, os.getpriority(os.PRIO_PROCESS, own) + _NICE))


class Saver:
    """One rank's part in saving, as drawn above.  The Plan has SAVE tasks (planner.lower.data_actors.saving).

    Args:
        first_step: steps that were done before this run; act n of a SAVE task sees the state after first_step + n steps.
        run_id: names the folder of a save under way; the same on all ranks.
        numbers: step -> the numbers that it was done with, by the value that stands for them in update ops.
        timeout_s: a rank that reports nothing for so long is given up, and with it the save.
        stop: says when an interrupted run saves.   owner: what other runs are told of who saves here.

    Raises:
        InvalidFile: rank 0 cannot make the folder, or another run is saving there.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        request: SaveRequest,
        store: Store,
        *,
        run_id: str,
        first_step: int = 0,
        timeout_s: float = 30.0,
        numbers: Callable[[int], Mapping[str, float]] = lambda step: {},
        stop: Stop | None = None,
        owner: Owner | None = None,
    ) -> None:
        self._plan, self._rank, self._request, self._store = plan, rank, request, store
        self._run_id, self._first_step, self._timeout_s = run_id, first_step, timeout_s
        self._numbers, self._stop = numbers, stop
        self._work = shares(plan)
        self._tasks = {task.id for task in plan.tasks if task.kind is TaskKind.SAVE and rank in plan.ranks_of(task)}
        self._first = min(self._tasks, default="")
        self._shares: Mapping[str, Share] = {share.state.name: share for share in self._work if share.rank == rank}
        self._staging: dict[str, Tensor] = {}
        self._file: PreparedFile | None = None
        self._changed = threading.Condition()
        self._step: int | None = None  # of the save under way
        self._staged: set[str] = set()
        self._error: RegistaError | None = None
        self.saved: list[int] = []
        self._pace = Pace(SHARE if plan.cluster.device.kind == "cpu" else 1.0)
        self._ending = False
        self._copied_s = 0.0  # for the save under way
        self._seen_s: float | None = None
        self._step_s = 0.0
        self._queue: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._folder = Path(request.folder)
        self._lock = -1
        if rank == 0:
            self._plan_id, self._states = plain(plan).plan_id, saved_states(plan, self._work)
            make_folder(self._folder)
            self._lock = lock(self._folder, owner=owner)
            remove_leftovers(self._folder)
        threading.Thread(target=self._write_all, daemon=True, name="checkpoint writer").start()

    def _saves_at(self, step: int) -> bool:
        """Whether the state after ``step`` steps is saved on the way."""
        stops = self._stop is not None and self._stop.saves_at(step)
        if stops:
            self._hurry_to_the_end()
        return stops or (self._request.every > 0 and step > self._first_step and step % self._request.every == 0)

    def act(self, task: Task, number: int, values: Sequence[Tensor]) -> None:
        """Act ``number`` of a SAVE task; returns when the values may change.

        Raises:
            RegistaError: the last save failed; its message says why.
        """
        step = self._first_step + number // task.acts
        if self._error is not None:
            raise self._error
        if number % task.acts:
            return
        if task.id == self._first:
            now_s = time.monotonic()
            self._step_s, self._seen_s = now_s - (self._seen_s or now_s), now_s
        if number == 0 and self._request.every:
            self._make_staging(task, values)
        if self._saves_at(step):
            self._stage(task, step, values)

    def end(self, steps: int, state_of: Callable[[str, int], Tensor]) -> None:
        """After the last act: save the state after ``steps`` steps (all in all) and wait until that is done.

        Args:
            state_of: (regst, index) -> this rank's part of the state.

        Raises:
            RegistaError: it failed.
        """
        self._hurry_to_the_end()
        if steps > self._first_step:
            for task in self._plan.tasks:
                if task.id in self._tasks:
                    self._stage(task, steps, [state_of(access.regst, access.index) for access in task.reads])
        with self._changed:
            self._changed.wait_for(lambda: self._step is None or self._error is not None)
        self._queue.put(None)
        if self._lock >= 0:
            unlock(self._folder, self._lock)
        if self._error is not None:
            raise self._error

    def _hurry_to_the_end(self) -> None:
        """From now on somebody waits for every save."""
        with self._changed:
            self._ending = True
            self._pace.hurry.set()

    def _stage(self, task: Task, step: int, values: Sequence[Tensor]) -> None:
        with self._changed:
            # Several placements may share this rank; the first of their acts opens the save.
            if self._step not in (None, step):
                self._pace.hurry.set()
            self._changed.wait_for(lambda: self._step in (None, step) or self._error is not None)
            if self._error is not None:
                raise self._error
            self._step = step
        self._make_staging(task, values)
        begin_s = time.thread_time()
        for access, value in zip(task.reads, values, strict=True):
            if access.name in self._shares:
                self._staging[access.name].copy_(value)
        with self._changed:
            self._copied_s += time.thread_time() - begin_s
            self._staged.add(task.id)
            if self._staged == self._tasks:
                self._staged = set()
                self._queue.put(step)

    def _make_staging(self, task: Task, values: Sequence[Tensor]) -> None:
        """Memory for what the task saves, whose pages are there: to find them costs a save as much as the copy."""
        for access, value in zip(task.reads, values, strict=True):
            if access.name in self._shares and access.name not in self._staging:
                self._staging[access.name] = torch.zeros_like(value, memory_format=torch.contiguous_format).fill_(0)
        if self._file is None and len(self._staging) == len(self._shares):
            self._file = PreparedFile(self._staging)

    # The writer thread.

    def _write_all(self) -> None:
        torch.set_num_threads(1)
        _yield_the_core()
        while (step := self._queue.get()) is not None:
            error: RegistaError | None = None
            try:
                self._write(step)
            except RegistaError as failed:
                error = type(failed)(f"the checkpoint of step {step} failed: {failed}")
            except BaseException as failed:  # it must reach the run, not this thread's end
                error = WorkerFailed(f"the checkpoint of step {step} failed: {type(failed).__name__}: {failed}")
            with self._changed:
                self._error, self._step = error, None
                if not self._ending:
                    self._pace.hurry.clear()
                if error is None:
                    self.saved.append(step)
                self._changed.notify_all()
            if error is not None:
                return

    def _write(self, step: int) -> None:
        written = self._folder / f".step-{step:08d}.{self._run_id}.tmp"
        files: list[SavedFile] = []
        try:
            try:
                written.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise WorkerFailed(f"cannot make {written}: {error.strerror}; give --checkpoint a folder that takes files") from error
            if self._shares:
                self._await_turn()
                files.append(write_part(written / file_name(self._rank), self._prepared(), self._byte_reporter(step)))
        except RegistaError as error:
            self._report(step, {"error": str(error)})
            raise
        self._report(step, {"files": [asdict(file) for file in files]})
        if self._rank == 0:
            self._commit(step, written)

    def _await_turn(self) -> None:
        """Acts have had less of the core since the copy; its share is due before writing takes another."""
        with self._changed:
            copied_s, self._copied_s = self._copied_s, 0.0
        size_bytes = sum(staged.nbytes for staged in self._staging.values())
        interval_s = self._request.every * self._step_s or math.inf
        self._pace.begin(size_bytes, copied_s=copied_s, step_s=self._step_s, interval_s=interval_s)

    def _prepared(self) -> PreparedFile:
        assert self._file is not None  # all that is shared was staged
        return self._file

    def _key(self, step: int, rank: int) -> str:
        return f"checkpoint/{step}/{rank}"

    def _byte_reporter(self, step: int) -> Callable[[int], None]:
        """A function that is called with the bytes written so far, and tells rank 0 now and then."""
        next_s = time.monotonic() + _PROGRESS_S

        def report(size_bytes: int) -> None:
            nonlocal next_s
            self._pace.rest(size_bytes)
            if time.monotonic() > next_s:
                next_s = time.monotonic() + _PROGRESS_S
                self._store.set(f"{self._key(step, self._rank)}/bytes", str(size_bytes))

        return report

    def _await_reports(self, step: int, keys: list[str]) -> None:
        written: list[bytes] = []
        changed_s = look_s = time.monotonic()
        while not self._store.check(keys):
            if time.monotonic() > look_s:  # each question is work of a core, and of the launcher's
                look_s = time.monotonic() + _PROGRESS_S / 4
                written_now = [
                    b"all" if self._store.check([key]) else self._store.get(f"{key}/bytes") if self._store.check([f"{key}/bytes"]) else b"0"
                    for key in keys
                ]
                if written_now != written:
                    written, changed_s = written_now, time.monotonic()
                if time.monotonic() > changed_s + self._timeout_s:
                    rank = next(rank for rank, part in enumerate(written_now) if part != b"all")
                    raise WorkerFailed(f"rank {rank} has written nothing more for {self._timeout_s:g} s; look at its process and its disk")
            if self._pace.hurry.is_set():
                time.sleep(_LOOK_IN_HURRY_S)
            self._pace.hurry.wait(_LOOK_S)

    def _report(self, step: int, content: object) -> None:
        self._store.set(self._key(step, self._rank), json.dumps(content))

    def _commit(self, step: int, written: Path) -> None:
        keys = [self._key(step, rank) for rank in range(self._plan.num_ranks)]
        self._await_reports(step, keys)
        files: list[SavedFile] = []
        for rank, key in enumerate(keys):
            report = json.loads(self._store.get(key))
            if "error" in report:
                raise WorkerFailed(f"rank {rank}: {report['error']}")
            files += [SavedFile(**fields) for fields in report["files"]]
        manifest = Manifest(
            plan_id=self._plan_id,
            model=self._plan.model,
            step=step,
            next_batch=step,
            num_ranks=self._plan.num_ranks,
            states=self._states,
            groups=optimizer_groups(self._plan, self._numbers(step - 1)),
            files=tuple(files),
        )
        commit(self._folder, written, manifest, self._request.keep)
        for key in keys:
            self._store.delete_key(key)
            self._store.delete_key(f"{key}/bytes")
