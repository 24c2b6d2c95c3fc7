"""What looks at one plane at a time: pooling, padding, resizing, sampling.  Batch and channels are factors, spatial dims are whole.

Factors (x: spatial):

    pool, pad    n c x -> n c y                     an index of max pool counts within its own plane, so indices split as the values do
    unfold       n c x -> n c l                     the channels stand first in the folded dim (c k)
    grid sample  (n c x)(n y 2) -> n c y            each place y of the result is sampled by itself, so y splits as well
    backward     (n c y)(n c x)(n y 2) -> dx n c x, dgrid n y 2       y split: dx P, dgrid S;  c split: dx S, dgrid P
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from planner.ir.graph import Op, Ref
from planner.opset.rule import FactorRule, Size, Types
from planner.opset.spec import OpSpec, labels, no_flop, shape_of

__all__ = ["TABLE"]


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


def _drawn_pool(spatial: int) -> Callable[[Op, Types], FactorRule]:
    """Fractional pooling: x [n, c, *x], and where each plane is cut [n, c, spatial]; without n in x the draws keep theirs."""

    def rule(op: Op, types: Types) -> FactorRule:
        lead = labels(len(shape_of(op, types, 0)) - spatial)
        draws = (*lead, "") if len(lead) == 2 else ("", *lead, "")
        names = (*lead, *labels(spatial, "x"))
        return FactorRule(operands=(names, draws), results=(names,) * len(op.outputs), whole=frozenset(names[len(lead) :]))

    return rule


def _sampled_flop(op: Op, types: Types) -> int:
    """Two per corner of the cell that a place lies in, and each element of the sampled planes."""
    places = types[op.inputs[-1]]
    corners = 2 << places.shape[-1]
    return corners * prod(places.shape[:-1]) * shape_of(op, types, len(op.inputs) - 2)[1]


def _sampled(spatial: int) -> Callable[[Op, Types], FactorRule]:
    """x [n, c, *x], grid [n, *y, spatial]."""

    def rule(op: Op, types: Types) -> FactorRule:
        places = labels(spatial, "y")
        plane = ("",) * spatial
        return FactorRule(operands=(("n", "c", *plane), ("n", *places, "")), results=(("n", "c", *places),), linear=(frozenset({0}),))

    return rule


def _sampled_backward(spatial: int) -> Callable[[Op, Types], FactorRule]:
    """grad [n, c, *y], x, grid, modes, output_mask -> dx, dgrid."""

    def rule(op: Op, types: Types) -> FactorRule:
        places = labels(spatial, "y")
        image, grid = ("n", "c", *("",) * spatial), ("n", *places, "")
        return FactorRule(operands=(("n", "c", *places), image, grid), results=(image, grid), linear=(frozenset({0}),))

    return rule


TABLE: dict[str, OpSpec] = {
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
    "aten.adaptive_max_pool3d.default": OpSpec(rule=_pool(3, linear=False)),
    "aten.adaptive_max_pool3d_backward.default": OpSpec(rule=_pool(3, linear=True)),
    "aten.max_unpool2d.default": OpSpec(rule=_pool(2, linear=True), flop=no_flop),
    "aten.max_unpool3d.default": OpSpec(rule=_pool(3, linear=True), flop=no_flop),
    "aten.fractional_max_pool2d.default": OpSpec(rule=_drawn_pool(2), flop=_window_flop),
    "aten.fractional_max_pool2d_backward.default": OpSpec(rule=_pool(2, linear=True)),
    "aten.fractional_max_pool3d.default": OpSpec(rule=_drawn_pool(3), flop=_window_flop),
    "aten.fractional_max_pool3d_backward.default": OpSpec(rule=_pool(3, linear=True)),
    "aten.grid_sampler_2d.default": OpSpec(rule=_sampled(2), flop=_sampled_flop),
    "aten.grid_sampler_2d_backward.default": OpSpec(rule=_sampled_backward(2), flop=_sampled_flop),
    "aten.grid_sampler_3d.default": OpSpec(rule=_sampled(3), flop=_sampled_flop),
    "aten.grid_sampler_3d_backward.default": OpSpec(rule=_sampled_backward(3), flop=_sampled_flop),
    **_resizing(1, "upsample_nearest1d", "upsample_linear1d", "_upsample_nearest_exact1d"),
    **_resizing(2, "upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d", "_upsample_nearest_exact2d"),
    **_resizing(2, "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
    **_resizing(3, "upsample_nearest3d", "upsample_trilinear3d", "_upsample_nearest_exact3d"),
    **_padding(1, "reflection_pad1d", "replication_pad1d"),
    **_padding(2, "reflection_pad2d", "replication_pad2d"),
    **_padding(3, "reflection_pad3d", "replication_pad3d"),
    "aten.im2col.default": OpSpec(rule=_unfold, flop=no_flop),
    "aten.col2im.default": OpSpec(rule=_unfold),
}
