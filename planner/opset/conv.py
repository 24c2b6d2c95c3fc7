"""Convolution, pooling, padding and resizing: batch and channels are factors, spatial dims are whole (a split would need halo exchange).

Factors (x, k: spatial):

    convolution  (n i x)(o i k)(o) -> n o x     n, o split;  i contracted -> P, and the bias must be P too, because every part adds it
    backward     (n o x)(n i x)(o i k) -> dx n i x,  dw o i k,  db o        batch split: dx S(0), dw P, db P
    in groups    (n g x)(g . k)(g) -> n g x     g split: whole groups per part; the argument ``groups`` shrinks with the weight
    pool, pad    n c x -> n c y                 an index of max pool counts within its own plane, so indices split as the values do
    unfold       n c x -> n c l                 the channels stand first in the folded dim (c k)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from planner.ir.graph import Op, Ref
from planner.opset.rule import FactorRule, Factors, Size, Types
from planner.opset.spec import OpSpec, argument, integer, is_ref, labels, no_flop, result_shape, shape_of

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


def _pool(spatial: int, *, linear: bool, unread: frozenset[int] = frozenset()) -> Callable[[Op, Types], FactorRule]:
    """Pooling works on each plane alone: every dim before the spatial ones is a factor."""

    def rule(op: Op, types: Types) -> FactorRule:
        lead = labels(len(shape_of(op, types, 0)) - spatial)
        names = (*lead, *labels(spatial, "x"))
        return FactorRule(
            operands=(names,) * len(op.inputs),
            results=(names,) * len(op.outputs),
            whole=frozenset(names[len(lead) :]),
            linear=(frozenset({0}),) if linear else (),
            unread=unread,
        )

    return rule


def _resize(spatial: int, *, back: bool) -> Callable[[Op, Types], FactorRule]:
    """Resizing works on each plane alone and is linear.  Backward takes (grad, output_size, input_size, ...), input_size with N and C."""

    def rule(op: Op, types: Types) -> FactorRule:
        names = ("n", "c", *labels(spatial, "x"))
        sizes = (Size(arg=2, name="input_size"),) if back else ()
        return FactorRule(operands=(names,), results=(names,), whole=frozenset(names[2:]), linear=(frozenset({0}),), sizes=sizes)

    return rule


def _plane(spatial: int, *, back: bool) -> Callable[[Op, Types], FactorRule]:
    """Padding with the input's values works on each plane alone and is linear.  Backward takes (grad, x, pad) and reads only x's shape."""

    def rule(op: Op, types: Types) -> FactorRule:
        lead = labels(len(shape_of(op, types, 0)) - spatial)
        names = (*lead, *labels(spatial, "x"))
        unread = _SELF if back else frozenset[int]()
        return FactorRule(
            operands=(names,) * len(op.inputs),
            results=(names,),
            whole=frozenset(names[len(lead) :]),
            linear=(frozenset({0}),),
            unread=unread,
        )

    return rule


def _unfold(op: Op, types: Types) -> FactorRule:
    """x [n, c, h, w] -> [n, c k, l], and back."""
    image, columns = ("n", "c", "x0", "x1"), ("n", "c", "l")
    whole, linear = frozenset({"x0", "x1", "l"}), (frozenset({0}),)
    if len(shape_of(op, types, 0)) == 4:
        return FactorRule(operands=(image,), results=(columns,), whole=whole, linear=linear)
    return FactorRule(operands=(columns,), results=(image,), whole=whole, linear=linear)


def _window_flop(op: Op, types: Types) -> int:
    """Elements of a window times the number of windows."""
    kernel = next((a for a in op.args if isinstance(a, tuple) and not any(isinstance(i, Ref) for i in a)), ())
    window = prod(int(k) for k in kernel if isinstance(k, int)) if isinstance(kernel, tuple) else 1
    return window * min(types[v].numel for v in (*op.inputs[:1], *op.outputs[:1]) if v is not None)


_SELF = frozenset({1})


def _resizing(spatial: int, *names: str) -> dict[str, OpSpec]:
    rows = {f"aten.{name}.default": OpSpec(rule=_resize(spatial, back=False)) for name in names}
    return rows | {f"aten.{name}_backward.default": OpSpec(rule=_resize(spatial, back=True)) for name in names}


def _padding(spatial: int, *names: str) -> dict[str, OpSpec]:
    rows = {f"aten.{name}.default": OpSpec(rule=_plane(spatial, back=False), flop=no_flop) for name in names}
    return rows | {f"aten.{name}_backward.default": OpSpec(rule=_plane(spatial, back=True)) for name in names}


TABLE: dict[str, OpSpec] = {
    "aten.convolution.default": OpSpec(rule=_convolution, flop=_convolution_flop),
    "aten.convolution_backward.default": OpSpec(rule=_convolution_backward, flop=_convolution_backward_flop),
    "aten.max_pool2d_with_indices.default": OpSpec(rule=_pool(2, linear=False), flop=_window_flop),
    "aten.max_pool2d_with_indices_backward.default": OpSpec(rule=_pool(2, linear=True)),
    "aten.avg_pool2d.default": OpSpec(rule=_pool(2, linear=True), flop=_window_flop),
    "aten.avg_pool2d_backward.default": OpSpec(rule=_pool(2, linear=True, unread=_SELF)),
    "aten._adaptive_avg_pool2d.default": OpSpec(rule=_pool(2, linear=True)),
    "aten._adaptive_avg_pool2d_backward.default": OpSpec(rule=_pool(2, linear=True, unread=_SELF)),
    "aten.adaptive_max_pool2d.default": OpSpec(rule=_pool(2, linear=False)),
    "aten.adaptive_max_pool2d_backward.default": OpSpec(rule=_pool(2, linear=True)),
    "aten.max_pool3d_with_indices.default": OpSpec(rule=_pool(3, linear=False), flop=_window_flop),
    "aten.max_pool3d_with_indices_backward.default": OpSpec(rule=_pool(3, linear=True)),
    "aten.avg_pool3d.default": OpSpec(rule=_pool(3, linear=True), flop=_window_flop),
    "aten.avg_pool3d_backward.default": OpSpec(rule=_pool(3, linear=True, unread=_SELF)),
    "aten._adaptive_avg_pool3d.default": OpSpec(rule=_pool(3, linear=True)),
    "aten._adaptive_avg_pool3d_backward.default": OpSpec(rule=_pool(3, linear=True, unread=_SELF)),
    **_resizing(1, "upsample_nearest1d", "upsample_linear1d", "_upsample_nearest_exact1d"),
    **_resizing(2, "upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d", "_upsample_nearest_exact2d"),
    **_resizing(3, "upsample_nearest3d", "upsample_trilinear3d", "_upsample_nearest_exact3d"),
    **_padding(1, "reflection_pad1d", "replication_pad1d"),
    **_padding(2, "reflection_pad2d", "replication_pad2d"),
    **_padding(3, "reflection_pad3d", "replication_pad3d"),
    "aten.im2col.default": OpSpec(rule=_unfold, flop=no_flop),
    "aten.col2im.default": OpSpec(rule=_unfold),
}
