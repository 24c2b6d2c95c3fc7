"""Fourier transforms and complex numbers: the transformed dims are whole, the others factors; all transforms are linear.

fft          n x -> n x           S(n) -> S(n)    P -> P
complex      (x)(x) -> x          P, P -> P       its two parts are added up by themselves
as real      x -> x 2             the pair stands last and is whole
"""

from __future__ import annotations

from math import log2

from planner.ir.graph import Op
from planner.opset.elementwise import broadcast_factors
from planner.opset.rule import FactorRule, Types
from planner.opset.spec import OpSpec, dims_of, labels, no_flop, result_shape, shape_of

__all__ = ["TABLE"]

_FIRST = (frozenset({0}),)


def _transform(op: Op, types: Types) -> FactorRule:
    """x, dims, normalization, ...: forward and back, of real and of complex numbers."""
    names = labels(len(shape_of(op, types, 0)))
    whole = frozenset(names[d] for d in dims_of(op, 1, "dim", len(names)))
    return FactorRule(operands=(names,), results=(names,), whole=whole, linear=_FIRST)


def _transform_flop(op: Op, types: Types) -> int:
    """5 n log2 n per transform of n points [the convention of FFTW's benchmarks]; half of it where one side is real."""
    x, y = shape_of(op, types, 0), result_shape(op, types)
    points = 1
    for d in dims_of(op, 1, "dim", len(x)):
        points *= max(x[d], y[d])
    numel = max(types[op.inputs[0]].numel, types[op.inputs[0]].with_shape(y).numel)
    share = 1.0 if "c2c" in op.target else 0.5
    return int(share * 5 * numel * log2(max(points, 2)))


def _pair_made(op: Op, types: Types) -> FactorRule:
    names = labels(len(shape_of(op, types, 0)))
    return FactorRule(operands=(names,), results=((*names, ""),), linear=_FIRST)


def _pair_read(op: Op, types: Types) -> FactorRule:
    names = labels(len(result_shape(op, types)))
    return FactorRule(operands=((*names, ""),), results=(names,), linear=_FIRST)


def _joined(op: Op, types: Types) -> FactorRule:
    """real, imaginary: of shapes that broadcast."""
    shape = result_shape(op, types)
    names = labels(len(shape))
    operands = tuple(broadcast_factors(types[v].shape, shape, names) for v in op.inputs)
    return FactorRule(operands=operands, results=(names,), linear=(frozenset({0, 1}),))


TABLE: dict[str, OpSpec] = {
    "aten._fft_r2c.default": OpSpec(rule=_transform, flop=_transform_flop),
    "aten._fft_c2r.default": OpSpec(rule=_transform, flop=_transform_flop),
    "aten._fft_c2c.default": OpSpec(rule=_transform, flop=_transform_flop),
    "aten.view_as_real_copy.default": OpSpec(rule=_pair_made, flop=no_flop),
    "aten.view_as_complex_copy.default": OpSpec(rule=_pair_read, flop=no_flop),
    "aten.complex.default": OpSpec(rule=_joined, flop=no_flop),
}
