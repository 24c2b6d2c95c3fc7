"""Performing a Plan on real processes: one worker per rank, started by torchrun's agent, watched, and merged into one Outcome.

The parent runs the agent in its own process (torch.distributed.launcher.api), so that the rank and the signal of a dead worker come back as
data and no second interpreter has to import torch.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from backend.blocks import check_state
from backend.body import Batches, source_parts
from backend.merge import merge
from backend.outcome import Outcome
from backend.record import Failure, Options, prepare, read_failures
from planner.ir.errors import InvalidProgram, WorkerFailed
from planner.ir.plan import Plan, TaskKind
from planner.ir.verify import verify

__all__ = ["launch", "run", "run_folder", "start"]

_ROOT = Path(__file__).resolve().parent.parent
_GRACE_S = 2.0

_ENVIRONMENT = (
    # One thread per process: a second OpenMP thread in a Python thread costs a small matmul 23 times as much.
    "OMP_NUM_THREADS=1",
    "MKL_NUM_THREADS=1",
    "GLOO_SOCKET_IFNAME=lo",
    # Keep freed blocks in the process: giving megabytes back to the kernel at every act makes the next one fault its pages in again, and
    # the same 4 MB update take 0.4 or 1.9 ms [measured: 2 ranks, 2 cores, 2026-11-21].
    "MALLOC_ARENA_MAX=1",
    "MALLOC_MMAP_THRESHOLD_=33554432",
    "MALLOC_TRIM_THRESHOLD_=8589934592",
)


class Oversubscribed(UserWarning):
    """More ranks than cores."""


def run(
    plan: Plan,
    state: Mapping[str, Tensor],
    batches: Batches,
    steps: int,
    *,
    gradients: bool = False,
    timeout_s: float = 30.0,
    on_progress: Callable[[int, float], None] | None = None,
    workdir: str | Path | None = None,
) -> Outcome:
    """Perform ``steps`` steps of the Plan on plan.num_ranks processes of this host.

    Args:
        state: logical tensors by the names of plan.states.
        batches: step -> the global batch's tensors; asked for all steps before the start.
        gradients: also return the last step's mean gradients.
        timeout_s: when no act ends and no message comes for so long, the run is given up; also the limit of a single act.
        on_progress: called with (step, loss) on a thread of its own.
        workdir: where the run's temporary folder is made (default: the system's); it is removed afterwards.

    Returns:
        trace (source ``run``, performer ``gloo``), losses per step, final states and gradients as logical tensors.

    Raises:
        WorkerFailed: a worker died, raised or hung; the message names its rank and what it was doing.  No process is left.
        InvalidPlan, DeadLock, OutOfMemory, InvalidProgram: refused before anything starts.
    """
    verify(plan)
    options = Options(run_id=uuid.uuid4().hex[:12], steps=steps, gradients=gradients, timeout_s=timeout_s)
    with run_folder(workdir, options.run_id) as folder:
        start(folder, plan, state, batches, options, on_progress)
        return merge(plan, folder, options).outcome


def start(
    folder: Path,
    plan: Plan,
    state: Mapping[str, Tensor],
    batches: Batches,
    options: Options,
    on_progress: Callable[[int, float], None] | None = None,
) -> None:
    """Check the inputs, write the run's files, launch its workers and wait for their end.  Raises as ``run`` does."""
    if options.steps < 1:
        raise InvalidProgram(f"steps = {options.steps}; at least 1 step is needed")
    check_state(plan, state)
    for task in plan.tasks:
        if task.kind is TaskKind.SOURCE:
            source_parts(plan, task, plan.ranks_of(task)[0], 0, batches)
    cores = len(os.sched_getaffinity(0))
    if plan.num_ranks > cores:
        warnings.warn(
            f"{plan.num_ranks} ranks on {cores} cores: times carry scheduler quanta of 4 ms; only results stay right",
            Oversubscribed,
            stacklevel=3,
        )
    prepare(folder, plan, state, batches, options)
    launch(folder, "backend.worker", plan.num_ranks, options.run_id, on_progress, plan)


@contextmanager
def run_folder(workdir: str | Path | None, run_id: str) -> Iterator[Path]:
    """A folder for the run's files, removed whatever happens."""
    folder = Path(tempfile.mkdtemp(prefix=f"regista-{run_id}-", dir=workdir))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def launch(
    folder: Path, module: str, ranks: int, run_id: str, on_progress: Callable[[int, float], None] | None = None, plan: Plan | None = None
) -> None:
    """Run ``python -m module folder`` as ``ranks`` workers under torchrun's agent.

    Raises:
        WorkerFailed: see ``run``.   KeyboardInterrupt: after the workers were ended.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=run_id,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        monitor_interval=0.05,
        logs_specs=DefaultLogsSpecs(log_dir=str(folder / "logs"), redirects=Std.ALL),
    )
    python_path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    settings = [*_ENVIRONMENT, f"PYTHONPATH={python_path}"]
    watch = _Watch(folder, on_progress)
    dead: dict[int, int] = {}
    try:
        with _quiet_agent(), watch.running():
            # ``env`` sets the workers' variables before python starts, without touching ours.
            elastic_launch(config, "env")(*settings, sys.executable, "-m", module, str(folder))
    except ChildFailedError as error:
        dead = {rank: failure.exitcode for rank, failure in error.failures.items()}
    except SignalException as error:
        if error.sigval == signal.SIGINT:
            raise KeyboardInterrupt from None
        raise WorkerFailed(f"the run was ended by {signal.Signals(error.sigval).name}") from None
    finally:
        watch.end_all()
    if watch.callback_error is not None:
        raise watch.callback_error
    if dead:
        raise WorkerFailed(_diagnose(folder, dead, watch.ended, plan))


@contextmanager
def _quiet_agent() -> Iterator[None]:
    """The agent logs every failure, takes over the signals and one variable of this process; give them back afterwards."""
    logger = logging.getLogger("torch.distributed.elastic")
    level, disabled = logger.level, logging.root.manager.disable
    names = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    in_main = threading.current_thread() is threading.main_thread()
    before = {name: signal.getsignal(name) for name in names} if in_main else {}
    variable = os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE")
    logger.setLevel(logging.CRITICAL)
    logging.disable(max(disabled, logging.WARNING if in_main else logging.ERROR))
    try:
        yield
    finally:
        logger.setLevel(level)
        logging.disable(disabled)
        for name, handler in before.items():
            signal.signal(name, handler)
        if variable is None:
            os.environ.pop("TORCHELASTIC_SIGNALS_TO_HANDLE", None)
        else:
            os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = variable


@dataclass
class _Watch:
    """A thread that forwards progress lines and, once a worker reported a failure, ends those that do not end by themselves."""

    folder: Path
    on_progress: Callable[[int, float], None] | None
    ended: set[int] = field(default_factory=set)
    callback_error: BaseException | None = None
    _read: int = 0

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
        failed_at: float | None = None
        while not stop.wait(0.02):
            self._forward()
            if failed_at is None and (self.callback_error is not None or any(self.folder.glob("rank*.error.json"))):
                failed_at = time.monotonic()
            if failed_at is not None and time.monotonic() > failed_at + (0 if self.callback_error else _GRACE_S):
                self.end_all()
        self._forward()

    def _forward(self) -> None:
        path = self.folder / "progress"
        if self.on_progress is None or self.callback_error is not None or not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            step, loss = line.split()
            try:
                self.on_progress(int(step), float(loss))
            except BaseException as error:  # a fault of the caller's function ends the run and comes back to the caller
                self.callback_error = error
                return

    def end_all(self) -> None:
        """Kill what is left: a stopped process takes no SIGTERM, and the agent would wait 30 s for it."""
        for path in self.folder.glob("rank*.pid"):
            pid, rank = int(path.read_text() or 0), int(path.stem.removeprefix("rank"))
            if pid and _is_ours(pid, self.folder):
                self.ended.add(rank)
                os.kill(pid, signal.SIGKILL)


def _is_ours(pid: int, folder: Path) -> bool:
    """A live process with this number that works on this folder (numbers are used again)."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return str(folder).encode() in command
    except OSError:
        return False


def _diagnose(folder: Path, dead: Mapping[int, int], ended: set[int], plan: Plan | None) -> str:
    """One sentence about the first cause: a process killed from outside, else its own fault, else a stall, else a lost peer."""
    failures = read_failures(folder)
    signalled = {rank: -code for rank, code in dead.items() if code < 0 and rank not in ended}
    foreign = {rank: number for rank, number in signalled.items() if number != signal.SIGTERM or not failures}
    if foreign:
        rank, number = next(iter(foreign.items()))
        return f"rank {rank} was killed by {signal.Signals(number).name}; the other ranks were ended"
    for kind in ("raised", "stalled", "peer_lost"):
        for failure in failures:
            if failure.kind == kind:
                return _story(failure, [r for r in sorted(ended) if r not in {f.rank for f in failures}])
    rank = next(iter(dead))
    return f"rank {rank} ended with exit code {dead[rank]}: {_last_words(folder) or 'it left no message'}"


def _story(failure: Failure, silent: list[int]) -> str:
    where = f" in task {failure.task} (act {failure.act}, micro-batch {failure.micro_batch})" if failure.task else ""
    more = f"; ranks {silent} did not react and were killed" if silent else ""
    return f"rank {failure.rank} failed{where}: {failure.message}{more}"


def _last_words(folder: Path) -> str:
    lines = [line for path in sorted(folder.glob("logs/**/stderr.log")) for line in path.read_text(errors="replace").splitlines()]
    return "; ".join(lines[-3:])
