"""Parameter updates, one op per parameter: elementwise over the parameter, never P.

The first operand is the parameter; gradient and state of its shape are split with it, 0-d operands (a step count) are B.
Because the gradient may not be P, data parallelism needs its all-reduce, and ZeRO its reduce-scatter.
Adafactor and Muon compute with whole parameters.
"""

from __future__ import annotations

from dataclasses import replace

from planner.ir.graph import Op
from planner.opset.rule import FactorRule, Factors, Types
from planner.opset.spec import OpSpec, elementwise_flop, labels, shape_of

__all__ = ["TABLE", "UPDATES"]


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


TABLE: dict[str, OpSpec] = {
    "regista.sgd": OpSpec(rule=_update, flop=_sgd_flop),
    "regista.adamw": OpSpec(rule=_update, flop=_adamw_flop),
    "regista.adam": OpSpec(rule=_update, flop=_adamw_flop),
    "regista.adagrad": OpSpec(rule=_update, flop=_sgd_flop),
    "regista.rmsprop": OpSpec(rule=_update, flop=_adamw_flop),
    "regista.adafactor": OpSpec(rule=_whole_update, flop=_adamw_flop),
    "regista.muon": OpSpec(rule=_whole_update, flop=_muon_flop),
}

UPDATES = frozenset(TABLE)
"""The targets of parameter updates."""
