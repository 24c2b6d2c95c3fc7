"""The end of a step: norms of gradients, parameter updates, one op per parameter, and moving averages of parameters.

Of a norm a measure of a part is a part of the measure, P(sum) of squares and P(max) of absolute values.  Squares are added up before they are
reduced: adding 0-d values is linear in all of them together, so one number is reduced, not one per gradient.

An update is elementwise over the parameter, never P.
The first operand is the parameter; gradient and state of its shape are split with it, 0-d operands (a step count) are B.
Because the gradient may not be P, data parallelism needs its all-reduce, and ZeRO its reduce-scatter.
Adafactor and Muon compute with whole parameters.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from planner.ir.graph import Op
from planner.ir.sbp import ReduceOp
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


_UPDATES: dict[str, OpSpec] = {
    "regista.sgd": OpSpec(rule=_update, flop=_sgd_flop),
    "regista.adamw": OpSpec(rule=_update, flop=_adamw_flop),
    "regista.adam": OpSpec(rule=_update, flop=_adamw_flop),
    "regista.adagrad": OpSpec(rule=_update, flop=_sgd_flop),
    "regista.rmsprop": OpSpec(rule=_update, flop=_adamw_flop),
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
