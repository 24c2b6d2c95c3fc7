"""Convolution: batch and channels are factors, spatial dims are whole (a split would need halo exchange).

Factors (x, k: spatial):

    convolution  (n i x)(o i k)(o) -> n o x     n, o split;  i contracted -> P, and the bias must be P too, because every part adds it
    backward     (n o x)(n i x)(o i k) -> dx n i x,  dw o i k,  db o        batch split: dx S(0), dw P, db P
    in groups    (n g x)(g . k)(g) -> n g x     g split: whole groups per part; the argument ``groups`` shrinks with the weight
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from planner.ir.graph import Op
from planner.opset.rule import FactorRule, Factors, Size, Types
from planner.opset.spec import OpSpec, argument, integer, is_ref, labels, result_shape, shape_of

__all__ = ["TABLE"]


Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Convolution:
    """Factors of input, weight and output.

    whole: the spatial factors.  counts: the number of groups.  sizes: the argument that states it.
    """

    x: Factors
    weight: Factors
    y: Factors
    whole: frozenset[str]
    counts: dict[str, int]
    sizes: tuple[Size, ...]


def _factors(x: Shape, weight: Shape, y: Shape, *, transposed: bool, groups_at: int, weight_at: int) -> _Convolution:
    """The factors, from the shapes.  The argument ``groups`` is not read: on a part it still holds the number of the whole op.

    All three tensors hold their channels group after group, so a split between groups splits the channels of each of them.
    """
    inner, kernel, outer = labels(len(x) - 2, "x"), labels(len(x) - 2, "k"), labels(len(x) - 2, "y")
    whole = frozenset((*inner, *kernel, *outer))
    groups = (y if transposed else x)[1] // max(weight[1], 1)
    if groups == 1:
        channels = ("i", "o") if transposed else ("o", "i")
        return _Convolution(x=("n", "i", *inner), weight=(*channels, *kernel), y=("n", "o", *outer), whole=whole, counts={}, sizes=())
    return _Convolution(
        x=("n", "g", *inner),
        weight=("g", "", *kernel),
        y=("n", "g", *outer),
        whole=whole,
        counts={"g": groups},
        sizes=(Size(arg=groups_at, name="groups", operand=weight_at, dims=(0,), shrinks=True),),
    )


def _convolution(op: Op, types: Types) -> FactorRule:
    """x, weight, bias?, stride, padding, dilation, transposed, output_padding, groups."""
    x, weight, y = shape_of(op, types, 0), shape_of(op, types, 1), result_shape(op, types)
    c = _factors(x, weight, y, transposed=bool(integer(op, 6, "transposed", 0)), groups_at=8, weight_at=1)
    with_bias = is_ref(op, 2, "bias")
    return FactorRule(
        operands=(c.x, c.weight, (c.y[1],)) if with_bias else (c.x, c.weight),
        results=(c.y,),
        whole=c.whole,
        addends=frozenset({2}) if with_bias else frozenset(),
        linear=(frozenset({0, 2}), frozenset({1, 2})) if with_bias else (frozenset({0}), frozenset({1})),
        sizes=c.sizes,
        counts=c.counts,
    )


def _convolution_backward(op: Op, types: Types) -> FactorRule:
    """grad, x, weight, bias_sizes?, stride, padding, dilation, transposed, output_padding, groups, output_mask."""
    y, x, weight = (shape_of(op, types, k) for k in range(3))
    c = _factors(x, weight, y, transposed=bool(integer(op, 7, "transposed", 0)), groups_at=9, weight_at=2)
    bias = (Size(arg=3, name="bias_sizes", operand=0, dims=(1,)),) if argument(op, 3, "bias_sizes") is not None else ()
    return FactorRule(
        operands=(c.y, c.x, c.weight),
        results=(c.x, c.weight, (c.y[1],)),
        whole=c.whole,
        linear=(frozenset({0}), frozenset({1}), frozenset({2})),
        depends=(frozenset({0, 2}), frozenset({0, 1}), frozenset({0})),
        sizes=(*c.sizes, *bias),
        counts=c.counts,
    )


def _convolution_flop(op: Op, types: Types) -> int:
    """2 n o y (i / groups) prod(k): one filter is applied per output element; per input element if the convolution is transposed."""
    weight = shape_of(op, types, 1)
    filtered = types[op.inputs[0]].numel if integer(op, 6, "transposed", 0) else prod(result_shape(op, types))
    return 2 * filtered * prod(weight[1:])


def _convolution_backward_flop(op: Op, types: Types) -> int:
    """The flop of the forward op for each of the two gradients, of input and weight, that the mask asks for; the bias' are a sum."""
    weight = shape_of(op, types, 2)
    filtered = types[op.inputs[1 if integer(op, 7, "transposed", 0) else 0]].numel
    mask = argument(op, 10, "output_mask")
    wanted = mask if isinstance(mask, tuple) else (True, True, True)
    bias = types[op.inputs[0]].numel if wanted[2] else 0
    return (bool(wanted[0]) + bool(wanted[1])) * 2 * filtered * prod(weight[1:]) + bias


TABLE: dict[str, OpSpec] = {
    "aten.convolution.default": OpSpec(rule=_convolution, flop=_convolution_flop),
    "aten.convolution_backward.default": OpSpec(rule=_convolution_backward, flop=_convolution_backward_flop),
}
