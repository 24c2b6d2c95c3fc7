"""Convolution, pooling and resizing: batch and channels are factors, spatial dims are whole (their cut would need halos).

Factors (x, k: spatial):

    convolution  (n i x)(o i k)(o) -> n o x     n, o split;  i contracted -> P, but not with a bias, which every part would add
    backward     (n o x)(n i x)(o i k) -> dx n i x,  dw o i k,  db o        batch split: dx S(0), dw P, db P
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from planner.ir.graph import Op, Ref
from planner.opset.rule import FactorRule, Factors, Size, Types
from planner.opset.spec import OpSpec, argument, integer, is_ref, labels, result_shape, shape_of

__all__ = ["TABLE"]


def _factors(spatial: int, op: Op, groups_at: int, transposed_at: int) -> tuple[Factors, Factors, Factors, frozenset[str]]:
    """Factors of input, weight and output, and those that are whole: the spatial ones, and the channels of a grouped convolution."""
    x, k, y = labels(spatial, "x"), labels(spatial, "k"), labels(spatial, "y")
    whole = frozenset((*x, *k, *y))
    weight: Factors = ("i", "o", *k) if integer(op, transposed_at, "transposed", 0) else ("o", "i", *k)
    if integer(op, groups_at, "groups", 1) == 1:
        return ("n", "i", *x), weight, ("n", "o", *y), whole
    channels = ("cw0", "cw1")
    return ("n", "ci", *x), (*channels, *k), ("n", "co", *y), whole | {"ci", "co", *channels}


def _convolution(op: Op, types: Types) -> FactorRule:
    """x, weight, bias?, stride, padding, dilation, transposed, output_padding, groups."""
    x, weight, y, whole = _factors(len(shape_of(op, types, 0)) - 2, op, 8, 6)
    if not is_ref(op, 2, "bias"):
        return FactorRule(operands=(x, weight), results=(y,), whole=whole, linear=(frozenset({0}), frozenset({1})))
    joint = (frozenset({1, 2}),)
    return FactorRule(operands=(x, weight, (y[1],)), results=(y,), whole=whole, reduce={"i": None}, linear=joint)


def _convolution_backward(op: Op, types: Types) -> FactorRule:
    """grad, x, weight, bias_sizes?, stride, padding, dilation, transposed, output_padding, groups, output_mask."""
    x, weight, y, whole = _factors(len(shape_of(op, types, 1)) - 2, op, 9, 7)
    sizes = (Size(arg=3, name="bias_sizes", operand=0, dims=(1,)),) if argument(op, 3, "bias_sizes") is not None else ()
    return FactorRule(
        operands=(y, x, weight),
        results=(x, weight, (y[1],)),
        whole=whole,
        linear=(frozenset({0}), frozenset({1}), frozenset({2})),
        depends=(frozenset({0, 2}), frozenset({0, 1}), frozenset({0})),
        sizes=sizes,
    )


def _convolution_flop(op: Op, types: Types) -> int:
    """2 n o y (i / groups) prod(k): every output element meets one filter; a transposed one is counted from its input."""
    weight = shape_of(op, types, 1)
    meets = types[op.inputs[0]].numel if integer(op, 6, "transposed", 0) else prod(result_shape(op, types))
    return 2 * meets * prod(weight[1:])


def _convolution_backward_flop(op: Op, types: Types) -> int:
    """As much as the forward for the input's gradient and again for the weight's, each only if it is asked for."""
    weight = shape_of(op, types, 2)
    meets = types[op.inputs[1 if integer(op, 7, "transposed", 0) else 0]].numel
    mask = argument(op, 10, "output_mask")
    wanted = mask if isinstance(mask, tuple) else (True, True, True)
    bias = types[op.inputs[0]].numel if wanted[2] else 0
    return (bool(wanted[0]) + bool(wanted[1])) * 2 * meets * prod(weight[1:]) + bias


def _pool(spatial: int, *, linear: bool, unread: frozenset[int] = frozenset()) -> Callable[[Op, Types], FactorRule]:
    """Pooling looks at one plane at a time: every dim before the spatial ones is a factor."""

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
    """Resizing looks at one plane at a time and is linear; backward takes (grad, output_size, input_size, ...), the latter with N and C."""

    def rule(op: Op, types: Types) -> FactorRule:
        names = ("n", "c", *labels(spatial, "x"))
        sizes = (Size(arg=2, name="input_size"),) if back else ()
        return FactorRule(operands=(names,), results=(names,), whole=frozenset(names[2:]), linear=(frozenset({0}),), sizes=sizes)

    return rule


def _window_flop(op: Op, types: Types) -> int:
    """Window size times the number of windows."""
    kernel = next((a for a in op.args if isinstance(a, tuple) and not any(isinstance(i, Ref) for i in a)), ())
    window = prod(int(k) for k in kernel if isinstance(k, int)) if isinstance(kernel, tuple) else 1
    return window * min(types[v].numel for v in (*op.inputs[:1], *op.outputs[:1]) if v is not None)


_SELF = frozenset({1})

TABLE: dict[str, OpSpec] = {
    "aten.convolution.default": OpSpec(rule=_convolution, flop=_convolution_flop),
    "aten.convolution_backward.default": OpSpec(rule=_convolution_backward, flop=_convolution_backward_flop),
    "aten.max_pool2d_with_indices.default": OpSpec(rule=_pool(2, linear=False), flop=_window_flop),
    "aten.max_pool2d_with_indices_backward.default": OpSpec(rule=_pool(2, linear=True)),
    "aten.avg_pool2d.default": OpSpec(rule=_pool(2, linear=True), flop=_window_flop),
    "aten.avg_pool2d_backward.default": OpSpec(rule=_pool(2, linear=True, unread=_SELF)),
    "aten._adaptive_avg_pool2d.default": OpSpec(rule=_pool(2, linear=True)),
    "aten._adaptive_avg_pool2d_backward.default": OpSpec(rule=_pool(2, linear=True, unread=_SELF)),
    "aten.upsample_nearest1d.default": OpSpec(rule=_resize(1, back=False)),
    "aten.upsample_nearest1d_backward.default": OpSpec(rule=_resize(1, back=True)),
    "aten.upsample_nearest2d.default": OpSpec(rule=_resize(2, back=False)),
    "aten.upsample_nearest2d_backward.default": OpSpec(rule=_resize(2, back=True)),
    "aten.upsample_bilinear2d.default": OpSpec(rule=_resize(2, back=False)),
    "aten.upsample_bilinear2d_backward.default": OpSpec(rule=_resize(2, back=True)),
}
