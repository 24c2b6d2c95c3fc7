"""The last third of lowering: drop what nobody reads, number the ops, then accumulate and update.

gradient --accumulate--> gradient:FQN --.
parameter:FQN ---------------------------+--> regista.sgd / regista.adamw / ... --> updated:FQN, updated:FQN:slot
optimizer_state:FQN:slot ---------------'
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from planner.frontend.optim import Group, Optimizer
from planner.frontend.optim.rules import slot_type
from planner.frontend.random.kernels import RANDOM_STATE
from planner.ir.errors import InvalidProgram, Unsupported
from planner.ir.graph import ACCUMULATE, Arg, GraphInput, InputKind, LogicalGraph, Op, Ref, Role, step_input_value
from planner.ir.tensor import DType, TensorType

__all__ = ["Body", "finished"]

_MEAN_LOSS = "mean:loss"


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """The lowered micro-batch, before anything is dropped.

    ops: in trace order, with the traced node's name as id.
    gradients: parameter name -> value.   updates: buffer input -> value.
    places: op id -> place in the trace.   forward_of: op id of a backward op -> place of the forward node it differentiates.
    refused: op id -> why no plan can carry it out.
    """

    inputs: tuple[GraphInput, ...]
    types: Mapping[str, TensorType]
    ops: tuple[Op, ...]
    loss: str
    gradients: Mapping[str, str]
    updates: Mapping[str, str]
    places: Mapping[str, int]
    forward_of: Mapping[str, int]
    refused: Mapping[str, str]


def finished(body: Body, groups: Sequence[Group], *, scheduled: bool = False) -> LogicalGraph:
    """The verified graph of a whole step.

    Args:
        groups: how parameters are trained; the gradients of all others are not computed.
        scheduled: the learning rate of each group is an input of the step instead of a constant.

    Raises:
        InvalidProgram: the loss is computed by no op, or depends on no parameter of a group.
        Unsupported: the step needs an op that no plan can carry out.
    """
    group_of = {name: number for number, group in enumerate(groups) for name in group.parameters}
    body = replace(body, gradients={name: value for name, value in body.gradients.items() if name in group_of})
    if not body.gradients:
        raise InvalidProgram(
            f"the loss depends on none of the {len(group_of)} parameters in the optimizer's groups ({', '.join(list(group_of)[:4])}); "
            "there is nothing to train: put parameters that the loss depends on into a group"
        )
    ops = _live(body.ops, {body.loss, *body.gradients.values(), *body.updates.values()})
    for op in ops:
        if op.id in body.refused:
            raise Unsupported(body.refused[op.id])
    if not any(body.loss in op.outputs for op in ops):
        raise InvalidProgram("the loss is one of the step's inputs, not computed from them; there is nothing to train")
    numbered = _numbered(ops, body)
    read = {value for op in ops for value in op.inputs}
    inputs = [i for i in body.inputs if i.kind not in (InputKind.CONSTANT, InputKind.RANDOM) or i.value in read]
    known = {i.value for i in inputs} | {out for op in ops for out in op.outputs if out is not None}
    types = {value: type_ for value, type_ in body.types.items() if value in known}
    graph = _with_update(numbered, inputs, types, body, _Updating(groups, group_of, scheduled))
    graph.verify()
    return graph


def _live(ops: Sequence[Op], wanted: set[str]) -> list[Op]:
    """Ops that the wanted values need; an output that nobody reads becomes None."""
    live, kept = set(wanted), []
    for op in reversed(ops):
        if any(out in live for out in op.outputs):
            live.update(op.inputs)
            kept.append(op)
    kept.reverse()
    return [
        op if all(out in live for out in op.outputs) else replace(op, outputs=tuple(out if out in live else None for out in op.outputs))
        for op in kept
    ]


def _numbered(ops: Sequence[Op], body: Body) -> list[Op]:
    """Ids n0, n1, ...; each backward op points to a forward op that survived: the one it differentiates, or the one before that."""
    number = {op.id: f"n{index}" for index, op in enumerate(ops)}
    forward = [op for op in ops if op.role is Role.FORWARD]
    places = [body.places[op.id] for op in forward]

    def survivor(place: int | None) -> str | None:
        if place is None:
            return number[forward[-1].id]
        return number[forward[max(bisect_right(places, place) - 1, 0)].id]

    return [
        replace(op, id=number[op.id], forward_of=survivor(body.forward_of.get(op.id)) if op.role is Role.BACKWARD else None) for op in ops
    ]


@dataclass(frozen=True, slots=True)
class _Updating:
    """How parameters are updated: group_of: parameter -> number of its group; scheduled: as in finished()."""

    groups: Sequence[Group]
    group_of: Mapping[str, int]
    scheduled: bool

    def rule(self, name: str) -> Optimizer:
        return self.groups[self.group_of[name]].rule

    def rate_input(self, name: str) -> str:
        """The name of the input that holds the parameter's learning rate."""
        return f"lr.{self.group_of[name]}"

    def numbers(self, name: str) -> tuple[Arg, ...]:
        """What the update takes after its tensors."""
        constants = self.rule(name).hyper_parameters
        return (Ref(step_input_value(self.rate_input(name))), *constants[1:]) if self.scheduled else constants


def _with_update(ops: list[Op], inputs: list[GraphInput], types: dict[str, TensorType], body: Body, updating: _Updating) -> LogicalGraph:
    producer = {out: op for op in ops for out in op.outputs if out is not None}
    updates = dict(body.updates)

    def append(target: str, args: tuple[Arg, ...], outputs: tuple[str, ...], like: Sequence[str], role: Role, module: str) -> None:
        ops.append(Op(id=f"n{len(ops)}", target=target, args=args, outputs=outputs, role=role, module=module))
        types.update((out, types[source]) for out, source in zip(outputs, like, strict=True))

    append(ACCUMULATE, (Ref(body.loss),), (_MEAN_LOSS,), (body.loss,), Role.ACCUMULATE, producer[body.loss].module)
    for name, gradient in body.gradients.items():
        append(ACCUMULATE, (Ref(gradient),), (f"gradient:{name}",), (gradient,), Role.ACCUMULATE, name.rpartition(".")[0])
    if updating.scheduled:
        for rate in dict.fromkeys(map(updating.rate_input, body.gradients)):
            inputs.append(GraphInput(value=step_input_value(rate), kind=InputKind.STEP_INPUT, name=rate))
            types[step_input_value(rate)] = TensorType((), DType.FLOAT64)
    for name in body.gradients:
        rule, module, gradient = updating.rule(name), name.rpartition(".")[0], f"gradient:{name}"
        parameter = f"{InputKind.PARAMETER.value}:{name}"
        slots = rule.slots(len(types[parameter].shape))
        states = {slot: f"{InputKind.OPTIMIZER_STATE.value}:{name}:{slot}" for slot in rule.all_slots if slot in slots}
        for slot, state in states.items():
            inputs.append(GraphInput(value=state, kind=InputKind.OPTIMIZER_STATE, name=f"{name}:{slot}"))
            types[state] = slot_type(slot, types[parameter])
        if rule.maximize:
            append("aten.neg.default", (Ref(gradient),), (f"ascent:{name}",), (gradient,), Role.UPDATE, module)
            gradient = f"ascent:{name}"
        held = (Ref(states[slot]) if slot in states else None for slot in rule.all_slots)
        old = (parameter, *states.values())
        new = tuple(f"updated:{value.partition(':')[2]}" for value in old)
        append(rule.target, (Ref(parameter), Ref(gradient), *held, *updating.numbers(name)), new, old, Role.UPDATE, module)
        updates.update(zip(old, new, strict=True))
    _, steps = RANDOM_STATE
    if steps in types:
        append("aten.add.Tensor", (Ref(steps), 1), (f"updated:{steps}",), (steps,), Role.UPDATE, "")
        updates[steps] = f"updated:{steps}"
    return LogicalGraph(
        values=types,
        inputs=tuple(inputs),
        ops=tuple(ops),
        loss=body.loss,
        mean_loss=_MEAN_LOSS,
        gradients={name: f"gradient:{name}" for name in body.gradients},
        updates=updates,
    )
