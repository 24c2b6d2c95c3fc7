"""The parent's side of the fork server: start the workers of a run, learn how each ended, end them.

One fork server serves all runs of this process.  It is started by the first, and ends with this process.
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from backend.comm.channel import Channel, Message
from backend.monitor.alive import LAUNCHER, SERVER, AliveCounts, Silence, is_stopped, place_of
from planner.ir.errors import WorkerFailed

__all__ = ["ENVIRONMENT", "ROOT", "ForkServerClient", "WorkerGroup", "fork_server_client"]

ROOT = Path(__file__).resolve().parents[2]
_SERVER = Path(__file__).with_name("server_start.py")
PING_S = 0.5
STARTUP_S = 120.0
END_S = 2.0
"""How long the server may take to end its workers and itself, before it is ended."""

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
"""Variables that a worker's process needs before Python starts."""


class WorkerGroup:
    """The workers of one run.

    exit_codes: rank -> exit code, of those that have ended; negative: the number of a signal.   killed: ranks that were ended by ``kill``.
    silent_s: the fork server ended them because this process had sent nothing for so long.
    counts: signs of life, of this process, the fork server, and the workers.   folder: of the run.
    """

    def __init__(self, client: ForkServerClient, name: str, folder: Path, ranks: int, silence_s: float, counts: AliveCounts) -> None:
        self.folder = folder
        self.exit_codes: dict[int, int] = {}
        self.killed: set[int] = set()
        self.silent_s: float | None = None
        self.not_started: str | None = None
        self._client, self._name, self._ranks, self._silence_s = client, name, ranks, silence_s
        self.counts = counts
        self._silence = Silence(counts, [place_of(rank) for rank in range(ranks)])

    @property
    def ended(self) -> bool:
        return (
            self.not_started is not None or len(self.exit_codes) == self._ranks or (self.silent_s is not None and not self._client.usable)
        )

    def standing_still(self) -> list[int]:
        """Ranks that live and have shown no sign of life for longer than the limit; it is asked again and again."""
        if not self.counts.of(SERVER):
            return []  # the fork server imports torch first, and has forked none yet
        silent = self._silence.longer_than(self._silence_s)
        return [rank for rank in range(self._ranks) if place_of(rank) in silent and rank not in self.exit_codes]

    def wait(self, timeout_s: float) -> bool:
        """Wait until something changes; True once all have ended.

        Raises:
            WorkerFailed: the system refused to start them; or the fork server is gone, or does not react, and was ended with its workers.
        """
        with self._client.changed:
            if not self.ended:
                self._client.changed.wait(timeout_s)
        try:
            self._client.check(self._silence_s)
        except WorkerFailed:
            if self.silent_s is None:
                raise
        if self.not_started is not None:
            raise WorkerFailed(
                f"the workers of this run could not be started: {self.not_started}; look at the limits of processes, memory and disk"
            )
        return self.ended

    def kill(self, rank: int | None = None) -> None:
        """End one worker, or all that are left, at once (a stopped process takes no SIGTERM).

        Where the fork server has ended, so have they; why it ended, ``wait`` says.
        """
        living = [] if self.ended else [r for r in range(self._ranks) if r not in self.exit_codes and rank in (r, None)]
        self.killed.update(living)
        if living:
            with suppress(WorkerFailed):
                self._client.send(message="kill", group=self._name, rank=rank)


class ForkServerClient:
    """Starts a fork server (backend.launch.fork_server) and exchanges messages with it.

    changed: notified when a worker has ended, or the server.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        python_path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._channel = Channel(ours)
        self._process = subprocess.Popen(
            [sys.executable, str(_SERVER), str(theirs.fileno()), str(os.getpid())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, **ENVIRONMENT, "PYTHONPATH": python_path},
            stdin=subprocess.DEVNULL,
            # A group of its own: Ctrl-C reaches this process only, which ends its runs in good order.
            start_new_session=True,
        )
        theirs.close()
        self.changed = threading.Condition()
        self._groups: dict[str, WorkerGroup] = {}
        self._has_imported = False
        self._stopped_since_s: float | None = None
        self._unanswered_since_s: float | None = time.monotonic()
        self._owner = os.getpid()
        self._receiver = threading.Thread(target=self._receive, daemon=True, name="fork server: receive")
        self._receiver.start()

    @property
    def server_pid(self) -> int:
        return self._process.pid

    @property
    def usable(self) -> bool:
        """Whether the server lives and this very process started it, instead of inheriting it by a fork."""
        return self._process.poll() is None and self._owner == os.getpid()

    def start(self, name: str, module: str, folder: Path, environments: Sequence[Mapping[str, str]], silence_s: float) -> WorkerGroup:
        """Fork one worker per environment: ``module.main(folder)``, output to folder/logs.  When this process dies, the folder is removed.

        Args:
            silence_s: end them when this process has sent nothing for so long (stopped, or too busy); and give the fork server up when it
                does not answer for so long.

        Raises:
            WorkerFailed: the fork server ended.
        """
        group = WorkerGroup(self, name, folder, len(environments), silence_s, AliveCounts.create(folder, len(environments)))
        with self.changed:
            self._groups[name] = group
        base = {**os.environ, **ENVIRONMENT}
        self.send(
            message="start",
            group=name,
            module=module,
            folder=str(folder),
            cwd=os.getcwd(),
            environments=[{**base, **environment} for environment in environments],
            silence_s=silence_s,
        )
        return group

    def forget(self, name: str) -> None:
        with self.changed:
            self._groups.pop(name, None)

    def send(self, **message: Any) -> None:
        """Raises WorkerFailed when the fork server is gone."""
        try:
            self._channel.send(**message)
        except OSError as error:
            raise WorkerFailed(f"the fork server, parent of the workers, ended ({error.strerror}); look for a lack of memory") from error

    def check(self, silence_s: float) -> None:
        """Raises WorkerFailed when the fork server is gone, or has not answered for so long."""
        code = self._process.poll()
        if code is not None:
            self._receiver.join(1.0)  # what the server said last
            raise WorkerFailed(f"the fork server (pid {self.server_pid}) ended with code {code}; its workers were ended")
        unanswered_since_s = self._unanswered_since_s
        limit_s = silence_s if self._has_imported else STARTUP_S
        if self._stopped_for_s() > silence_s:  # in the midst of its imports, it says nothing anyway
            limit_s = silence_s
        if unanswered_since_s is None or time.monotonic() < unanswered_since_s + limit_s:
            return
        with self.changed:
            # When it was this process that slept, the answer lies in the socket already.
            answered = self.changed.wait_for(lambda: self._unanswered_since_s != unanswered_since_s, 1.0)
        if not answered:
            self._process.kill()
            raise WorkerFailed(f"the fork server (pid {self.server_pid}) did not react for {limit_s:g} s; it and its workers were ended")

    def _stopped_for_s(self) -> float:
        """How long the server has stood still by a signal, as far as this process has seen; 0 where the system does not say."""
        if not is_stopped(self.server_pid):
            self._stopped_since_s = None
            return 0.0
        self._stopped_since_s = self._stopped_since_s or time.monotonic()
        return time.monotonic() - self._stopped_since_s

    def close(self) -> None:
        """End the server, and wait for its end: one that is stopped after its parent has gone would stay, since nobody could wake it."""
        if self._owner != os.getpid():
            return
        self._channel.end()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S if self._has_imported else 0.0)  # in the midst of its imports it hears nothing, and has no workers
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
            for group in self._groups.values():
                shutil.rmtree(group.folder, ignore_errors=True)
        self._receiver.join(END_S)
        self._channel.close()

    def _receive(self) -> None:
        """Handle messages as they come, send a ping and show a sign of life every PING_S, until the server has ended."""
        next_ping_s = 0.0
        while True:
            messages = self._channel.receive(PING_S)
            if messages is None:
                break
            for message in messages:
                self._handle(message)
            if time.monotonic() < next_ping_s:
                continue
            next_ping_s = time.monotonic() + PING_S
            with self.changed:
                if self._unanswered_since_s is None:
                    self._unanswered_since_s = time.monotonic()
                for group in self._groups.values():
                    group.counts.count(LAUNCHER)
            with suppress(WorkerFailed):  # what it said before it ended is still to be read
                self.send(message="ping")
        with self.changed:
            self.changed.notify_all()

    def _handle(self, message: Message) -> None:
        with self.changed:
            self._has_imported, self._unanswered_since_s = True, None
            group = self._groups.get(message.get("group", ""))
            match message["message"]:
                case "not_started" if group is not None:
                    group.not_started = message["cause"]
                case "silence" if group is not None:
                    group.silent_s = message["silent_s"]
                case "ended" if group is not None:
                    group.exit_codes[message["rank"]] = message["code"]
            self.changed.notify_all()


_client: ForkServerClient | None = None
_making = threading.Lock()


def fork_server_client() -> ForkServerClient:
    """The client of this process's fork server; a server that has ended is replaced."""
    global _client
    with _making:
        if _client is None or not _client.usable:
            _client = ForkServerClient()
            atexit.register(_client.close)
        return _client
