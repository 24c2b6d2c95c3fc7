"""The end of a step: norms of gradients, parameter updates, one op per parameter, and moving averages of parameters.

Of a norm a measure of a part is a part of the measure, P(sum) of squares and P(max) of absolute values.  Squares are added up before they are
reduced: adding 0-d values is linear in all of them together, so one number is reduced, not one per gradient.

An update is elementwise over the parameter, never P.
The first operand is the parameter; gradient and state of its shape are split with it, 0-d operands (a step count) are B.
Because the gradient may not be P, data parallelism needs its all-reduce, and ZeRO its reduce-scatter.
Adafactor and Muon compute with whole parameters.

An update of rows takes gradients and indices of look-ups whole: every part of the table, by rows (V, with its slots) or by width (D), finds its own.

    regista.rows_adam (V D)(i.. D)(i..)(V)(V D)(V D)() -> (V D)(V D)(V D)():    i is whole
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from planner.ir.graph import Op
from planner.ir.sbp import ReduceOp
from planner.ir.tensor import TensorType
from planner.opset.rule import FactorRule, Factors, Types
from planner.opset.spec import OpSpec, elementwise_flop, labels, shape_of

__all__ = ["JOINS", "TABLE", "UPDATES"]


def _measure(op: Op, types: Types, *, by: ReduceOp) -> FactorRule:
    names = labels(len(shape_of(op, types, 0)))
    return FactorRule(operands=(names,), results=((),), reduce=dict.fromkeys(names, by))


def _scalars(op: Op, types: Types, *, linear: bool = False) -> FactorRule:
    number = len(op.inputs)
    return FactorRule(operands=((),) * number, results=((),) * len(op.outputs), linear=(frozenset(range(number)),) if linear else ())


def _measure_flop(op: Op, types: Types) -> int:
    return 2 * elementwise_flop(op, types)


def _update(op: Op, types: Types) -> FactorRule:
    shape = shape_of(op, types, 0)
    names = labels(len(shape))

    def factors(value: str | None) -> Factors:
        if value is None:
            return ()
        return names if types[value].shape == shape else ("",) * types[value].ndim

    # The next step count depends only on the step count, so it is B however the parameter is split.
    counts = frozenset(k for k, v in enumerate(op.inputs) if types[v].shape != shape)
    everything = frozenset(range(len(op.inputs)))
    depends = tuple(counts if v is not None and types[v].shape != shape else everything for v in op.outputs)
    return FactorRule(operands=tuple(map(factors, op.inputs)), results=tuple(map(factors, op.outputs)), depends=depends)


def _whole_update(op: Op, types: Types) -> FactorRule:
    rule = _update(op, types)
    return replace(rule, whole=frozenset(labels(len(shape_of(op, types, 0)))))


def _adamw_flop(op: Op, types: Types) -> int:
    """About twelve operations per element: two moments, two corrections, root, division, decay, step."""
    return 12 * elementwise_flop(op, types)


def _sgd_flop(op: Op, types: Types) -> int:
    """Decay, momentum, step: two operations each."""
    return 6 * elementwise_flop(op, types)


def _muon_flop(op: Op, types: Types) -> int:
    """Per iteration m m n, m m m and m m n multiply-adds, m the shorter dim; then as SGD."""
    short, long = sorted(shape_of(op, types, 0))
    iterations = op.args[-2]
    assert isinstance(iterations, int)
    return iterations * 2 * short * short * (2 * long + short) + _sgd_flop(op, types)


def _lookups(op: Op) -> int:
    """Look-ups whose rows an update takes."""
    gradients = op.args[1]
    assert isinstance(gradients, tuple)
    return len(gradients)


def _row_update(op: Op, types: Types) -> FactorRule:
    """table, gradients, indices, slots, states."""
    number, shape = _lookups(op), shape_of(op, types, 0)
    indices = [labels(len(shape_of(op, types, 1 + number + k)), f"i{k}.") for k in range(number)]
    table = ("v", "d")
    states = tuple(table if types[v].shape == shape else () for v in op.inputs[2 + 2 * number :])
    counts = frozenset(k for k, v in enumerate(op.inputs) if types[v].ndim == 0)
    everything = frozenset(range(len(op.inputs)))
    made = [v is None or types[v].shape == shape for v in op.outputs]
    return FactorRule(
        operands=(table, *((*index, "d") for index in indices), *indices, ("v",), *states),
        results=tuple(table if whole else () for whole in made),
        whole=frozenset(factor for index in indices for factor in index),
        depends=tuple(everything if whole else counts for whole in made),
    )


def _touched(op: Op, types: Types) -> int:
    """Elements of this part of the table that are updated at most: of each look-up the share of rows that the part has, or all of the part."""
    rows, width = shape_of(op, types, 0)
    return min(_named_rows(op, types), rows) * width


def _indices(op: Op, types: Types) -> list[TensorType]:
    """Types of the tensors of row numbers, one per look-up."""
    number = _lookups(op)
    return [types[v] for v in op.inputs[1 + number : 1 + 2 * number]]


def _named_rows(op: Op, types: Types) -> int:
    """Row numbers that name a row of this part of the table: of all that are looked up the share of rows that the part has."""
    extent = op.args[-2]
    assert isinstance(extent, int)
    named = sum(index.numel for index in _indices(op, types))
    return -(-named * shape_of(op, types, 0)[0] // max(extent, 1))


def _row_flop(op: Op, types: Types) -> int:
    """Of each element as of the dense update: about twelve."""
    return 12 * _touched(op, types)


_PLACE_BYTES = 8
"""Size of the place of a row number among all, an int64, which is sorted along with it."""


def _row_bytes(op: Op, types: Types) -> int:
    """Indices are read, those of this part's rows sorted; rows of gradients are read, summed into one per row (written and read), and rows of the
    table and its states read and written.

    Rows that are named several times are counted as often, up to the part's rows.  The sort takes a byte of the keys at a time (least significant
    first, as GPU libraries do: Merrill and Grimshaw, Parallel Processing Letters 21, 2011): each pass reads keys to count them, then reads and
    writes keys with their places.
    """
    indices, touched, shape = _indices(op, types), _touched(op, types), shape_of(op, types, 0)
    key_bytes = indices[0].dtype.size_bytes
    sort = _named_rows(op, types) * key_bytes * (3 * key_bytes + 2 * _PLACE_BYTES)
    named = sum(index.size_bytes for index in indices)
    held = sum(types[v].dtype.size_bytes for v in op.inputs if types[v].shape == shape)
    return named + sort + touched * (3 * types[op.inputs[1]].dtype.size_bytes + 2 * held)


_ROW_UPDATES = {f"regista.rows_{name}": OpSpec(rule=_row_update, flop=_row_flop, traffic=_row_bytes) for name in ("sgd", "adagrad", "adam")}

_UPDATES: dict[str, OpSpec] = _ROW_UPDATES | {
    "regista.sgd": OpSpec(rule=_update, flop=_sgd_flop),
    "regista.adamw": OpSpec(rule=_update, flop=_adamw_flop),
    "regista.adam": OpSpec(rule=_update, flop=_adamw_flop),
    "regista.adagrad": OpSpec(rule=_update, flop=_sgd_flop),
    "regista.rmsprop": OpSpec(rule=_update, flop=_adamw_flop),
    "regista.adamax": OpSpec(rule=_update, flop=_adamw_flop),
    "regista.nadam": OpSpec(rule=_update, flop=_adamw_flop),
    "regista.radam": OpSpec(rule=_update, flop=_adamw_flop),
    "regista.adadelta": OpSpec(rule=_update, flop=_adamw_flop),
    "regista.adafactor": OpSpec(rule=_whole_update, flop=_adamw_flop),
    "regista.muon": OpSpec(rule=_whole_update, flop=_muon_flop),
}

TABLE: dict[str, OpSpec] = {
    "regista.square_sum": OpSpec(rule=partial(_measure, by=ReduceOp.SUM), flop=_measure_flop),
    "regista.largest": OpSpec(rule=partial(_measure, by=ReduceOp.MAX), flop=_measure_flop),
    "regista.add_norms": OpSpec(rule=partial(_scalars, linear=True)),
    "regista.join_norms": OpSpec(rule=_scalars),
    "regista.clip_scale": OpSpec(rule=_scalars),
    "regista.overflow": OpSpec(rule=partial(_measure, by=ReduceOp.MAX), flop=elementwise_flop),
    "regista.unscaling": OpSpec(rule=_scalars),
    "regista.next_scale": OpSpec(rule=_scalars),
    "regista.kept_if": OpSpec(rule=_update, flop=elementwise_flop),
    "regista.moving_average": OpSpec(rule=_update, flop=_measure_flop),
} | _UPDATES

UPDATES = frozenset(_UPDATES)
"""The targets of parameter updates."""

JOINS = frozenset({"regista.add_norms", "regista.join_norms"})
"""The targets that put measures together, in any order and in any number of steps."""
