"""The parent's side of the nursery: start the workers of a run, learn how each ended, end them.

One nursery serves all runs of this process.  It is started by the first, and ends with this process.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from planner.ir.errors import WorkerFailed

__all__ = ["ENVIRONMENT", "ROOT", "Nursery", "Workers", "nursery"]

ROOT = Path(__file__).resolve().parents[2]
BEAT_S = 0.5
STARTUP_S = 120.0

ENVIRONMENT: Mapping[str, str] = {
    # One thread per process: a second OpenMP thread in a Python thread costs a small matmul 23 times as much.
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    # Keep freed blocks in the process: giving megabytes back to the kernel at every act makes the next one fault its pages in again, and
    # the same 4 MB update take 0.4 or 1.9 ms [measured: 2 ranks, 2 cores, 2026-11-21].
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "33554432",
    "MALLOC_TRIM_THRESHOLD_": "8589934592",
}
"""What a worker's process needs before python starts."""


class Workers:
    """The workers of one run.

    codes: rank -> exit code, of those that have ended; negative: the number of a signal.   killed: ranks that were ended by ``kill``.
    orphaned_s: the nursery ended them because this process said nothing for so long.
    """

    def __init__(self, nursery: Nursery, crew: str, ranks: int, silence_s: float) -> None:
        self.codes: dict[int, int] = {}
        self.killed: set[int] = set()
        self.orphaned_s: float | None = None
        self._nursery, self._crew, self._ranks, self._silence_s = nursery, crew, ranks, silence_s

    @property
    def ended(self) -> bool:
        return len(self.codes) == self._ranks

    def wait(self, timeout_s: float) -> bool:
        """True once all have ended.

        Raises:
            WorkerFailed: the nursery is gone, or does not react; it and its workers are ended.
        """
        with self._nursery.changed:
            if not self.ended:
                self._nursery.changed.wait(timeout_s)
        self._nursery.check(self._silence_s)
        return self.ended

    def kill(self, rank: int | None = None) -> None:
        """End one worker, or all that are left, at once (a stopped process takes no SIGTERM)."""
        left = [r for r in range(self._ranks) if r not in self.codes and rank in (r, None)]
        self.killed.update(left)
        if left:
            self._nursery.tell(do="kill", crew=self._crew, rank=rank)


class Nursery:
    """See the module's text."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        python_path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._channel = ours
        self._process = subprocess.Popen(
            [sys.executable, "-m", "backend.launch.fork_server", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, **ENVIRONMENT, "PYTHONPATH": python_path},
            stdin=subprocess.DEVNULL,
            # A group of its own: Ctrl-C reaches this process only, which ends its runs in good order.
            start_new_session=True,
        )
        theirs.close()
        self.changed = threading.Condition()
        self._crews: dict[str, Workers] = {}
        self._ready = False
        self._asked_s: float | None = time.monotonic()
        self._talking = threading.Lock()
        self._owner = os.getpid()
        threading.Thread(target=self._listen, daemon=True, name="nursery: listen").start()
        threading.Thread(target=self._beat, daemon=True, name="nursery: beat").start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def usable(self) -> bool:
        """Alive, and made by this very process (not inherited by a fork)."""
        return self._process.poll() is None and self._owner == os.getpid()

    def start(self, crew: str, module: str, folder: Path, environments: Sequence[Mapping[str, str]], silence_s: float) -> Workers:
        """Fork one worker per environment: ``module.main(folder)``, output to folder/logs.  When this process dies, the folder is removed.

        Args:
            silence_s: end them when this process has not been heard for so long (stopped, or too busy to breathe); and give the nursery
                up when it does not answer for so long.

        Raises:
            WorkerFailed: the nursery ended.
        """
        workers = Workers(self, crew, len(environments), silence_s)
        with self.changed:
            self._crews[crew] = workers
        base = {**os.environ, **ENVIRONMENT}
        self.tell(
            do="start",
            crew=crew,
            module=module,
            folder=str(folder),
            cwd=os.getcwd(),
            environments=[{**base, **environment} for environment in environments],
            silence_s=silence_s,
        )
        return workers

    def forget(self, crew: str) -> None:
        with self.changed:
            self._crews.pop(crew, None)

    def tell(self, **order: Any) -> None:
        try:
            with self._talking:
                self._channel.sendall(json.dumps(order).encode() + b"\n")
        except OSError as error:
            raise WorkerFailed(f"the process that holds the workers ended ({error.strerror}); look for a lack of memory") from error

    def check(self, silence_s: float) -> None:
        """Raises WorkerFailed when the nursery is gone or silent."""
        code = self._process.poll()
        if code is not None:
            raise WorkerFailed(f"the process that holds the workers (pid {self.pid}) ended with code {code}; its workers were ended")
        asked = self._asked_s
        limit_s = silence_s if self._ready else STARTUP_S
        if asked is None or time.monotonic() < asked + limit_s:
            return
        with self.changed:
            # When it was this process that slept, the answer lies in the socket already.
            self.changed.wait_for(lambda: self._asked_s != asked, 1.0)
            answered = self._asked_s != asked
        if not answered:
            os.kill(self.pid, signal.SIGKILL)
            raise WorkerFailed(
                f"the process that holds the workers (pid {self.pid}) did not react for {limit_s:g} s; it and its workers were ended"
            )

    def close(self) -> None:
        if self._owner == os.getpid():
            self._channel.close()

    def _beat(self) -> None:
        while self._process.poll() is None:
            time.sleep(BEAT_S)
            with self.changed:
                if self._asked_s is None:
                    self._asked_s = time.monotonic()
            try:
                self.tell(do="ping")
            except WorkerFailed:
                break
        with self.changed:
            self.changed.notify_all()

    def _listen(self) -> None:
        held = b""
        while True:
            try:
                data = self._channel.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                break
            *lines, held = (held + data).split(b"\n")
            for line in lines:
                self._hear(json.loads(line))
        with self.changed:
            self.changed.notify_all()

    def _hear(self, word: Mapping[str, Any]) -> None:
        with self.changed:
            self._ready, self._asked_s = True, None
            workers = self._crews.get(word.get("crew", ""))
            if workers is None:
                return
            if word["word"] == "orphaned":
                workers.orphaned_s = word["silent_s"]
            elif word["word"] == "ended":
                workers.codes[word["rank"]] = word["code"]
            self.changed.notify_all()


_nursery: Nursery | None = None
_making = threading.Lock()


def nursery() -> Nursery:
    """The nursery of this process; a dead one is replaced."""
    global _nursery
    with _making:
        if _nursery is None or not _nursery.usable:
            _nursery = Nursery()
            atexit.register(_nursery.close)
        return _nursery
