"""Performing a Plan with all its devices in one process: for acts of a millisecond or more, for debugging, and for several virtual devices
on one GPU.  Threads share Python's interpreter lock, so shorter acts of different ranks delay each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext

from torch import Tensor

from backend.acts.act import Batches, check_batch
from backend.acts.step_inputs import StepNumbers, check_numbers, no_numbers
from backend.devices.device import CpuDevice, Device
from backend.devices.options import DEFAULT_DEVICE_OPTIONS, DeviceOptions, check_options, numerics
from backend.initial.values import Values
from backend.inprocess.body import ProcessBody
from backend.inprocess.engine import Engine
from backend.inprocess.fragments import fragments_of
from backend.inprocess.registers import make_blocks
from backend.memory.blocks import check_state, state_parts
from backend.memory.options import DEFAULT_MEMORY, MemoryOptions
from backend.ops.callables import say_not_compiled
from backend.ops.inductor import Kernels, check_kernels
from backend.placing import check_room, owned_bytes
from backend.run_folder.merge import agreed, hardware
from backend.run_folder.outcome import Outcome, assemble_here
from planner.ir.actors.verify import verify
from planner.ir.errors import InvalidProgram
from planner.ir.plan import Plan

__all__ = ["run"]


def run(
    plan: Plan,
    state: Mapping[str, Tensor] | Values,
    batches: Batches,
    steps: int,
    *,
    gradients: bool = False,
    timeout_s: float = 30.0,
    on_progress: Callable[[int, float], None] | None = None,
    devices: Mapping[int, Device] | None = None,
    options: DeviceOptions = DEFAULT_DEVICE_OPTIONS,
    allow_nan: bool = False,
    alone: bool = False,
    memory: MemoryOptions = DEFAULT_MEMORY,
    numbers: StepNumbers = no_numbers,
    kernels: Kernels = Kernels.EAGER,
) -> Outcome:
    """Perform ``steps`` steps of the Plan in this process, every rank on its device.

    Args:
        state: logical tensors by the names of plan.states; not written to.
        batches: step -> the global batch's tensors; called on several threads, several times per step.
        gradients: also return the last step's mean gradients.
        timeout_s: when no act ends for so long, the run is given up; also the limit of a single act.
        on_progress: called with (step, loss) on the calling thread while the run goes on.
        devices: rank -> its device (several ranks may share a GPU); None: all on the CPU.  They are the caller's to close.
        options: of devices with lanes: graphs, look-ahead, TF32, determinism.
        allow_nan: go on when the loss is nan or infinite.
        alone: one act at a time in the whole process, so that nothing else adds to its time; predictions are made of such times.
        memory: how registers are held (backend.inprocess.registers.make_blocks).
        numbers: step -> what its STEP_INPUT tasks write, of Plans that have such.
        kernels: how fragments are performed (backend.ops.inductor).

    Returns:
        trace (source ``run``, performer ``threads``), losses per step, final states and gradients as logical tensors on the CPU.

    Raises:
        WorkerFailed: an act raised or hung; the message names rank, task and micro-batch.
        InvalidPlan, DeadLock, OutOfMemory, InvalidProgram, Unsupported: refused before anything starts.
    """
    verify(plan)
    if steps < 1:
        raise InvalidProgram(f"steps = {steps}; at least 1 step is needed")
    check_state(plan, state)
    check_batch(plan, batches)
    check_numbers(plan, numbers, range(steps))
    cpu = CpuDevice()
    placed = {rank: (devices or {}).get(rank, cpu) for rank in range(plan.num_ranks)}
    check_options(options, {device.name for device in placed.values()}, own_process=True)
    check_kernels(kernels, {device.name for device in placed.values()})
    owned = owned_bytes(plan, placed, memory)
    check_room(owned, placed)
    blocks = make_blocks(plan, placed, plan.gradients.values() if gradients else (), memory)
    for rank, of_rank in blocks.items():
        of_rank.fill_state(state_parts(plan, rank, state))
    fragments = {rank: fragments_of(plan, of_rank, placed[rank], memory, kernels) for rank, of_rank in blocks.items()}
    body = ProcessBody(plan, blocks, placed, batches, numbers, fragments, options=options, allow_nan=allow_nan)
    engine = Engine(plan, steps, body, blocks, placed, timeout_s=timeout_s, ahead=options.ahead, alone=alone)
    if on_progress is not None:
        body.on_loss = lambda step, loss: engine.progress.put((step, loss))
    for device in placed.values():
        device.synchronize()  # blocks were filled beside the lanes
    with numerics(options) if owned else nullcontext():
        engine.run(on_progress)
    for of_rank in blocks.values():
        of_rank.check()
    names = dict.fromkeys(f"{device.name}: {device.about()}" for device in placed.values())
    about = hardware(plan.num_ranks) | {
        "processes": "1",
        "registers": ", ".join(dict.fromkeys(of_rank.mode.value for of_rank in blocks.values())),
        "devices": "; ".join(f"rank {rank} {device.name}" for rank, device in placed.items()),
        "device facts": "; ".join(names),
    }
    about |= {f"memory of {name}": str(bytes_of) for name, bytes_of in owned.items()}
    if owned:
        used = [of_rank.workspace for of_rank in fragments.values()]
        about["workspace"] = f"{sum(w.allocated_bytes for w in used)} of {sum(w.planned_bytes for w in used)} B"
        about["numerics"] = f"tf32 {options.tf32}, deterministic {options.deterministic}".lower()
    about |= agreed({rank: of_rank.about for rank, of_rank in fragments.items()})
    say_not_compiled({task: why for of_rank in fragments.values() for task, why in of_rank.not_compiled.items()})
    if body.graphs is not None:
        about["graphs"] = body.graphs.about
    return assemble_here(
        plan,
        blocks,
        performer="threads",
        steps=steps,
        rows=engine.rows,
        losses=body.losses,
        outputs=body.outputs,
        gradients=gradients,
        about=about,
    )
