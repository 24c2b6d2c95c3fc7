"""The server's end of one child process: started from the fork server, told what to perform, watched for memory, ended."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from pathlib import Path

from regista.server.work.worker import PRELOADED, worker_main

__all__ = ["Child", "fork_context"]

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def fork_context() -> ForkServerContext:
    """Children are forked from a process that has imported the planner once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    return context


class Child:
    """One process; ``warm`` are the programs that it has worked on."""

    def __init__(self, context: ForkServerContext, folder: Path, *, confined: bool) -> None:
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=worker_main, args=(theirs, str(folder), confined), daemon=True)
        self._process.start()
        theirs.close()
        self.warm: set[str] = set()
        self.performed = 0

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    def fileno(self) -> int:
        return self._pipe.fileno()

    def send(self, message: dict[str, object]) -> None:
        """Raises OSError: it has ended."""
        self._pipe.send_bytes(json.dumps(message).encode())

    def read(self, take: Callable[[dict[str, object]], None]) -> bool:
        """Hand over the messages that are there; False: the process has ended."""
        try:
            while self._pipe.poll():
                take(json.loads(self._pipe.recv_bytes(1 << 20)))
        except (EOFError, OSError):
            return False
        return True

    def resident_bytes(self) -> int:
        """0: it has ended."""
        try:
            return int(Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1]) * _PAGE_BYTES
        except (OSError, IndexError):
            return 0

    def kill(self) -> None:
        """End it now; returns when it has ended."""
        self._process.kill()
        self._process.join()
        self._pipe.close()
        self._process.close()
