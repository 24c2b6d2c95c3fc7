"""How torch would be told of a Plan's split, or why it cannot be.

way        when                                                                         torch's own
REPLICATED one stage, every parameter whole on all devices, every input cut             DistributedDataParallel (ZeRO 1: ZeroRedundancyOptimizer)
SHARDED    the same with ZeRO 2 or 3                                                    fully_shard (2: parameters stay gathered for backward)
PLACED     one stage, parameters or inputs cut in any way along the axes of the mesh    DTensor
STAGES     several stages; inside of each whole parameters and cut inputs               pipelining (and an all-reduce of gradients)

Only layouts of parameters and inputs are handed over: between them torch finds its own layouts, which compute the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum

from planner.frontend import Program
from planner.ir.errors import Unsupported
from planner.ir.graph import InputKind, Mode
from planner.ir.plan import Plan, TaskKind
from planner.ir.sbp import Broadcast, NdSbp, Split
from planner.schedule import Schedule, schedule_of
from regista.frameworks.stages import split_points

__all__ = ["TorchSplit", "Way", "torch_split"]

Dims = tuple[int | None, ...]
"""Per mesh axis the dim that it cuts; None: the axis repeats the tensor."""

_RULES = ("SGD", "AdamW")
_SCHEDULES = {Schedule.ONE_F_ONE_B: "Schedule1F1B", Schedule.GPIPE: "ScheduleGPipe"}
_NOT_CARRIED = ("precision", "grad_dtype", "clip_norm", "clip_value", "ema", "batch_norm", "lr_schedule", "loss_scale")


class Way(Enum):
    """Which of torch's means carries the split."""

    REPLICATED = "DistributedDataParallel"
    SHARDED = "fully_shard"
    PLACED = "DTensor"
    STAGES = "pipelining"


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchSplit:
    """What the file says.

    mesh: devices per axis, inside of each stage.   parameters, inputs: per tensor, per axis the dim that is cut.   batch_dims: per input.
    zero: ZeRO level.   split_points: modules that begin the next stage.   schedule: torch's class.   optimizer: its class and its arguments.
    """

    plan_id: str
    model: str
    way: Way
    stages: int
    mesh: tuple[int, ...]
    micro_batches: int
    parameters: Mapping[str, Dims]
    inputs: tuple[Dims, ...]
    batch_dims: Dims
    zero: int
    split_points: tuple[str, ...]
    schedule: str
    optimizer: str
    options: Mapping[str, object]
    targets: int


def torch_split(plan: Plan, program: Program) -> TorchSplit:
    """The Plan's split in torch's words.

    Raises:
        Unsupported: what torch has no word for, or what the file does not carry, by name.
    """
    _check_step(plan, program)
    meshes = {placement.mesh for placement in plan.placements}
    if len(meshes) > 1:
        raise Unsupported(
            f"plan {plan.plan_id} has stages of meshes {sorted(meshes)}; torch's pipelining is written for stages of one mesh"
        )
    (mesh,) = meshes
    stages, zero = len(plan.placements), int(plan.options.get("zero") or 0)
    parameters = {
        state.name: _dims(plan.regst[state.regst].tensors[state.index].sbp, f"parameter {state.name}")
        for state in plan.states
        if state.kind is InputKind.PARAMETER and state.copy_of is None
    }
    inputs = _inputs(plan, len(mesh))
    optimizer, options = _optimizer(program)
    way = _way(plan, program, parameters, inputs, zero)
    return TorchSplit(
        plan_id=plan.plan_id,
        model=plan.model,
        way=way,
        stages=stages,
        mesh=mesh,
        micro_batches=plan.micro_batches,
        parameters=parameters,
        inputs=inputs,
        batch_dims=tuple(entry.batch_dim for entry in plan.batch_inputs),
        zero=zero,
        split_points=split_points(plan, program.module) if way is Way.STAGES else (),
        schedule=_schedule(plan) if way is Way.STAGES else "",
        optimizer=optimizer,
        options=options,
        targets=program.num_targets,
    )


def _check_step(plan: Plan, program: Program) -> None:
    if plan.mode is not Mode.TRAIN:
        raise Unsupported(f"plan {plan.plan_id} is an evaluation; the file is of a training step, so export a training plan")
    carried = [option for option in _NOT_CARRIED if plan.options.get(option)]
    if carried:
        raise Unsupported(
            f"plan {plan.plan_id} has {', '.join(carried)}, which the file does not carry; plan without, and add them to the file"
        )
    if any(entry.whole_of is not None for entry in plan.batch_inputs):
        raise Unsupported(
            f"plan {plan.plan_id} divides its loss by a count of the whole batch, and torch's means by the count of each part; "
            "give the loss as a plain mean over the batch"
        )
    if len(program.groups) != 1:
        raise Unsupported(f"the program trains in {len(program.groups)} parameter groups; the file is written for one")


def _way(plan: Plan, program: Program, parameters: Mapping[str, Dims], inputs: tuple[Dims, ...], zero: int) -> Way:
    cut = sorted(name for name, dims in parameters.items() if any(dim is not None for dim in dims))
    batch_only = all(dims == (entry.batch_dim,) for dims, entry in zip(inputs, plan.batch_inputs, strict=True))
    stages, alone = len(plan.placements), all(size == 1 for size in plan.placements[0].mesh)
    if stages > 1:
        if program.num_targets != 1:
            raise Unsupported(
                f"torch's pipelining takes the loss as a function of output and one target; the program has {program.num_targets} targets"
            )
        if zero or cut or not (batch_only or alone):
            what = f"ZeRO {zero}" if zero else f"{cut[0]} is cut" if cut else f"inputs are cut by {inputs}"
            raise Unsupported(
                f"plan {plan.plan_id}: {what} inside of stages; the file has stages of whole parameters and cut batches alone"
            )
        return Way.STAGES
    if zero in (2, 3) and batch_only:
        return Way.SHARDED
    if zero == 1 and batch_only and not cut:
        return Way.REPLICATED
    if zero:
        raise Unsupported(f"plan {plan.plan_id}: ZeRO {zero} beside other axes than data; torch's DTensor keeps moments as parameters lie")
    return Way.REPLICATED if batch_only and not cut else Way.PLACED


def _inputs(plan: Plan, axes: int) -> tuple[Dims, ...]:
    """Per batch input its most divided layout among those that are loaded; not loaded anywhere: whole."""
    layouts: dict[str, list[Dims]] = {entry.value: [] for entry in plan.batch_inputs}
    for task in plan.tasks:
        if task.kind is TaskKind.SOURCE:
            for access in task.writes:
                value = access.name.partition("@")[0]
                layouts[value].append(_dims(plan.regst[access.regst].tensors[access.index].sbp, f"input {value}"))
    whole = (None,) * axes
    return tuple(
        max(layouts[entry.value], key=lambda dims: sum(dim is not None for dim in dims), default=whole) for entry in plan.batch_inputs
    )


def _dims(sbp: NdSbp, what: str) -> Dims:
    dims: list[int | None] = []
    for entry in sbp.entries:
        if not isinstance(entry, Broadcast | Split):
            raise Unsupported(f"{what} lies as {sbp}: torch keeps no partial sums between steps; pin it to B or S")
        dims.append(entry.dim if isinstance(entry, Split) else None)
    return tuple(dims)


def _optimizer(program: Program) -> tuple[str, dict[str, object]]:
    rule = program.optimizer
    name = type(rule).__name__
    if name not in _RULES:
        raise Unsupported(f"the optimizer is {name}; the file is written for {', '.join(_RULES)}")
    return name, {field.name: getattr(rule, field.name) for field in fields(rule) if field.init}


def _schedule(plan: Plan) -> str:
    schedule = schedule_of(plan)
    if schedule not in _SCHEDULES:
        raise Unsupported(f"schedule {schedule.value}: the file is written for {', '.join(s.value for s in _SCHEDULES)}")
    return _SCHEDULES[schedule]
