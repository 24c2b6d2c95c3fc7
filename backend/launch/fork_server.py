"""A process that has imported torch once and forks workers from itself: a worker starts in 15 ms instead of 1.5 to 4 s.

parent --one JSON object per line--> nursery --fork--> worker: main(FOLDER) of its module, with RANK, WORLD_SIZE, ... as torchrun sets them
       <--born, ended, pong---------

The nursery has one thread and starts no kernels, so forking it is safe; it never touches CUDA.  It is the parent of all workers: when it
ends, for whatever reason, the kernel ends them.  It ends them itself when its own parent is gone or has not been heard for too long.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Crew", "serve"]

TICK_S = 0.2


@dataclass
class Crew:
    """The workers of one run.  silence_s: without a word from the parent for so long, they are ended."""

    id: str
    folder: str
    silence_s: float
    ranks: dict[int, int] = field(default_factory=dict)
    """pid -> rank, of those that live."""


class _Nursery:
    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._crews: dict[str, Crew] = {}
        self._heard_s = self._ticked_s = time.monotonic()
        self._wake, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def serve(self) -> None:
        held = b""
        while True:
            sources: list[Any] = [self._channel, self._wake]
            readable, _, _ = select.select(sources, [], [], TICK_S)
            self._look_at_the_clock()
            if self._wake in readable:
                os.read(self._wake, 4096)
            self._reap()
            if self._channel not in readable:
                continue
            data = self._channel.recv(1 << 16)
            if not data:
                return
            self._heard_s = time.monotonic()
            *lines, held = (held + data).split(b"\n")
            for line in lines:
                self._obey(json.loads(line))

    def _say(self, **word: Any) -> None:
        self._channel.sendall(json.dumps(word).encode() + b"\n")

    def _obey(self, order: dict[str, Any]) -> None:
        match order["do"]:
            case "ping":
                self._say(word="pong")
            case "start":
                self._start(order)
            case "kill":
                crew = self._crews.get(order["crew"])
                for pid, rank in list(crew.ranks.items()) if crew else ():
                    if order["rank"] in (rank, None):
                        os.kill(pid, signal.SIGKILL)

    def _start(self, order: dict[str, Any]) -> None:
        crew = self._crews[order["crew"]] = Crew(order["crew"], order["folder"], order["silence_s"])
        logs = Path(crew.folder) / "logs"
        logs.mkdir(exist_ok=True)
        here = os.getpid()
        for rank, environment in enumerate(order["environments"]):
            pid = os.fork()
            if pid == 0:
                _become_worker(here, order, environment, logs / f"rank{rank}", self._channel)
            crew.ranks[pid] = rank
        self._say(word="born", crew=crew.id)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for crew in self._crews.values():
                if pid in crew.ranks:
                    rank = crew.ranks.pop(pid)
                    self._say(word="ended", crew=crew.id, rank=rank, code=os.waitstatus_to_exitcode(status))
            for name in [crew.id for crew in self._crews.values() if not crew.ranks]:
                del self._crews[name]

    def _look_at_the_clock(self) -> None:
        """End crews whose parent does not say anything.  A pause of this process itself does not count as the parent's."""
        now, before = time.monotonic(), self._ticked_s
        self._ticked_s = now
        if now - before > 10 * TICK_S:
            self._heard_s += now - before
        for crew in self._crews.values():
            if now - self._heard_s > crew.silence_s and crew.ranks:
                self._say(word="orphaned", crew=crew.id, silent_s=now - self._heard_s)
                for pid in crew.ranks:
                    os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        """The parent is gone: nobody is left to tidy up but us."""
        for crew in self._crews.values():
            for pid in crew.ranks:
                os.kill(pid, signal.SIGKILL)
        for crew in self._crews.values():
            for pid in crew.ranks:
                os.waitpid(pid, 0)
            shutil.rmtree(crew.folder, ignore_errors=True)


def _become_worker(parent: int, order: dict[str, Any], environment: dict[str, str], log: Path, channel: socket.socket) -> None:
    """In the child: never returns."""
    code = 1
    from backend.worker.process import die_with_parent

    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        channel.close()
        die_with_parent()
        if os.getppid() != parent:
            return
        for number, suffix in ((1, "stdout"), (2, "stderr")):
            file = os.open(log.with_name(f"{log.name}.{suffix}.log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(file, number)
            os.close(file)
        for name in set(os.environ) - set(environment) - {"PYTHONPATH"}:
            del os.environ[name]  # set when the nursery began, and not any more
        os.environ.update(environment)
        os.chdir(order["cwd"])
        code = importlib.import_module(order["module"]).main(order["folder"])
    except BaseException:
        traceback.print_exc()
    finally:
        # No clean-up on purpose: after a failure gloo's threads may wait for peers that will never answer.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def serve(number: int) -> None:
    """Serve the parent on the socket with this file number until it closes."""
    import torch

    import backend.worker.process  # noqa: F401  what is imported here need not be imported by any worker

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    nursery = _Nursery(socket.socket(fileno=number))
    try:
        nursery.serve()
    except OSError:
        pass  # the parent went away in the midst of a message
    finally:
        nursery.end()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
