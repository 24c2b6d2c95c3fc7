"""The last third of lowering: drop what nobody reads, number the ops, then append accumulations and updates (planner.frontend.to_graph.update)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from planner.frontend.random.kernels import RANDOM_STATE
from planner.frontend.to_graph.kept_buffers import OwnValues, kept_buffers
from planner.frontend.to_graph.outputs import with_output_ops
from planner.frontend.to_graph.update import MEAN_LOSS, Appended, Update
from planner.ir.errors import InvalidProgram, Unsupported
from planner.ir.graph import GraphInput, GraphOutput, InputKind, LogicalGraph, Op, Role
from planner.ir.tensor import TensorType

__all__ = ["Body", "RowGradient", "Rows", "finished"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """One look-up in a table.   gradient: value of the gradients of its rows;  index: of their numbers;  padding: the index without gradient."""

    gradient: str
    index: str
    padding: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGradient:
    """The sparse gradient of a table of ``extent`` rows; ``slots``: the op that lists them."""

    lookups: tuple[Rows, ...]
    slots: Op
    extent: int

    @property
    def values(self) -> tuple[str, ...]:
        return tuple(value for lookup in self.lookups for value in (lookup.gradient, lookup.index))


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """The lowered micro-batch, before anything is dropped.

    ops: in trace order, with the traced node's name as id.
    gradients: parameter name -> value.   outputs: name -> value.   updates: buffer input -> value.
    places: op id -> place in the trace.   forward_of: op id of a backward op -> place of the forward node it differentiates.
    refused: op id -> why no plan can carry it out.
    rows: parameter name -> its sparse gradient, where it has one instead of an entry in ``gradients``.
    """

    inputs: tuple[GraphInput, ...]
    types: Mapping[str, TensorType]
    ops: tuple[Op, ...]
    loss: str
    gradients: Mapping[str, str]
    outputs: Mapping[str, str]
    updates: Mapping[str, str]
    places: Mapping[str, int]
    forward_of: Mapping[str, int]
    refused: Mapping[str, str]
    micro_batches: int = 1
    rows: Mapping[str, RowGradient] = field(default_factory=dict)


def finished(body: Body, update: Update | None) -> LogicalGraph:
    """The verified graph of a whole step.

    Args:
        update: of a training step; None: the step is an evaluation.

    Raises:
        InvalidProgram: the loss is computed by no op, or depends on no parameter of a group.
        Unsupported: the step needs an op that no plan can carry out.
    """
    if update is not None:
        body = _trained(body, update)
    rows = (value for row in body.rows.values() for value in row.values)
    ops = _live(body.ops, {body.loss, *body.gradients.values(), *rows, *body.outputs.values(), *body.updates.values()})
    for op in ops:
        if op.id in body.refused:
            raise Unsupported(body.refused[op.id])
    if not any(body.loss in op.outputs for op in ops):
        raise InvalidProgram("the loss is one of the step's inputs, not computed from them; there is nothing to train")
    own = OwnValues(ops, body.updates)
    body = replace(_with_copies(body, own.original_of, own.behind), updates=own.updates)
    kept = kept_buffers(own.ops, body.updates)
    body = _with_copies(body, kept.original_of, kept.beside)
    ops, copies = with_output_ops(kept.ops, body.outputs)
    body = _with_copies(body, copies, {})
    numbered = _numbered(ops, body)
    read = {value for op in ops for value in op.inputs}
    inputs = [i for i in body.inputs if i.kind not in (InputKind.CONSTANT, InputKind.RANDOM, InputKind.LOSS_SCALE) or i.value in read]
    known = {i.value for i in inputs} | {out for op in ops for out in op.outputs if out is not None}
    types = {value: type_ for value, type_ in body.types.items() if value in known}
    graph = _with_end(Appended(update or Update(groups=()), numbered, inputs, types), body)
    graph.verify()
    return graph


def _with_copies(body: Body, original_of: Mapping[str, str], beside: Mapping[str, str]) -> Body:
    """The body with places and types of copies.

    Args:
        original_of: copy -> the value that it copies; a copy is named as its op.   beside: copy -> the op that it stands beside; absent: none.
    """
    return replace(
        body,
        places=dict(body.places) | {copy: body.places[beside[copy]] if copy in beside else 0 for copy in original_of},
        forward_of=dict(body.forward_of) | {copy: body.forward_of[op] for copy, op in beside.items() if op in body.forward_of},
        types=dict(body.types) | {copy: body.types[value] for copy, value in original_of.items()},
    )


def _trained(body: Body, update: Update) -> Body:
    """The same body with the gradients of those parameters alone that are in one of the optimizer's groups."""
    group_of = update.group_of
    trained = {name: value for name, value in body.gradients.items() if name in group_of}
    if not trained and not body.rows:
        raise InvalidProgram(
            f"the loss depends on none of the {len(group_of)} parameters in the optimizer's groups ({', '.join(list(group_of)[:4])}); "
            "there is nothing to train: put parameters that the loss depends on into a group"
        )
    return replace(body, gradients=trained)


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

    return [op.numbered(number[op.id], survivor(body.forward_of.get(op.id)) if op.role is Role.BACKWARD else None) for op in ops]


def _with_end(step: Appended, body: Body) -> LogicalGraph:
    modules = {out: op.module for op in step.ops for out in op.outputs if out is not None}
    gradients = {name: f"gradient:{name}" for name in body.gradients}
    step.accumulate(body.loss, MEAN_LOSS, modules[body.loss])
    for name, gradient in body.gradients.items():
        step.accumulate(gradient, gradients[name], name.rpartition(".")[0])
    for name, row in body.rows.items():
        for number, lookup in enumerate(row.lookups):
            module = name.rpartition(".")[0]
            step.accumulate(lookup.gradient, f"row_gradient:{name}.{number}", module)
            step.accumulate(lookup.index, f"rows:{name}.{number}", module)
    if gradients or body.rows:
        step.update_all(tuple(gradients), body.micro_batches, tuple(body.rows))
    for name, row in body.rows.items():
        padding = tuple(lookup.padding for lookup in row.lookups)
        (slots,) = row.slots.outputs
        step.update_rows(name, row.slots, body.types[str(slots)], row.extent, padding)
    _, steps = RANDOM_STATE
    if steps in step.types:
        step.count(steps)
    return LogicalGraph(
        values=step.types,
        inputs=tuple(step.inputs),
        ops=tuple(step.ops),
        loss=body.loss,
        mean_loss=MEAN_LOSS,
        gradients=gradients,
        updates={**body.updates, **step.updates},
        outputs=tuple(GraphOutput(name=name, value=f"output:{name}") for name in body.outputs),
    )
