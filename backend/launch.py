"""Performing a Plan on real processes: one worker per rank, watched, and merged into one Outcome.

The workers come from the nursery (backend.workers); with restarts, or several hosts, from torchrun's agent (backend.elastic).
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor
from torch._C._distributed_c10d import TCPStore

from backend.blocks import check_state
from backend.body import Batches, source_parts
from backend.diagnose import diagnose
from backend.merge import merge
from backend.outcome import Outcome
from backend.progress import Progress
from backend.record import Options, prepare
from backend.workers import Workers, nursery
from planner.ir.errors import InvalidProgram, WorkerFailed
from planner.ir.plan import Plan, TaskKind
from planner.ir.verify import verify

__all__ = ["launch", "run", "run_folder", "start"]

GRACE_S = 2.0
"""How long the others may take to tell their story once one worker has failed."""
TICK_S = 0.02
SILENCE_S = 10.0
"""The least time after which a launcher that is stopped, or a nursery, counts as hung."""


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
        on_progress: called with (step, loss) while the run goes on.
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
    launch(folder, "backend.worker", plan.num_ranks, options, on_progress)


@contextmanager
def run_folder(workdir: str | Path | None, run_id: str) -> Iterator[Path]:
    """A folder for the run's files, removed whatever happens."""
    folder = Path(tempfile.mkdtemp(prefix=f"regista-{run_id}-", dir=workdir))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def launch(folder: Path, module: str, ranks: int, options: Options, on_progress: Callable[[int, float], None] | None = None) -> None:
    """Run ``module.main(folder)`` in ``ranks`` workers of this host, and wait for their end.

    Raises:
        WorkerFailed: see ``run``.   KeyboardInterrupt, and whatever on_progress raises: after the workers were ended.
    """
    # The workers meet at a store of this process: its port is free for certain, and it ends with the run.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environments = [_place(rank, ranks, store.port) for rank in range(ranks)]
    home = nursery()
    workers = home.start(options.run_id, module, folder, environments, max(options.timeout_s, SILENCE_S), remove=True)
    progress = Progress(folder, on_progress)
    try:
        _watch(folder, workers, progress)
    finally:
        workers.kill()
        _await_end(workers)
        home.forget(options.run_id)
    dead = {rank: code for rank, code in workers.codes.items() if code != 0}
    if dead:
        raise WorkerFailed(diagnose(folder, dead, workers.killed))


def _place(rank: int, ranks: int, port: int) -> dict[str, str]:
    """What torchrun tells a worker."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "GLOO_SOCKET_IFNAME": "lo",
    }


def _watch(folder: Path, workers: Workers, progress: Progress) -> None:
    """Until all have ended; once one has failed, those that do not end by themselves are ended."""
    failed_at: float | None = None
    while not workers.wait(TICK_S):
        progress.forward()
        if failed_at is None and (any(workers.codes.values()) or any(folder.glob("rank*.error.json"))):
            failed_at = time.monotonic()
        if failed_at is not None and time.monotonic() > failed_at + GRACE_S:
            workers.kill()
    progress.forward()


def _await_end(workers: Workers) -> None:
    """Of killed workers, which takes as long as the kernel needs."""
    until = time.monotonic() + GRACE_S
    try:
        while not workers.wait(TICK_S) and time.monotonic() < until:
            pass
    except WorkerFailed:
        pass  # the nursery is gone, and its workers with it
