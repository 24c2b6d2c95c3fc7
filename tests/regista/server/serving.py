"""A real server in a process of its own, for tests; ended by its pid."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from regista.remote import Connection, connect

__all__ = ["Serving", "serving"]

_START_S = 60.0


@dataclass
class Serving:
    """url: where it answers.   token: the file of its token, None on a unix socket."""

    process: subprocess.Popen[str]
    folder: Path
    url: str
    token: Path | None

    def connect(self) -> Connection:
        return connect(self.url, token=self.token)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def children(self) -> list[int]:
        """Pids of the processes that perform requests: grandchildren of the server, by its fork server."""
        return [pid for child in _children(self.process.pid) for pid in _children(child)]

    def kill(self) -> None:
        """As the kernel would for want of memory."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _children(pid: int) -> list[int]:
    try:
        return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[Serving]:
    """A server that answers; it ends with the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "regista.cli", "serve", "--folder", str(folder), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        url = _url(process)
        yield Serving(process, folder, url, folder / "token" if url.startswith("http") else None)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
        process.communicate()


def _url(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.startswith("regista serves at "):
        assert process.stderr is not None
        raise AssertionError(f"no server: {line}{process.stderr.read()}")
    return line.split()[3].rstrip(",")


def wait_until(what: str, done: object, seconds: float = _START_S) -> None:
    """Poll ``done()``."""
    began = time.monotonic()
    while not done():  # type: ignore[operator]
        assert time.monotonic() - began < seconds, f"{what} did not happen within {seconds} s"
        time.sleep(0.05)


def gone(pids: Sequence[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)
