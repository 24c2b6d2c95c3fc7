"""Workers under torchrun's agent: restarts after a fault, and ranks on several hosts that meet at a rendezvous.

The agent runs in this process (torch.distributed.launcher.api).  It starts an interpreter per worker, so one host without restarts uses
the fork server instead (backend.launch.workers).
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from backend.launch.diagnose import diagnose
from backend.launch.workers import ENVIRONMENT, ROOT
from backend.monitor.progress import Progress
from backend.run_folder.files import Options, read_failures
from planner.ir.errors import WorkerFailed

__all__ = ["GRACE_S", "AgentOptions", "launch_elastic"]

GRACE_S = 2.0
"""How long the others may take to report why they end, once one worker has failed."""
AGENT_LOGGERS = ("torch.distributed.elastic", "torch.distributed.launcher")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """Options of torchrun's agent.

    max_restarts: how often all workers may be started anew after a fault.   nodes: hosts; each runs an agent with ``ranks / nodes`` workers.
    rendezvous: HOST:PORT where the agents meet; empty: a free port of this host.   address: this host's own, as the others reach it.
    node_rank: this host's place; None: as the agents agree.   interface: of the address, for gloo; empty: it looks by itself.
    join_timeout_s: how long the agents wait for each other.
    """

    max_restarts: int = 0
    nodes: int = 1
    rendezvous: str = ""
    address: str = "127.0.0.1"
    run_id: str = ""
    node_rank: int | None = None
    interface: str = "lo"
    join_timeout_s: float = 300.0


def launch_elastic(
    folder: Path,
    module: str,
    ranks: int,
    options: Options,
    agent: AgentOptions,
    on_progress: Callable[[int, float], None] | None = None,
) -> None:
    """Run ``python -m module folder`` as this host's share of ``ranks`` workers.

    Raises:
        WorkerFailed: a fault, and no restart was left; the rendezvous was lost, or not all hosts came.
        KeyboardInterrupt: after the workers were ended.
    """
    from torch.distributed import DistError
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=agent.nodes,
        max_nodes=agent.nodes,
        nproc_per_node=ranks // agent.nodes,
        run_id=agent.run_id or options.run_id,
        # Static: host r is as said.  c10d: the agents agree on an order, whoever comes first.
        rdzv_backend="c10d" if agent.node_rank is None else "static",
        rdzv_configs=_rendezvous_timeouts(agent),
        rdzv_endpoint=agent.rendezvous or "127.0.0.1:0",
        local_addr=agent.address,
        max_restarts=agent.max_restarts,
        monitor_interval=0.05,
        logs_specs=DefaultLogsSpecs(log_dir=str(folder / "logs"), redirects=Std.ALL),
    )
    python_path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    settings = [*(f"{name}={value}" for name, value in ENVIRONMENT.items()), f"PYTHONPATH={python_path}"]
    if agent.interface:
        settings.append(f"GLOO_SOCKET_IFNAME={agent.interface}")
    watch = _Watch(folder, Progress(folder, on_progress))
    failed: dict[int, int] = {}
    rendezvous_error: Exception | None = None
    try:
        with _quiet_agent(), watch.running():
            # ``env`` sets the workers' variables before python starts, without touching ours.
            elastic_launch(config, "env")(*settings, sys.executable, "-m", module, str(folder))
    except ChildFailedError as error:
        failed = {rank: failure.exitcode for rank, failure in error.failures.items()}
    except SignalException as error:
        if error.sigval == signal.SIGINT:
            raise KeyboardInterrupt from None
        raise WorkerFailed(f"the run was ended by {signal.Signals(error.sigval).name}") from None
    except (RendezvousError, DistError) as error:
        rendezvous_error = error
    finally:
        watch.kill_all()
    if watch.callback_error is not None:
        raise watch.callback_error
    if failed:
        raise WorkerFailed(diagnose(folder, failed, watch.killed))
    if rendezvous_error is not None:
        if reported := {failure.rank: 1 for failure in read_failures(folder)}:
            raise WorkerFailed(diagnose(folder, reported, watch.killed)) from rendezvous_error
        raise WorkerFailed(
            f"the {agent.nodes} hosts did not meet at {agent.rendezvous} within {agent.join_timeout_s:g} s, or it was lost "
            f"({_first_line(rendezvous_error)}); start the same command on every host; can the first one be reached, and is its port free?"
        ) from rendezvous_error


def _rendezvous_timeouts(agent: AgentOptions) -> dict[str, object]:
    """The settings of the rendezvous, static or c10d; times in seconds."""
    timeout_s = int(agent.join_timeout_s)
    if agent.node_rank is not None:
        return {"rank": agent.node_rank, "timeout": timeout_s}
    return {"join_timeout": timeout_s, "read_timeout": min(60, timeout_s)} if agent.nodes > 1 else {}


def _first_line(error: Exception) -> str:
    cause = error.__cause__ or error
    return str(cause).partition("\n")[0][:200]


@contextmanager
def _quiet_agent() -> Iterator[None]:
    """The agent logs every failure, which we report ourselves, and takes over the signals and one variable of this process.

    Only what torch's agent logs is dropped, and only meanwhile; signals and variable are given back.
    """
    loggers = [logging.getLogger(name) for name in AGENT_LOGGERS]
    propagate = [logger.propagate for logger in loggers]
    nowhere = logging.NullHandler()
    names = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    in_main = threading.current_thread() is threading.main_thread()
    handlers = {name: signal.getsignal(name) for name in names} if in_main else {}
    variable = os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE")
    for logger in loggers:
        logger.propagate = False
        logger.addHandler(nowhere)
    try:
        yield
    finally:
        for logger, before in zip(loggers, propagate, strict=True):
            logger.propagate = before
            logger.removeHandler(nowhere)
        for name, handler in handlers.items():
            signal.signal(name, handler)
        if variable is None:
            os.environ.pop("TORCHELASTIC_SIGNALS_TO_HANDLE", None)
        else:
            os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = variable


@dataclass
class _Watch:
    """A thread that forwards progress and, once a worker reported a fault, ends those of its attempt that do not end by themselves.

    The agent alone would wait 30 s for a stopped process, which takes no SIGTERM.
    """

    folder: Path
    progress: Progress
    killed: set[int] = field(default_factory=set)
    callback_error: BaseException | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        stop = threading.Event()
        thread = threading.Thread(target=self._watch, args=(stop,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _watch(self, stop: threading.Event) -> None:
        failed_at: dict[str, float] = {}
        while not stop.wait(0.05):
            self._forward()
            if self.callback_error is not None:
                self.kill_all()
            for path in self.folder.glob("rank*.error.json"):
                attempt = path.name.split(".")[1]
                if time.monotonic() > failed_at.setdefault(attempt, time.monotonic()) + GRACE_S:
                    self.kill_all(attempt)
        self._forward()

    def _forward(self) -> None:
        if self.callback_error is None:
            try:
                self.progress.forward()
            except BaseException as error:  # a fault of the caller's function ends the run and comes back to the caller
                self.callback_error = error

    def kill_all(self, attempt: str = "*") -> None:
        """Kill the workers of an attempt that still live."""
        for path in self.folder.glob(f"rank*.{attempt}.pid"):
            pid, rank = int(path.read_text() or 0), int(path.name.split(".")[0].removeprefix("rank"))
            if pid and _is_ours(pid, self.folder):
                self.killed.add(rank)
                os.kill(pid, signal.SIGKILL)


def _is_ours(pid: int, folder: Path) -> bool:
    """Whether a process with this number lives and works on this folder; the system uses numbers again."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return str(folder).encode() in command
    except OSError:
        return False
