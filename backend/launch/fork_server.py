"""The fork server: a process that has imported torch once and forks workers, so that a worker starts in 15 ms instead of 1.5 to 4 s.

parent --start, kill, ping------------------> fork server --fork--> worker: main(FOLDER) of its module, with RANK, WORLD_SIZE, ...
       <--pong, not_started, ended, silence--                       as torchrun sets them

The server has one thread and starts no kernels, so forking it is safe; it never touches CUDA.  It is the parent of all workers: when it
ends, for whatever reason, the kernel ends them.  It ends them, and itself, when its own parent is gone or has sent nothing for too long;
a server that stands still is woken by the kernel when its parent ends, so none is left standing.

multiprocessing's forkserver with the same modules preloaded starts workers as fast, but does not keep what a run promises, so it is not used
[python -m experiments.libraries.fork_server, 2026-11-22, 2 cores of an AMD EPYC that others used too, Python 3.11, torch 2.13]:

                                    this server              multiprocessing
    two workers run after           50 ms; under load 207    65 ms; under load 159 (medians of 11; loads of 3 and 12 on the 2 cores)
    SIGKILL of the parent           no worker lives          all live, and the server: each worker keeps open the pipe whose end it waits for
    SIGSTOP of the parent           no worker lives          all live
    SIGKILL of the server           no worker lives          none lives if each ties itself to the server; every exit code is reported as 255
    a script without a main guard   workers run              RuntimeError: every worker imports the user's script again
    variables such as MALLOC_*      of this server           of the user's process; one server and one list of preloads for all its libraries
    Ctrl-C                          reaches the parent only  reaches the workers too, which are in the parent's group
"""

from __future__ import annotations

import errno
import gc
import importlib
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

from backend.comm.channel import Channel, Message
from backend.monitor.alive import ALIVE, SERVER, AliveCounts, count_and_watch, is_stopped

__all__ = ["ForkServer", "serve"]

TICK_S = 0.2
IDLE_SILENCE_S = 10.0
"""How long a parent may be stopped by a signal before a server that has had no run yet ends."""


@dataclass
class _Group:
    """The workers of one run.

    silence_s: they are ended when the parent has sent nothing for so long.   ranks: pid -> rank of the living.
    counts: where this process shows that it runs.
    """

    id: str
    folder: Path
    silence_s: float
    ranks: dict[int, int] = field(default_factory=dict)
    counts: AliveCounts | None = None

    def kill(self, rank: int | None = None) -> None:
        """Kill the worker of this rank, or all."""
        for pid, of_rank in self.ranks.items():
            if rank in (of_rank, None):
                os.kill(pid, signal.SIGKILL)

    def kill_and_wait(self) -> None:
        self.kill()
        for pid in self.ranks:
            os.waitpid(pid, 0)
        self.ranks.clear()


class ForkServer:
    """Serves one parent, as the module says.  It sets this process's signal handlers."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._groups: dict[str, _Group] = {}
        self._last_message_s = self._last_tick_s = time.monotonic()
        self._parent_is_silent = False
        self._last_limit_s = IDLE_SILENCE_S
        self._child_ended, write_end = os.pipe()
        os.set_blocking(write_end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Do what the parent asks for until it closes the channel, or has been silent so long that its workers were ended."""
        while self._groups or not self._parent_is_silent:
            sources: list[Any] = [self._channel, self._child_ended]
            readable, _, _ = select.select(sources, [], [], TICK_S)
            self._count()
            self._end_groups_of_a_silent_parent()
            if self._child_ended in readable:
                os.read(self._child_ended, 4096)
            self._report_ended_workers()
            if self._channel not in readable:
                continue
            messages = self._channel.receive()
            if messages is None:
                return
            self._last_message_s = time.monotonic()
            self._parent_is_silent = False
            for message in messages:
                self._handle(message)

    def end_all(self) -> None:
        """The parent is gone: end its workers and remove the folders of their runs, because nobody else will."""
        for group in self._groups.values():
            group.kill_and_wait()
            shutil.rmtree(group.folder, ignore_errors=True)

    def _handle(self, message: Message) -> None:
        match message["message"]:
            case "ping":
                self._channel.send(message="pong")
            case "start":
                self._start(message)
            case "kill" if message["group"] in self._groups:
                self._groups[message["group"]].kill(message["rank"])

    def _start(self, message: Message) -> None:
        """Fork the workers of a run.  When the system refuses one, this run ends and the others go on."""
        group = _Group(message["group"], Path(message["folder"]), message["silence_s"])
        logs = group.folder / "logs"
        server = os.getpid()
        attempted = f"making the folder {logs}"
        try:
            logs.mkdir(exist_ok=True)
            group.counts = AliveCounts.open(group.folder) if (group.folder / ALIVE).exists() else None
            for rank, environment in enumerate(message["environments"]):
                attempted = f"forking the worker of rank {rank}"
                pid = os.fork()
                if pid == 0:
                    _become_worker(server, message, rank, environment, logs / f"rank{rank}", self._channel)
                group.ranks[pid] = rank
        except OSError as error:
            group.kill_and_wait()
            name = errno.errorcode.get(error.errno or 0, "an unknown error")
            self._channel.send(message="not_started", group=group.id, cause=f"{attempted} failed with {name} ({error.strerror})")
            return
        self._groups[group.id] = group
        self._last_limit_s = group.silence_s

    def _report_ended_workers(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for group in self._groups.values():
                if pid in group.ranks:
                    rank = group.ranks.pop(pid)
                    self._channel.send(message="ended", group=group.id, rank=rank, code=os.waitstatus_to_exitcode(status))
            self._groups = {name: group for name, group in self._groups.items() if group.ranks}

    def _count(self) -> None:
        for group in self._groups.values():
            if group.counts is not None:
                group.counts.count(SERVER)

    def _end_groups_of_a_silent_parent(self) -> None:
        """End them when the parent has sent nothing for too long; a pause of this process itself does not count as the parent's silence."""
        now_s, tick_s = time.monotonic(), time.monotonic() - self._last_tick_s
        self._last_tick_s = now_s
        if tick_s > 10 * TICK_S:
            self._last_message_s += tick_s
        silent_s = now_s - self._last_message_s
        for group in self._groups.values():
            if silent_s > group.silence_s:
                self._channel.send(message="silence", group=group.id, silent_s=silent_s)
                group.kill()
                self._parent_is_silent = True
        if not self._groups and silent_s > self._last_limit_s and is_stopped(os.getppid()):
            self._parent_is_silent = True  # its workers have ended by themselves; busy, it would get none of them back


def _become_worker(server: int, message: Message, rank: int, environment: dict[str, str], log: Path, channel: Channel) -> None:
    """What the forked child does; it never returns."""
    code = 1
    from backend.worker.process import die_with_parent

    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        channel.close()
        die_with_parent()
        if os.getppid() != server:
            return
        for number, suffix in ((1, "stdout"), (2, "stderr")):
            file = os.open(log.with_name(f"{log.name}.{suffix}.log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(file, number)
            os.close(file)
        for name in set(os.environ) - set(environment) - {"PYTHONPATH"}:
            del os.environ[name]  # set when the server began, and not any more
        os.environ.update(environment)
        os.chdir(message["cwd"])
        count_and_watch(Path(message["folder"]), rank, message["silence_s"])
        code = importlib.import_module(message["module"]).main(message["folder"])
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
    gc.collect()
    gc.freeze()
    gc.enable()
    signal.signal(signal.SIGCONT, signal.SIG_DFL)  # from here on the channel's end says that the parent has ended
    server = ForkServer(Channel(socket.socket(fileno=number)))
    try:
        server.serve()
    except ConnectionError:
        pass  # the parent went away while something was sent to it
    finally:
        server.end_all()
