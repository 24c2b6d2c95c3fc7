"""What each mesh axis of a placement is for, in the words of the field, read off the layouts and the boxings.

data       gradients are summed along it (half of their bytes or more); where there are none, all inputs are split along their batch dim
context    gradients are summed along it, and no input is split along its batch dim: parts of a sequence go along it
tensor     neither, and parameters are split along it, or values inside of layers are: ranks meet along it
copies     none of these: devices along it compute alike
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum

from planner.ir.graph import InputKind, Op
from planner.ir.plan import Access, Boxing, Fragment, PlacedTensor, Placement, Plan
from planner.ir.sbp import Partial, Split
from planner.lower.names import value_of

__all__ = ["Role", "axis_roles", "zero_level"]

_MOST = 0.5
"""Share of the bytes from which on something counts as split."""


class Role(Enum):
    """Of a mesh axis; see the module's text."""

    DATA = "data"
    CONTEXT = "context"
    TENSOR = "tensor"
    COPIES = "copies"


def axis_roles(plan: Plan) -> Mapping[str, tuple[Role, ...]]:
    """Placement id -> a role per axis of its mesh."""
    return {placement.id: tuple(_role(plan, placement, axis) for axis in range(len(placement.mesh))) for placement in plan.placements}


def zero_level(plan: Plan, roles: Mapping[str, tuple[Role, ...]]) -> int:
    """3, 2, 1: parameters, gradients, optimizer state are split along the axes of data, half of their bytes or more; 0: none of them.

    [Rajbhandari et al. 2020, ZeRO, section 5]
    """
    parameters = _states(plan, InputKind.PARAMETER)
    gradients = [(plan.regst[access.regst].placement, plan.regst[access.regst].tensors[access.index]) for access in plan.gradients.values()]
    held = {3: parameters, 2: gradients, 1: _states(plan, InputKind.OPTIMIZER_STATE)}
    return next((level for level, tensors in held.items() if _share(plan, tensors, roles) >= _MOST), 0)


def _role(plan: Plan, placement: Placement, axis: int) -> Role:
    if placement.mesh[axis] == 1:
        return Role.COPIES
    if _sums_gradients(plan, placement, axis) if plan.gradients else _splits_inputs(plan, placement, axis):
        return Role.CONTEXT if plan.gradients and not _splits_any_input(plan, axis) else Role.DATA
    kinds = (InputKind.PARAMETER, InputKind.WORKING_COPY, InputKind.BUFFER)
    here = [tensor for kind in kinds for where, tensor in _states(plan, kind) if where == placement.id]
    meets = any(task.placement == placement.id and task.meeting_axis == axis for task in plan.tasks)
    return Role.TENSOR if meets or any(isinstance(tensor.sbp[axis], Split) for tensor in here) else Role.COPIES


def _sums_gradients(plan: Plan, placement: Placement, axis: int) -> bool:
    summed = {
        value_of(read.name)
        for task in plan.tasks
        if task.placement == placement.id
        and isinstance(task.body, Boxing)
        and isinstance(task.body.src[axis], Partial)
        and task.body.axis == axis
        for read in (plan.regst[access.regst].tensors[access.index] for access in task.reads)
    }
    summed |= {value_of(name) for op in _ops(plan, placement) if summed & set(map(value_of, op.inputs)) for name in op.outputs if name}
    made = [plan.regst[access.regst].tensors[access.index] for access in plan.gradients.values() if _where(plan, access) == placement.id]
    return _most(made, {tensor.name for tensor in made if value_of(tensor.name) in summed})


def _ops(plan: Plan, placement: Placement) -> Iterator[Op]:
    """What adds gradients of micro-batches up reads what was summed, under another name."""
    for task in plan.tasks:
        if task.placement == placement.id and isinstance(task.body, Fragment) and task.kind.is_backward:
            yield from task.body.ops


def _splits_inputs(plan: Plan, placement: Placement, axis: int) -> bool:
    dims = {entry.value: entry.batch_dim for entry in plan.batch_inputs if entry.batch_dim is not None and entry.whole_of is None}
    here = [tensor for regst in plan.regsts if regst.placement == placement.id for tensor in regst.tensors]
    inputs = [tensor for tensor in here if value_of(tensor.name) in dims]
    return bool(inputs) and all(tensor.sbp[axis] == Split(dims[value_of(tensor.name)] or 0) for tensor in inputs)


def _splits_any_input(plan: Plan, axis: int) -> bool:
    """Whether a batch input is split along its batch dim, on any stage; also where a Plan reads none."""
    dims = {entry.value: entry.batch_dim for entry in plan.batch_inputs if entry.batch_dim is not None and entry.whole_of is None}
    inputs = [tensor for regst in plan.regsts for tensor in regst.tensors if value_of(tensor.name) in dims]
    return not inputs or any(axis < len(tensor.sbp) and tensor.sbp[axis] == Split(dims[value_of(tensor.name)] or 0) for tensor in inputs)


def _where(plan: Plan, access: Access) -> str:
    return plan.regst[access.regst].placement


def _states(plan: Plan, kind: InputKind) -> list[tuple[str, PlacedTensor]]:
    """(placement id, tensor) of the states of a kind that have a dim."""
    found = [(plan.regst[s.regst].placement, plan.regst[s.regst].tensors[s.index]) for s in plan.states if s.kind is kind]
    return [(where, tensor) for where, tensor in found if tensor.shape]


def _share(plan: Plan, tensors: Iterable[tuple[str, PlacedTensor]], roles: Mapping[str, tuple[Role, ...]]) -> float:
    """Share of the bytes that is split along an axis of data."""
    of_all = split = 0
    for where, tensor in tensors:
        size = tensor.dtype.size_bytes * _elements(tensor)
        of_all += size
        axes = [axis for axis, role in enumerate(roles[where]) if role in (Role.DATA, Role.CONTEXT)]
        split += size if any(isinstance(tensor.sbp[axis], Split) for axis in axes) else 0
    return split / of_all if of_all else 0.0


def _most(tensors: list[PlacedTensor], names: set[str]) -> bool:
    of_all = sum(map(_elements, tensors))
    return of_all > 0 and sum(_elements(tensor) for tensor in tensors if tensor.name in names) >= _MOST * of_all


def _elements(tensor: PlacedTensor) -> int:
    count = 1
    for extent in tensor.shape:
        count *= extent
    return count
