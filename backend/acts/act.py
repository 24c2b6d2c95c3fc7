"""What one rank does in one act, between the Actor's begin and end: read blocks, compute, write blocks.

Shared by the reference performer and the workers, so that both give a Plan the same meaning; they differ in when and where acts happen,
and in how boxing and transfers move data.

    gather(actor) -> values  -->  body (fragment | batch slices | loss)  -->  scatter(actor, results)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from backend.data.loader import Loader
from backend.layout.sharding import slice_part
from backend.memory.blocks import Blocks
from planner.ir.actors.actor import Actor
from planner.ir.errors import InvalidPlan, InvalidProgram
from planner.ir.plan import Plan, Task, TaskKind
from planner.lower.data_actors.loading import is_raw
from planner.lower.names import value_of

__all__ = [
    "Batches",
    "accumulate",
    "check_batch",
    "loss_position",
    "prepared_parts",
    "read_inputs",
    "source_parts",
    "write_outputs",
]

Batches = Callable[[int], tuple[Tensor, ...]]
"""Step number -> the global batch's tensors, in the order of plan.batch_inputs."""


def accumulate(held: Tensor | None, value: Tensor, acts_per_block: int) -> Tensor:
    """Mean of ``acts_per_block`` values, one at a time; the first call makes memory of its own, later ones add in place."""
    if held is None:
        return value.div(acts_per_block)
    return held.add_(value, alpha=1.0 / acts_per_block)


def read_inputs(actor: Actor, blocks: Blocks) -> list[Tensor]:
    """The values of ``task.reads``, in order."""
    values: list[Tensor] = []
    for access in actor.task.reads:
        port = actor.inputs.get(access.regst)
        # Constants and the task's own state have no port to count; they lie in slot 0.
        values.append(blocks.read(access.regst, port.slot if port else 0, access.index))
    return values


def write_outputs(
    actor: Actor, blocks: Blocks, results: Sequence[Tensor], add: Callable[[Tensor | None, Tensor, int], Tensor] = accumulate
) -> None:
    """Put the values of ``task.writes`` into the blocks that its ports point at; ports that fill a block with several acts accumulate."""
    for access, value in zip(actor.task.writes, results, strict=True):
        port = actor.outputs[access.regst]
        if port.acts_per_block > 1:
            held = blocks.peek(access.regst, port.slot, access.index) if port.phase else None
            value = add(held, value, port.acts_per_block)
        blocks.hold(access.regst, port.slot, access.index, value)


def loss_position(plan: Plan, task: Task) -> int:
    """Which of a FETCH task's reads is the loss.

    Raises:
        InvalidPlan: none is, or the task fetches more than one value per step.
    """
    positions = [n for n, a in enumerate(task.reads) if (a.regst, a.index) == (plan.loss.regst, plan.loss.index)]
    if not positions or task.acts != 1:
        raise InvalidPlan(f"fetch task {task.id} must read tensor {plan.loss.index} of regst {plan.loss.regst} (the loss) once per step")
    return positions[0]


def source_parts(plan: Plan, task: Task, rank: int, act: int, batches: Batches) -> list[Tensor]:
    """What a SOURCE writes in one act: this rank's part of a micro-batch of the step's global batch.

    Raises:
        InvalidPlan: a written value is none of the Plan's batch inputs.
        InvalidProgram: the batch has another number of tensors, another shape or dtype than the Plan was made for.
    """
    if isinstance(batches, Loader):
        return batches.source(plan, task, rank, act)
    _refuse_raw(task, [access.name for access in task.writes])
    step, micro_batch = divmod(act, task.acts)
    batch = batches(step)
    arguments = [entry for entry in plan.batch_inputs if entry.whole_of is None]
    if len(batch) != len(arguments):
        raise InvalidProgram(f"the batch of step {step} has {len(batch)} tensors, the plan was made for {len(arguments)}")
    placement = plan.placement[task.placement]
    by_name = {entry.name: tensor for entry, tensor in zip(arguments, batch, strict=True)}
    by_value = {entry.value: (entry, by_name[entry.whole_of or entry.name]) for entry in plan.batch_inputs}
    parts: list[Tensor] = []
    for access in task.writes:
        value = access.name if access.name in by_value else value_of(access.name)
        if value not in by_value:
            raise InvalidPlan(f"source task {task.id} writes {access.name}, but the batch inputs are {sorted(by_value)}")
        entry, tensor = by_value[value]
        placed = plan.regst[access.regst].tensors[access.index]
        if entry.batch_dim is not None:
            size = placed.shape[entry.batch_dim]
            if tensor.shape[entry.batch_dim] != size * task.acts:
                raise InvalidProgram(
                    f"batch input {entry.name} has {tensor.shape[entry.batch_dim]} samples, the plan was made for {size * task.acts} "
                    f"({task.acts} micro-batches of {size})"
                )
            tensor = tensor.narrow(entry.batch_dim, micro_batch * size, size)
        if tuple(tensor.shape) != placed.shape or str(tensor.dtype) != f"torch.{placed.dtype.value}":
            raise InvalidProgram(
                f"batch input {entry.name}: a micro-batch has shape {tuple(tensor.shape)} {tensor.dtype}, the plan was made for "
                f"{placed.shape} {placed.dtype.value}"
            )
        parts.append(slice_part(tensor, placed.sbp, placement.mesh, placement.coordinate(rank)))
    return parts


def check_batch(plan: Plan, batches: Batches) -> None:
    """Raises InvalidProgram: the batch of step 0 is not what the Plan was made for."""
    if isinstance(batches, Loader):
        return  # it has looked at shapes when it met the Plan; reading is the workers' work, and storage may be slow
    for task in plan.tasks:
        if task.kind is TaskKind.SOURCE:
            source_parts(plan, task, plan.ranks_of(task)[0], 0, batches)


def prepared_parts(plan: Plan, task: Task, rank: int, values: Sequence[Tensor], batches: Batches) -> list[Tensor]:
    """What a PREPARE writes in one act: this rank's parts of the batch inputs, made of the raw tensors ``values``.

    Raises:
        InvalidProgram: batches come from Python, which gives no raw data.   InvalidFile: what was read cannot be understood.
    """
    if isinstance(batches, Loader):
        return batches.prepare(plan, task, rank, values)
    _refuse_raw(task, [access.name for access in task.reads])
    raise InvalidPlan(f"task {task.id} prepares finished tensors; leave PREPARE out of this chain")


def _refuse_raw(task: Task, names: Sequence[str]) -> None:
    raw_names = [name for name in names if is_raw(name)]
    if raw_names:
        raise InvalidProgram(
            f"task {task.id} loads {raw_names}, which only a reader gives (backend.data); say where the data lies with --data, or make a plan "
            f"without --data to feed it from Python"
        )
