"""Performing a Plan on real processes: one worker per rank, watched, and merged into one Outcome.

run --> prepare_checked, then perform_in_folder --> run_workers (backend.launch.attempts)
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from backend.acts.act import Batches, check_batch
from backend.acts.step_inputs import StepNumbers, check_numbers, no_numbers
from backend.checkpoint.leaving import state_memory
from backend.checkpoint.owner import Owner, forget
from backend.checkpoint.saver import SaveRequest
from backend.devices.cores import Waiting
from backend.devices.options import DEFAULT_DEVICE_OPTIONS, DeviceOptions
from backend.initial.values import Values
from backend.launch.attempts import run_workers
from backend.launch.on_devices import check_devices, say_not_captured
from backend.memory.blocks import check_state
from backend.memory.options import DEFAULT_MEMORY, MemoryOptions
from backend.ops.callables import say_not_compiled
from backend.ops.inductor import Kernels, check_kernels
from backend.run_folder.files import Options, prepare
from backend.run_folder.merge import merge
from backend.run_folder.outcome import Outcome
from planner.ir.actors.verify import verify
from planner.ir.errors import InvalidProgram
from planner.ir.plan import Plan
from planner.ir.traces.held import StepSelection
from planner.lower.data_actors.saving import with_saving, without_saving

__all__ = ["WORKER", "perform_in_folder", "prepare_checked", "run", "run_folder"]

WORKER = "backend.worker.process"


class Oversubscribed(UserWarning):
    """A run has more ranks than this host has cores."""


def run(
    plan: Plan,
    state: Mapping[str, Tensor] | Values | Callable[[], Mapping[str, Tensor] | Values],
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
    devices: Mapping[int, str] | None = None,
    device_options: DeviceOptions = DEFAULT_DEVICE_OPTIONS,
    trace_steps: str = "",
    keep_states: bool = True,
    waiting: Waiting = Waiting.AUTO,
    kernels: Kernels = Kernels.EAGER,
) -> Outcome:
    """Perform ``steps`` steps of the Plan on plan.num_ranks processes of this host.

    Args:
        state: logical tensors by the names of plan.states; or a function that is called once for them, so that their memory is free when the
            workers have them, unless the caller keeps them.
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
        devices: rank -> name of its device, ``cpu``, ``cuda:0`` (backend.placing.places); None: all on CPUs.
        device_options: of devices with streams.
        trace_steps: of which steps the trace holds the acts, ``first:20,last:20,every:1000``; the workers then keep no others.  Empty: of all.
        waiting: how workers wait for each other (backend.devices.cores).
        kernels: how fragments are performed: op by op, or as code that inductor compiles before the first step (backend.ops.inductor).
        keep_states: the outcome has the final states, read from the checkpoint, or from what the run left, when they are asked for; False: it has none.

    Returns:
        trace (source ``run``, performer ``gloo``), losses per step, final states and gradients as logical tensors.

    Raises:
        WorkerFailed: a worker died, raised or hung; the message names its rank and what it was doing.  No process is left.
        InvalidPlan, DeadLock, OutOfMemory, InvalidProgram, Unsupported: refused before anything starts.
    """
    verify(plan)
    performed = plan if checkpoint is None else with_saving(plan)
    on_devices = check_devices(performed, devices or {}, device_options, memory)
    check_kernels(kernels, set(on_devices) or {"cpu"})
    run_id = uuid.uuid4().hex[:12]
    options = Options(
        run_id=run_id,
        steps=steps,
        gradients=gradients,
        timeout_s=timeout_s,
        allow_nan=allow_nan,
        memory=memory,
        first_step=first_step,
        checkpoint="" if checkpoint is None else os.path.abspath(checkpoint.folder),
        owner=Owner.here(run_id),
        save_every=0 if checkpoint is None else checkpoint.every,
        keep=0 if checkpoint is None else checkpoint.keep,
        saves_when_interrupted=checkpoint is not None and checkpoint.when_interrupted,
        devices=on_devices,
        device_options=device_options,
        trace_steps=trace_steps,
        begins_once=max_restarts == 0,
        keeps_state=keep_states,
        waiting=waiting,
        kernels=kernels,
    )
    if trace_steps:
        StepSelection.parse(trace_steps).check(steps)
    in_memory = keep_states and checkpoint is None and not on_devices and memory.shared_memory
    with run_folder(workdir, options.run_id) as folder, state_memory(performed, in_memory) as path:
        options = replace(options, state_memory=path)
        prepare_checked(folder, performed, state() if callable(state) else state, batches, options, numbers)
        perform_in_folder(folder, performed, options, on_progress, max_restarts)
        merged = merge(performed, folder, options)
    say_not_captured(merged.not_captured)
    say_not_compiled(merged.not_compiled)
    outcome = merged.outcome
    return replace(outcome, trace=without_saving(plan, outcome.trace))


def prepare_checked(
    folder: Path, plan: Plan, state: Mapping[str, Tensor] | Values, batches: Batches, options: Options, numbers: StepNumbers
) -> None:
    """Check the inputs and write the run's files.  Raises as ``run`` does."""
    if options.steps < 1:
        raise InvalidProgram(f"steps = {options.steps}; at least 1 step is needed")
    check_state(plan, state)
    check_batch(plan, batches)
    check_numbers(plan, numbers, range(options.first_step, options.first_step + options.steps))
    warn_of_cores(plan)
    prepare(folder, plan, state, batches, options, numbers)


def perform_in_folder(
    folder: Path,
    plan: Plan,
    options: Options,
    on_progress: Callable[[int, float], None] | None = None,
    max_restarts: int = 0,
) -> None:
    """Launch the workers of a run whose files are in ``folder``, and wait for their end.  Raises as ``run`` does."""
    try:
        run_workers(folder, WORKER, plan.num_ranks, options, on_progress, max_restarts=max_restarts)
    finally:
        if options.checkpoint:
            forget(Path(options.checkpoint), options.owner)


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
