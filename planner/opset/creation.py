"""Ops that make a tensor from literals: each dim of a constant is a factor of the result alone, so the result may be B or S(d).

A tensor of zeros may also be P.  arange depends on the position, so it is B.  The ``new_`` and ``_like`` forms take dtype (and
shape) from an operand whose elements they never read, so that operand may have any layout.

Random draws are made where they are needed too, again in every region, since each element is drawn from its own place in the whole tensor
(planner.frontend.random.kernels); their last literal lists the cuts (FactorRule.cuts):

    regista.uniform, regista.bernoulli  (seed)(steps) -> d0 d1 ..
    regista.dropout  (d0 d1 ..)(seed)(steps) -> d0 d1 ..                   linear in x: parts of a P(sum) are dropped alike
"""

from __future__ import annotations

from functools import partial

from planner.ir.graph import Op
from planner.opset.rule import FactorRule, Size, Types
from planner.opset.spec import Kind, OpSpec, argument, labels, no_flop, result_shape, written_bytes

__all__ = ["TABLE"]


def _filled(op: Op, types: Types, *, size_at: int, value_at: int | None, zero: bool = False) -> FactorRule:
    """``size_at``: position of the size literal;  ``value_at``: position of the fill value, None where the op's name states the value."""
    names = labels(len(result_shape(op, types)))
    is_zero = zero or (value_at is not None and argument(op, value_at, "fill_value", 1) == 0)
    return FactorRule(
        operands=(("",) * len(types[op.inputs[0]].shape),) if op.inputs else (),
        results=(names,),
        linear=(frozenset(),) if is_zero else (),
        unread=frozenset(range(len(op.inputs))),
        sizes=(Size(arg=size_at, name="size"),),
    )


def _like(op: Op, types: Types, *, value_at: int | None, zero: bool = False) -> FactorRule:
    names = labels(len(result_shape(op, types)))
    is_zero = zero or (value_at is not None and argument(op, value_at, "fill_value", 1) == 0)
    linear = (frozenset({0}), frozenset[int]()) if is_zero else ()
    return FactorRule(operands=(names,), results=(names,), linear=linear, unread=frozenset({0}))


def _whole(op: Op, types: Types) -> FactorRule:
    names = labels(len(result_shape(op, types)))
    return FactorRule(operands=(), results=(names,), whole=frozenset(names))


_FLOP = 20
"""Operations on integers per element: ten rounds of two products, two sums and four xors give four elements."""


def _draw(op: Op, types: Types) -> FactorRule:
    """seed, steps, size, dtype, (p,) whole, cuts."""
    names = labels(len(result_shape(op, types)))
    return FactorRule(operands=((), ()), results=(names,), sizes=(Size(arg=2, name="size"),), cuts=len(op.args) - 1)


def _dropout(op: Op, types: Types) -> FactorRule:
    """x, seed, steps, p, divisor, whole, cuts."""
    names = labels(len(result_shape(op, types)))
    return FactorRule(operands=(names, (), ()), results=(names,), linear=(frozenset({0}),), cuts=len(op.args) - 1)


def _drawing_flop(op: Op, types: Types) -> int:
    return _FLOP * sum(types[value].numel for value in op.outputs if value is not None)


_made = partial(OpSpec, kind=Kind.CREATION, flop=no_flop, traffic=written_bytes)
_made_like = partial(OpSpec, flop=no_flop, traffic=written_bytes)

TABLE: dict[str, OpSpec] = {
    "aten.full.default": _made(rule=partial(_filled, size_at=0, value_at=1)),
    "aten.zeros.default": _made(rule=partial(_filled, size_at=0, value_at=None, zero=True)),
    "aten.ones.default": _made(rule=partial(_filled, size_at=0, value_at=None)),
    "aten.empty.memory_format": _made(rule=partial(_filled, size_at=0, value_at=None)),
    "aten.arange.default": _made(rule=_whole),
    "aten.arange.start": _made(rule=_whole),
    "aten.arange.start_step": _made(rule=_whole),
    "aten.scalar_tensor.default": _made(rule=_whole),
    "aten.linspace.default": _made(rule=_whole),
    "aten.logspace.default": _made(rule=_whole),
    "aten.eye.default": _made(rule=_whole),
    "aten.eye.m": _made(rule=_whole),
    **{f"aten.{kind}_window.{way}": _made(rule=_whole) for kind in ("hann", "hamming", "blackman") for way in ("default", "periodic")},
    "aten.tril_indices.default": _made(rule=_whole),
    "aten.triu_indices.default": _made(rule=_whole),
    "aten.new_zeros.default": _made_like(rule=partial(_filled, size_at=1, value_at=None, zero=True)),
    "aten.new_ones.default": _made_like(rule=partial(_filled, size_at=1, value_at=None)),
    "aten.new_full.default": _made_like(rule=partial(_filled, size_at=1, value_at=2)),
    "aten.new_empty.default": _made_like(rule=partial(_filled, size_at=1, value_at=None)),
    "aten.full_like.default": _made_like(rule=partial(_like, value_at=1)),
    "aten.zeros_like.default": _made_like(rule=partial(_like, value_at=None, zero=True)),
    "aten.ones_like.default": _made_like(rule=partial(_like, value_at=None)),
    "aten.empty_like.default": _made_like(rule=partial(_like, value_at=None)),
    "regista.uniform": _made(rule=_draw, flop=_drawing_flop),
    "regista.bernoulli": _made(rule=_draw, flop=_drawing_flop),
    "regista.dropout": OpSpec(rule=_dropout, flop=_drawing_flop),
}
