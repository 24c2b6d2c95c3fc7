"""The gradient of batch norm as one kernel.

n = (x - mean) r;  db = sum(g);  dw = sum(g n);  dx = r w (g - db/N - n dw/N)                 (planner.frontend.tracing.decomp.norms)
"""

from __future__ import annotations

import torch
from torch import Tensor

from backend.ops.fused.batch_norm import DIV, MUL, SUB, SUM, VIEW, channel_view, other_dims
from backend.ops.fused.uses import Fusion, Uses
from planner.ir.graph import Op, Ref

__all__ = ["BATCH_NORM_GRADIENT", "batch_norm_gradient", "find_batch_norm_gradient", "gradient_in_one_kernel"]

BATCH_NORM_GRADIENT = "fused.batch_norm_gradient"


def batch_norm_gradient(g: Tensor, x: Tensor, mean: Tensor, root: Tensor, weight: Tensor | None) -> tuple[Tensor | None, ...]:
    """Gradients by x, by the weight, and by the bias.   root: rsqrt(var + eps)."""
    if any(value is not None and value.dtype != x.dtype for value in (g, weight, mean, root)):
        from planner.frontend.tracing.decomp.norms import batch_norm_backward as in_parts  # late: kernels of aten need no frontend

        wide = x.to(torch.promote_types(x.dtype, g.dtype))
        by_x, by_weight, by_bias = in_parts(g, wide, None, None, None, mean.reshape(-1), root.reshape(-1), True, 0.0, (True, True, True))
        assert by_x is not None
        return by_x if weight is None else by_x * weight.reshape(1, -1, *[1] * (x.ndim - 2)), by_weight, by_bias
    return gradient_in_one_kernel(g, x, mean, root, weight)


def gradient_in_one_kernel(g: Tensor, x: Tensor, mean: Tensor, root: Tensor, weight: Tensor | None) -> tuple[Tensor | None, ...]:
    """``batch_norm_gradient`` by torch's kernel, which takes vectors of x's format, or of float32 beside g and x of 16 bits."""
    weight = weight.reshape(-1) if weight is not None else None
    mean, root = mean.reshape(-1).contiguous(), root.reshape(-1).contiguous()  # it reads channels-last ones as if they had no gaps
    if x.is_contiguous():
        g = g.contiguous()  # or torch walks through both element by element
    gradients = torch.ops.aten.native_batch_norm_backward(g, x, weight, None, None, mean, root, True, 0.0, [True, True, True])
    return tuple(gradients)


def find_batch_norm_gradient(last: Op, uses: Uses) -> Fusion:
    """last: the product of what is left of the gradient with the scale of each channel."""
    rest = uses.part(last.args[0], SUB) if len(last.args) == 2 else None
    shared = uses.part(rest.args[1], MUL) if rest is not None else None
    reduced = uses.part(rest.args[0], SUB) if rest is not None else None
    normal = uses.part(shared.args[0], MUL, reads=2) if shared is not None else None
    centred = uses.part(normal.args[0], SUB) if normal is not None else None
    if rest is None or shared is None or reduced is None or normal is None or centred is None:
        return None
    g, x, ndim = reduced.args[0], centred.args[0], _ndim(last.args[1], uses)
    views = [
        channel_view(uses, arg, ndim) for arg in (reduced.args[1], shared.args[1], normal.args[1], centred.args[1], last.args[1]) if ndim
    ]
    if not isinstance(g, Ref) or not isinstance(x, Ref) or len(views) != 5 or any(view is None for view in views):
        return None
    by_bias, by_weight, root, mean, scale = (view.args[0] for view in views if view is not None)
    sums = [_averaged(by_bias, uses), _averaged(by_weight, uses)]
    if sums[0] is None or sums[1] is None or sums[0][2] != sums[1][2]:
        return None
    (bias_mean, bias_sum, _), (weight_mean, weight_sum, _) = sums[0], sums[1]
    product = uses.part(weight_sum.args[0], MUL)
    normal_value = Ref(normal.outputs[0] or "")
    if (
        product is None
        or product.args != (g, normal_value)
        or bias_sum.args[0] != g
        or {other_dims(bias_sum), other_dims(weight_sum)} != {ndim}
    ):
        return None
    scaled = uses.part(scale, MUL) if scale != root else None
    weight = scaled.args[1] if scaled is not None and scaled.args[0] == root else None
    if not isinstance(root, Ref) or not isinstance(mean, Ref) or not (scale == root or isinstance(weight, Ref)):
        return None
    parts = [centred, normal, bias_sum, product, weight_sum, bias_mean, reduced, weight_mean, shared, rest, last]
    parts += [scaled] if scaled is not None else []
    ids = {part.id for part in parts}
    parts += [view for view in dict.fromkeys(views) if view is not None and uses.inside(view, ids)]
    results = [Ref(op.outputs[0]) if op.outputs[0] is not None else None for op in (last, weight_sum, bias_sum)]
    return uses.whole(BATCH_NORM_GRADIENT, (g, x, mean, root, weight if isinstance(weight, Ref) else None), results, parts)


def _ndim(value: object, uses: Uses) -> int:
    """The number of dims of what a view makes; 0 where the value is no view."""
    view = uses.made_by(value, VIEW)
    return len(view.args[1]) if view is not None and isinstance(view.args[1], tuple) else 0


def _averaged(value: object, uses: Uses) -> tuple[Op, Op, object] | None:
    """The division that makes the value of a sum, the sum, and by what it is divided."""
    division = uses.part(value, DIV)
    total = uses.made_by(division.args[0], SUM) if division is not None else None
    return (division, total, division.args[1]) if division is not None and total is not None else None
