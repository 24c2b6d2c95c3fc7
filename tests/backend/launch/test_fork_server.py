"""The fork server: a run that the system refuses to start ends with the cause, and no other run notices."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import handmade
import pytest
from python_path import PYTHON_PATH

from backend.comm.channel import Channel, Message
from backend.launch import server_start
from backend.launch.processes import run
from backend.launch.workers import ROOT, ForkServerClient, fork_server_client
from planner.ir.errors import WorkerFailed

pytestmark = pytest.mark.processes

REFUSED_FORK = """
import errno, os, sys
from backend.launch.fork_server import serve
fork, calls = os.fork, iter(range(100))
def fork_until_refused():
    if next(calls) == 1:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return fork()
os.fork = fork_until_refused
serve(int(sys.argv[1]))
"""


@pytest.fixture
def refusing() -> Iterator[Channel]:
    """A fork server to which the system refuses the second fork, and no other."""
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(
        [sys.executable, "-c", REFUSED_FORK, str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        env=os.environ | {"PYTHONPATH": PYTHON_PATH},
    )
    theirs.close()
    channel = Channel(ours)
    yield channel
    channel.close()
    assert process.wait(20) == 0


def _started(channel: Channel, folder: Path, ranks: int) -> Message:
    """The server's next message after a group of that name was asked for."""
    folder.mkdir()
    environments = [dict(os.environ) | {"RANK": str(rank)} for rank in range(ranks)]
    channel.send(
        message="start", group=folder.name, module="leaves_at_once", folder=str(folder), cwd=".", environments=environments, silence_s=60
    )
    messages: list[Message] = []
    while not messages:
        received = channel.receive(60)
        assert received is not None
        messages = received
    return messages[0]


def test_a_refused_fork_names_its_errno_and_ends_that_run_only(refusing: Channel, tmp_path: Path) -> None:
    cause = "forking the worker of rank 1 failed with EAGAIN (Resource temporarily unavailable)"
    assert _started(refusing, tmp_path / "first", 2) == {"message": "not_started", "group": "first", "cause": cause}
    assert _started(refusing, tmp_path / "second", 1) == {"message": "ended", "group": "second", "rank": 0, "code": 7}


def test_a_folder_that_cannot_be_made_names_its_errno_and_the_fork_server_serves_on(tmp_path: Path) -> None:
    client = fork_server_client()
    (tmp_path / "logs").write_text("a file where the folder of logs should be")
    group = client.start("refused", "leaves_at_once", tmp_path, [{}], 60.0)
    with pytest.raises(WorkerFailed, match=r"could not be started: making the folder \S*logs failed with EEXIST \(File exists\)"):
        group.wait(60.0)
    assert run(handmade.pipeline(2), handmade.start(), handmade.batches(2), 1).losses
    assert fork_server_client() is client


def test_a_fork_server_that_was_killed_is_named_and_replaced() -> None:
    client = ForkServerClient()
    client._process.kill()
    client._process.wait()
    with pytest.raises(WorkerFailed, match=rf"the fork server \(pid {client.server_pid}\) ended with code -9"):
        client.check(60.0)
    assert not client.usable


@pytest.mark.parametrize("state", ["serves", "stopped", "imports"])
def test_no_fork_server_lives_when_its_parent_has_ended_by_itself(state: str, tmp_path: Path) -> None:
    """One was left for 18 s: stopped in the moment between its parent's end and its own, when nobody was there to wake it."""
    client = ForkServerClient()
    if state == "imports":
        client.start("first", "leaves_at_once", tmp_path, [{}], 60.0)
    else:
        _wait_until(lambda: client._has_imported)
    if state == "stopped":
        os.kill(client.server_pid, signal.SIGSTOP)
    client.close()
    assert client._process.returncode == (0 if state == "serves" else -signal.SIGKILL)
    assert tmp_path.exists() == (state != "imports")


ASKS_CUDA = """
import sys, torch
def refused(*_):
    raise AssertionError("the fork server has asked CUDA")
for name in ("is_available", "device_count", "init", "_lazy_init", "current_device", "get_device_properties"):
    setattr(torch.cuda, name, refused)
torch._C._cuda_getDeviceCount = refused
from backend.launch import fork_server
fork_server.ForkServer.serve = lambda self: None
fork_server.serve(int(sys.argv[1]))
import backend.worker.process, backend.measure.bench_worker
print("served")
"""


@pytest.mark.thorough
def test_the_fork_server_never_asks_cuda_or_no_worker_could_use_a_gpu() -> None:
    """torch counts devices by a call that makes CUDA unusable in every process forked afterwards."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-c", ASKS_CUDA, str(theirs.fileno())]
    done = subprocess.run(command, pass_fds=[theirs.fileno()], env=os.environ | {"PYTHONPATH": PYTHON_PATH}, capture_output=True, text=True)
    ours.close()
    theirs.close()
    assert (done.returncode, done.stdout) == (0, "served\n"), done.stderr


LEAVES_WHILE_IT_STARTS = """
import os, sys, time
from pathlib import Path
from backend.launch.workers import ForkServerClient
os.environ["PYTHONPATH"] = sys.argv[1]
client = ForkServerClient()
client.start("first", "leaves_at_once", Path(sys.argv[2]), [{}, {}], 60.0)
print(client.server_pid, flush=True)
time.sleep(60)
"""
SLOW_TORCH = "import pathlib, time\npathlib.Path(__file__).with_name('began').touch()\ntime.sleep(60)\n"


LEAVES_AT_ONCE = """
import json, os, socket, subprocess, sys, time
ours, theirs = socket.socketpair()
server = [sys.executable, sys.argv[3], str(theirs.fileno()), str(os.getpid())]
environment = os.environ | {"PYTHONPATH": os.pathsep.join([sys.argv[4], sys.argv[1]])}
print(subprocess.Popen(server, pass_fds=[theirs.fileno()], env=environment).pid, flush=True)
ours.sendall(json.dumps({"message": "start", "folder": sys.argv[2]}).encode() + b"\\n")
time.sleep(60)
"""
"""The same, of a parent that begins sooner since it imports nothing of ours."""


@pytest.mark.representatives("bare parent")
@pytest.mark.parametrize("parent", [LEAVES_AT_ONCE, LEAVES_WHILE_IT_STARTS], ids=["bare parent", "launcher"])
def test_a_fork_server_whose_parent_is_killed_while_it_imports_ends_at_once_and_leaves_no_folder(parent: str, tmp_path: Path) -> None:
    """A process was left for 18 s: the launcher of one of two hosts had died, and its fork server went on importing torch on a busy machine."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(SLOW_TORCH)
    (tmp_path / "run").mkdir()
    command = [sys.executable, "-c", parent, str(tmp_path), str(tmp_path / "run"), server_start.__file__, str(ROOT)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": PYTHON_PATH}) as process:
        assert process.stdout is not None
        server = int(process.stdout.readline())
        _wait_until((tmp_path / "torch" / "began").exists)
        process.kill()
    try:
        _wait_until(lambda: not _lives(server))
        assert not (tmp_path / "run").exists()
    finally:
        with suppress(ProcessLookupError):
            os.kill(server, signal.SIGKILL)


def _wait_until(holds: Callable[[], bool], limit_s: float = 20.0) -> None:
    until_s = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < until_s
        time.sleep(0.02)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
