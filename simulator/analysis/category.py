"""What the bytes of a Plan are for: every Regst, tensor by tensor, under one word.

parameters    STATE: parameters, working copies, buffers, constants
optimizer     STATE: optimizer state
gradients     DATA that an UPDATE task reads, itself or boxed or sent; and what ``Plan.gradients`` names
activations   DATA of the forward part (or of the batch) that a BACKWARD or WEIGHT task reads, itself or boxed or sent
              ... and what the input part of a split backward pass keeps for its WEIGHT part (M_W of the zero-bubble papers)
registers     all other DATA: batches, blocks between forward tasks, gradients of activations, blocks on their way
workspace     what a fragment needs only while it runs (no Regst)
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from planner.ir.graph import InputKind
from planner.ir.plan import Plan, Regst, RegstKind, Task, TaskKind

__all__ = ["Category", "regst_bytes"]


class Category(Enum):
    """In the order in which they are stacked, what stays longest at the bottom."""

    PARAMETERS = "parameters"
    OPTIMIZER = "optimizer"
    GRADIENTS = "gradients"
    ACTIVATIONS = "activations"
    REGISTERS = "registers"
    WORKSPACE = "workspace"


def regst_bytes(plan: Plan) -> Mapping[str, Mapping[Category, int]]:
    """Regst id -> category -> bytes of one block on the fullest rank; they add up to ``plan.block_bytes``."""
    states = {(state.regst, state.index): state.kind for state in plan.states}
    named = {(access.regst, access.index) for access in plan.gradients.values()}
    bytes_of: dict[str, dict[Category, int]] = {}
    for regst in plan.regsts:
        whole = Category.PARAMETERS if regst.kind is RegstKind.STATE else _of_data(plan, regst)
        sizes = bytes_of[regst.id] = {}
        for index, tensor in enumerate(regst.tensors):
            category = whole
            if regst.kind is RegstKind.STATE and states.get((regst.id, index)) is InputKind.OPTIMIZER_STATE:
                category = Category.OPTIMIZER
            elif regst.kind is not RegstKind.STATE and (regst.id, index) in named:
                category = Category.GRADIENTS
            sizes[category] = sizes.get(category, 0) + tensor.local_bytes(plan.placement[regst.placement])
    return bytes_of


def _of_data(plan: Plan, regst: Regst) -> Category:
    readers, origin = _readers(plan, regst), _origin(plan, regst)
    if TaskKind.UPDATE in readers and origin is not TaskKind.UPDATE:
        return Category.GRADIENTS
    if any(kind.is_backward for kind in readers) and origin is not None and (origin is TaskKind.FORWARD or origin.is_loading):
        return Category.ACTIVATIONS
    if TaskKind.WEIGHT in readers and origin is TaskKind.BACKWARD:
        return Category.ACTIVATIONS
    return Category.REGISTERS


def _readers(plan: Plan, regst: Regst) -> frozenset[TaskKind]:
    """The kinds of the tasks that read it; a communication's readers count as its own."""
    kinds: set[TaskKind] = set()
    waiting, seen = [regst.id], {regst.id}
    while waiting:
        for task, _ in plan.consumers[waiting.pop()]:
            kinds.add(task.kind)
            further = {port.regst for port in task.produces} - seen if task.kind.is_communication else set()
            waiting += sorted(further)
            seen |= further
    return frozenset(kinds)


def _origin(plan: Plan, regst: Regst) -> TaskKind | None:
    """The kind of the task that made the values, behind all communication."""
    producer: Task | None = plan.task[regst.producer] if regst.producer is not None else None
    seen: set[str] = set()
    while producer is not None and producer.kind.is_communication and producer.id not in seen:
        seen.add(producer.id)
        before = plan.regst[producer.consumes[0].regst].producer if producer.consumes else None
        producer = plan.task[before] if before is not None else None
    return producer.kind if producer is not None else None
