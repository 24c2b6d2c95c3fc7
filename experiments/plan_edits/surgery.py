"""Changes of a Plan that keep its ports, rates and orders consistent, so that an edit meets the laws of the token game."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from planner.ir.errors import RegistaError
from planner.ir.graph import Op
from planner.ir.plan import Access, Fragment, PlacedTensor, Plan, Port, Regst, RegstKind, Task
from planner.ir.tensor import TensorType

__all__ = [
    "blocks_per_step",
    "fragments",
    "local_type",
    "placed",
    "redirected",
    "rewired",
    "same_type_elsewhere",
    "with_fragment",
    "with_regsts",
    "with_tasks",
    "with_tensor",
    "without_task",
]

Place = tuple[str, int]
"""(Regst, index of the tensor in it)"""


def with_tasks(plan: Plan, *tasks: Task) -> Plan:
    """The Plan with these tasks in the place of those of the same ids."""
    new = {task.id: task for task in tasks}
    return replace(plan, tasks=tuple(new.get(task.id, task) for task in plan.tasks))


def with_regsts(plan: Plan, *regsts: Regst) -> Plan:
    new = {regst.id: regst for regst in regsts}
    return replace(plan, regsts=tuple(new.get(regst.id, regst) for regst in plan.regsts))


def with_tensor(plan: Plan, place: Place, tensor: PlacedTensor) -> Plan:
    """The Plan with another description of one tensor of a Regst."""
    regst = plan.regst[place[0]]
    tensors = (*regst.tensors[: place[1]], tensor, *regst.tensors[place[1] + 1 :])
    return with_regsts(plan, replace(regst, tensors=tensors))


def with_fragment(plan: Plan, task: Task, ops: Iterable[Op]) -> Plan:
    """The Plan whose task performs these ops."""
    assert isinstance(task.body, Fragment)
    return with_tasks(plan, replace(task, body=replace(task.body, ops=tuple(ops))))


def fragments(plan: Plan) -> Iterator[tuple[Task, Fragment]]:
    for task in plan.tasks:
        if isinstance(task.body, Fragment):
            yield task, task.body


def placed(plan: Plan, access: Access) -> PlacedTensor:
    return plan.regst[access.regst].tensors[access.index]


def local_type(plan: Plan, place: Place) -> TensorType | None:
    """The type of the part on the first rank; None where the layout cannot be."""
    regst = plan.regst[place[0]]
    placement = plan.placement[regst.placement]
    try:
        return regst.tensors[place[1]].local_type(placement, placement.ranks[0])
    except RegistaError:
        return None


def blocks_per_step(plan: Plan, regst: str) -> int | None:
    """Blocks that are filled in a step; None: a constant, which is always there."""
    producer = plan.regst[regst].producer
    if producer is None:
        return None
    task = plan.task[producer]
    return task.acts // next(port.acts_per_block for port in task.produces if port.regst == regst)


def rewired(plan: Plan, task: Task, reads: Sequence[Access]) -> Task | None:
    """The task with these reads and the ports that they need; None where no rate fits."""
    own = {port.regst for port in task.produces if plan.regst[port.regst].kind is RegstKind.STATE}
    controls = [port for port in task.consumes if not plan.regst[port.regst].tensors]
    kept = {port.regst: port for port in task.consumes}
    ports: list[Port] = []
    for regst in dict.fromkeys(access.regst for access in reads):
        if regst in own:
            continue
        if regst in kept:
            ports.append(kept[regst])
            continue
        blocks = blocks_per_step(plan, regst)
        if blocks is not None and (blocks > task.acts or task.acts % blocks):
            return None
        ports.append(Port(regst=regst, acts_per_block=1 if blocks is None else task.acts // blocks))
    return replace(task, reads=tuple(reads), consumes=(*ports, *controls))


def redirected(plan: Plan, where: Mapping[Place, Place]) -> Plan | None:
    """The Plan whose tasks, loss, gradients, outputs and states take tensors from other places; None where no rate fits."""

    def moved(access: Access) -> Access:
        regst, index = where.get((access.regst, access.index), (access.regst, access.index))
        return replace(access, regst=regst, index=index)

    tasks = []
    for task in plan.tasks:
        if not any((access.regst, access.index) in where for access in task.reads):
            continue
        new = rewired(plan, task, [moved(access) for access in task.reads])
        if new is None:
            return None
        tasks.append(new)
    outputs = []
    for output in plan.outputs:
        regst, index = where.get((output.regst, output.index), (output.regst, output.index))
        outputs.append(replace(output, regst=regst, index=index))
    gradients = {name: moved(access) for name, access in plan.gradients.items()}
    return replace(with_tasks(plan, *tasks), loss=moved(plan.loss), gradients=gradients, outputs=tuple(outputs))


def without_task(plan: Plan, task: Task) -> Plan:
    """The Plan without a task and the data that it makes; state that it wrote stays as it is."""
    made = {port.regst for port in task.produces}
    regsts = [
        replace(regst, producer=None) if regst.id in made else regst
        for regst in plan.regsts
        if regst.id not in made or regst.kind is RegstKind.STATE
    ]
    constant = {regst.id for regst in regsts if regst.id in made}
    gone = made - constant

    def ports(of: Sequence[Port]) -> tuple[Port, ...]:
        return tuple(replace(port, acts_per_block=1) if port.regst in constant else port for port in of if port.regst not in gone)

    tasks = [replace(other, consumes=ports(other.consumes)) for other in plan.tasks if other.id != task.id]
    used = {other.stream for other in tasks}
    streams = [replace(stream, order=tuple(i for i in stream.order if i != task.id)) for stream in plan.streams if stream.id in used]
    return replace(plan, tasks=tuple(tasks), regsts=tuple(regsts), streams=tuple(streams))


def same_type_elsewhere(plan: Plan, task: Task, access: Access, allowed: Callable[[Regst], bool] = lambda regst: True) -> list[Place]:
    """Tensors on the task's placement whose parts have the type of one that it reads, and whose rates fit the task."""
    wanted = local_type(plan, (access.regst, access.index))
    made = {port.regst for port in task.produces if plan.regst[port.regst].kind is RegstKind.DATA}
    found = []
    for regst in plan.regsts:
        if regst.placement != task.placement or regst.id in made or not allowed(regst):
            continue
        blocks = blocks_per_step(plan, regst.id)
        if blocks is not None and (blocks > task.acts or task.acts % blocks):
            continue
        for index in range(len(regst.tensors)):
            place = (regst.id, index)
            if place != (access.regst, access.index) and local_type(plan, place) == wanted:
                found.append(place)
    return found
