"""Performing a Plan on real processes: one worker per rank, watched, and merged into one Outcome.

run --> run_in_folder --> run_workers        workers forked by the fork server (backend.launch.workers)
                      --> launch_elastic     with restarts, or several hosts: workers of torchrun's agent (backend.launch.elastic)
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
from dataclasses import replace
from pathlib import Path

from torch import Tensor
from torch._C._distributed_c10d import TCPStore

from backend.acts.act import Batches, check_batch
from backend.acts.step_inputs import StepNumbers, check_numbers, no_numbers
from backend.checkpoint.folder import steps_of
from backend.checkpoint.saver import SaveRequest
from backend.checkpoint.stopping import ask_to_stop, stopped_at
from backend.initial.values import Values
from backend.launch.diagnose import diagnose
from backend.launch.elastic import GRACE_S, AgentOptions, launch_elastic
from backend.launch.workers import WorkerGroup, fork_server_client
from backend.memory.blocks import check_state
from backend.memory.options import DEFAULT_MEMORY, MemoryOptions
from backend.monitor.progress import Progress
from backend.run_folder.files import Options, prepare
from backend.run_folder.merge import merge
from backend.run_folder.outcome import Outcome
from planner.ir.actors.verify import verify
from planner.ir.errors import InvalidProgram, WorkerFailed
from planner.ir.plan import Plan
from planner.lower.data_actors.saving import with_saving, without_saving

__all__ = ["run", "run_folder", "run_in_folder", "run_workers"]

WORKER = "backend.worker.process"
TICK_S = 0.02
SILENCE_S = 10.0
"""The least time after which a launcher that is stopped, or a fork server, counts as hung."""


class Oversubscribed(UserWarning):
    """A run has more ranks than this host has cores."""


def run(
    plan: Plan,
    state: Mapping[str, Tensor] | Values,
    batches: Batches,
    steps: int,
    *,
    gradients: bool = False,
    timeout_s: float = 30.0,
    on_progress: Callable[[int, float], None] | None = None,
    workdir: str | Path | None = None,
    allow_nan: bool = False,
    first_step: int = 0,
    checkpoint: SaveRequest | None = None,
    max_restarts: int = 0,
    memory: MemoryOptions = DEFAULT_MEMORY,
    numbers: StepNumbers = no_numbers,
) -> Outcome:
    """Perform ``steps`` steps of the Plan on plan.num_ranks processes of this host.

    Args:
        state: logical tensors by the names of plan.states.
        batches: step -> the global batch's tensors; asked for all steps before the start.
        gradients: also return the last step's mean gradients.
        timeout_s: when no act ends and no message comes for so long, the run is given up; also the limit of a single act.
        on_progress: called with (step, loss) while the run goes on.
        workdir: where the run's temporary folder is made (default: the system's); it is removed afterwards.
        allow_nan: go on when the loss is no finite number.
        first_step: steps that were done before; ``state`` is the state after them, and the first batch is that of step ``first_step``.
        checkpoint: where and how often to save; the state after the last step is always saved.  A Plan without SAVE tasks is performed
            with them, and the trace leaves them out.
        max_restarts: after a fault start all workers anew, so often at most, from the newest checkpoint (without one: from ``state``). The
            outcome is then that of the last attempt; its losses begin where that one began.
        memory: how workers hold their memory; the defaults are right for training.
        numbers: step -> what its STEP_INPUT tasks write (learning rates), of Plans that have such; asked for all steps before the start.

    Returns:
        trace (source ``run``, performer ``gloo``), losses per step, final states and gradients as logical tensors.

    Raises:
        WorkerFailed: a worker died, raised or hung; the message names its rank and what it was doing.  No process is left.
        InvalidPlan, DeadLock, OutOfMemory, InvalidProgram: refused before anything starts.
    """
    verify(plan)
    performed = plan if checkpoint is None else with_saving(plan)
    options = Options(
        run_id=uuid.uuid4().hex[:12],
        steps=steps,
        gradients=gradients,
        timeout_s=timeout_s,
        allow_nan=allow_nan,
        memory=memory,
        first_step=first_step,
        checkpoint="" if checkpoint is None else os.path.abspath(checkpoint.folder),
        save_every=0 if checkpoint is None else checkpoint.every,
        keep=0 if checkpoint is None else checkpoint.keep,
        saves_when_interrupted=checkpoint is not None and checkpoint.when_interrupted,
    )
    with run_folder(workdir, options.run_id) as folder:
        agent = AgentOptions(max_restarts=max_restarts) if max_restarts else None
        run_in_folder(folder, performed, state, batches, options, on_progress, agent, numbers)
        outcome = merge(performed, folder, options).outcome
    return replace(outcome, trace=without_saving(plan, outcome.trace))


def run_in_folder(
    folder: Path,
    plan: Plan,
    state: Mapping[str, Tensor] | Values,
    batches: Batches,
    options: Options,
    on_progress: Callable[[int, float], None] | None = None,
    agent: AgentOptions | None = None,
    numbers: StepNumbers = no_numbers,
) -> None:
    """Check the inputs, write the run's files, launch its workers and wait for their end.  Raises as ``run`` does."""
    if options.steps < 1:
        raise InvalidProgram(f"steps = {options.steps}; at least 1 step is needed")
    check_state(plan, state)
    check_batch(plan, batches)
    check_numbers(plan, numbers, range(options.first_step, options.first_step + options.steps))
    warn_of_cores(plan)
    prepare(folder, plan, state, batches, options, numbers)
    if agent is not None:
        launch_elastic(folder, WORKER, plan.num_ranks, options, agent, on_progress)
    else:
        run_workers(folder, WORKER, plan.num_ranks, options, on_progress)


def warn_of_cores(plan: Plan) -> None:
    cores = len(os.sched_getaffinity(0))
    if plan.num_ranks > cores:
        warnings.warn(
            f"{plan.num_ranks} ranks on {cores} cores: times carry scheduler quanta of 4 ms; only results stay right",
            Oversubscribed,
            stacklevel=4,
        )


@contextmanager
def run_folder(workdir: str | Path | None, run_id: str) -> Iterator[Path]:
    """A temporary folder for the run's files, which is removed whatever happens."""
    folder = Path(tempfile.mkdtemp(prefix=f"regista-{run_id}-", dir=workdir))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_workers(
    folder: Path,
    module: str,
    ranks: int,
    options: Options,
    on_progress: Callable[[int, float], None] | None = None,
    on_start: Callable[[WorkerGroup], None] | None = None,
) -> None:
    """Run ``module.main(folder)`` in ``ranks`` workers of this host, and wait for their end.

    Args:
        on_start: called with the workers once they are started, so that another thread may end them.

    Raises:
        WorkerFailed: see ``run``.   KeyboardInterrupt, and whatever the caller's functions raise: after the workers were ended.
    """
    # The workers meet at a store of this process: its port is free for certain, and it ends with the run.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environments = [_worker_environment(rank, ranks, store.port) for rank in range(ranks)]
    limit_s = max(options.timeout_s, SILENCE_S)
    client = fork_server_client()
    group = client.start(options.run_id, module, folder, environments, limit_s)
    try:
        if on_start is not None:
            on_start(group)
        progress = Progress(folder, on_progress)
        try:
            _watch(folder, group, progress)
        except KeyboardInterrupt:
            if options.saves_when_interrupted:
                _await_save(folder, group, progress, Path(options.checkpoint))
            raise
    finally:
        group.kill()
        _await_end(group)
        client.forget(options.run_id)
    if group.silent_s is not None:
        raise WorkerFailed(
            f"this process did not run for {group.silent_s:.0f} s (was it stopped?), so its workers were ended; the limit is {limit_s:g} s"
        )
    failed = {rank: code for rank, code in group.exit_codes.items() if code != 0}
    if failed:
        raise WorkerFailed(diagnose(folder, failed, group.killed))


def _worker_environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """The variables by which torchrun tells a worker its place."""
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


def _watch(folder: Path, group: WorkerGroup, progress: Progress) -> None:
    """Forward progress until all workers have ended; once one has failed, kill those that do not end by themselves."""
    failed_at_s: float | None = None
    while not group.wait(TICK_S):
        progress.forward()
        if failed_at_s is None and (any(group.exit_codes.values()) or any(folder.glob("rank*.error.json"))):
            failed_at_s = time.monotonic()
        if failed_at_s is not None and time.monotonic() > failed_at_s + GRACE_S:
            group.kill()
    progress.forward()


def _await_save(folder: Path, group: WorkerGroup, progress: Progress, checkpoints: Path) -> None:
    """Wait until the workers have saved, have ended, or one has failed.  Raises KeyboardInterrupt: the user has waited enough."""
    ask_to_stop(folder)
    while not group.wait(TICK_S) and not any(group.exit_codes.values()):
        progress.forward()
        at = stopped_at(folder)
        if at is not None and at <= max(steps_of(checkpoints), default=-1):
            return


def _await_end(group: WorkerGroup) -> None:
    """Wait for killed workers, which end as soon as the kernel gets to it."""
    until_s = time.monotonic() + GRACE_S
    try:
        while not group.wait(TICK_S) and time.monotonic() < until_s:
            pass
    except WorkerFailed:
        pass  # the fork server is gone and its workers with it, or they were never started
