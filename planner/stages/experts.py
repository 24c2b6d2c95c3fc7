"""Which ops of a graph are work of experts, and which values are tokens on their way to them.

A layer of experts is told by its products, not by names: a parameter [E, m, n] that a batched product reads along its first dim.

    tokens [E, rows, m] x parameter [E, m, n]      forward            tokens^T [E, m, rows] x gradient [E, rows, n]      gradient of the parameter
    gradient [E, rows, n] x parameter^T [E, n, m]   backward           elementwise ops on [E, rows, .] between            activations

rows: places per expert.  What views, copies and casts make of tokens in front of and behind these is on its way (an exchange moves it).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from planner.ir.graph import InputKind, LogicalGraph, Op
from planner.ir.sbp import NdSbp, Split
from planner.opset import is_creation, is_view, known_targets
from planner.opset.elementwise import TABLE

__all__ = ["ExpertOp", "ExpertOps", "expert_axes", "expert_ops"]

_PRODUCT = "aten.bmm.default"
_TRANSPOSES = frozenset({"aten.transpose.int", "aten.permute.default"})
_MOVES = frozenset({"aten.clone.default", "aten._to_copy.default"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertOp:
    """layer: its number in the graph.   experts, rows: E, and places per expert.   operand, row_dim: which operand bears rows, along which dim;
    experts lie along its dim 0."""

    layer: int
    experts: int
    rows: int
    operand: int
    row_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertOps:
    """ops: by op id.   travelling: value -> an op of its layer, of tokens on their way and of those that have arrived."""

    ops: Mapping[str, ExpertOp]
    travelling: Mapping[str, ExpertOp]


@dataclass(slots=True)
class _Marks:
    """weights: value -> parameter.   rows: value -> (parameter, dim of rows).   same: parameter -> one of its layer."""

    weights: dict[str, str] = field(default_factory=dict)
    rows: dict[str, tuple[str, int]] = field(default_factory=dict)
    same: dict[str, str] = field(default_factory=dict)

    def root(self, parameter: str) -> str:
        while self.same.setdefault(parameter, parameter) != parameter:
            parameter = self.same[parameter]
        return parameter

    def join(self, one: str, other: str) -> None:
        self.same[self.root(one)] = self.root(other)


def expert_ops(graph: LogicalGraph) -> ExpertOps:
    """The work of experts in a graph; empty where it has none."""
    types, marks = graph.values, _Marks()
    for given in graph.inputs:
        if given.kind in (InputKind.PARAMETER, InputKind.WORKING_COPY) and len(types[given.value].shape) == 3:
            marks.weights[given.value] = given.value if given.copy_of is None else given.copy_of
    if not marks.weights:
        return ExpertOps(ops={}, travelling={})
    passes = [op for op in graph.ops if op.role.per_micro_batch]
    for op in passes:
        _follow_weight(op, marks)
    for op in passes:
        if op.target == _PRODUCT and any(value in marks.weights for value in op.inputs):
            _mark_product(op, marks)
    found: dict[str, tuple[str, int]] = {}
    for op in passes:
        if place := _bears_rows(op, graph, marks):
            found[op.id] = place
    roots = list(dict.fromkeys(marks.root(parameter) for parameter, _ in found.values()))
    by_id = {op.id: op for op in passes}
    ops = {}
    for op_id, (parameter, operand) in found.items():
        value = by_id[op_id].inputs[operand]
        dim = marks.rows[value][1]
        shape = types[value].shape
        ops[op_id] = ExpertOp(layer=roots.index(marks.root(parameter)), experts=shape[0], rows=shape[dim], operand=operand, row_dim=dim)
    return ExpertOps(ops=ops, travelling=_travelling(graph, ops, marks))


def _turned(op: Op) -> bool:
    """Whether the op turns the last two of three dims."""
    return (op.target == "aten.transpose.int" and {*op.args[1:3]} in ({1, 2}, {-1, -2})) or (
        op.target == "aten.permute.default" and op.args[1] == (0, 2, 1)
    )


def _follow_weight(op: Op, marks: _Marks) -> None:
    made = op.outputs[0]
    if made is not None and len(op.inputs) == 1 and op.inputs[0] in marks.weights and (_turned(op) or op.target in _MOVES):
        marks.weights[made] = marks.weights[op.inputs[0]]


def _mark_product(op: Op, marks: _Marks) -> None:
    """Tokens in and out of a product with a parameter, [E, rows, m] or turned."""
    left, right = op.inputs
    (made,) = op.outputs
    if left in marks.weights and right in marks.weights:
        return
    parameter, tokens, dim = (marks.weights[right], left, 1) if right in marks.weights else (marks.weights[left], right, 2)
    if tokens in marks.rows:
        marks.join(parameter, marks.rows[tokens][0])
    marks.rows[tokens] = (parameter, dim)
    if made is not None:
        marks.rows.setdefault(made, (parameter, dim))


def _bears_rows(op: Op, graph: LogicalGraph, marks: _Marks) -> tuple[str, int] | None:
    """(parameter of the layer, operand with rows) of work of experts; marks what it makes."""
    made = op.outputs[0] if op.outputs else None
    bearing = [place for place, value in enumerate(op.inputs) if value in marks.rows]
    if not bearing:
        return None
    parameter, dim = marks.rows[op.inputs[bearing[0]]]
    if op.target == _PRODUCT:
        if len(bearing) == 2:
            marks.join(parameter, marks.rows[op.inputs[1]][0])
        return parameter, bearing[0]
    whole = graph.values[op.inputs[bearing[0]]].shape
    if _turned(op) and made is not None:
        marks.rows.setdefault(made, (parameter, 3 - dim))
        return None
    if op.target not in TABLE or made is None or graph.values[made].shape != whole or is_view(op):
        return None
    for place in bearing[1:]:
        marks.join(parameter, marks.rows[op.inputs[place]][0])
    if made in marks.rows:
        marks.join(parameter, marks.rows[made][0])
    marks.rows.setdefault(made, (parameter, dim))
    return parameter, bearing[0]


def _travelling(graph: LogicalGraph, ops: Mapping[str, ExpertOp], marks: _Marks) -> dict[str, ExpertOp]:
    """What views and copies make of tokens on the way to products and from them."""
    makers, readers = graph.producers(), graph.consumers()
    seen: dict[str, ExpertOp] = {}
    products = [(op, ops[op.id]) for op in graph.ops if op.id in ops and op.target == _PRODUCT]
    waiting = [(value, work) for op, work in products for value in (*op.inputs, op.outputs[0]) if value in marks.rows]
    while waiting:
        value, work = waiting.pop()
        if value in seen or graph.input_of(value) is not None:
            continue
        seen[value] = work
        maker = makers[value]
        if _only_moves(maker):
            waiting.append((maker.inputs[0], work))
        waiting += [(made, work) for op in readers[value] if _only_moves(op) and (made := op.outputs[0]) is not None]
    return seen


def _only_moves(op: Op) -> bool:
    return len(op.inputs) == 1 and op.target in known_targets() and not is_creation(op) and (is_view(op) or op.target in _MOVES)


def expert_axes(work: ExpertOp, inputs: tuple[NdSbp, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The mesh axes that cut experts, and those that cut their places, where an op of experts has such operands."""
    entries = inputs[work.operand].entries
    return (
        tuple(axis for axis, entry in enumerate(entries) if entry == Split(0)),
        tuple(axis for axis, entry in enumerate(entries) if entry == Split(work.row_dim)),
    )
