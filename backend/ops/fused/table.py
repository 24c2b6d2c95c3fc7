"""The rules by the target of the op at which each begins, and the kernels of the whole ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from backend.ops.fused.batch_norm import BATCH_NORM, batch_norm, find_batch_norm
from backend.ops.fused.batch_norm_gradient import BATCH_NORM_GRADIENT, batch_norm_gradient, find_batch_norm_gradient
from backend.ops.fused.log_softmax import LOG_SOFTMAX_GRADIENT, find_log_softmax, find_log_softmax_gradient, log_softmax_gradient
from backend.ops.fused.prelu import PRELU, PRELU_GRADIENT, find_prelu, find_prelu_gradient, prelu, prelu_gradient
from backend.ops.fused.products import MM_BIAS, find_mm_bias, mm_bias
from backend.ops.fused.short_norms import (
    SHORT_BATCH_NORM,
    SHORT_BATCH_NORM_GRADIENT,
    short_batch_norm,
    short_batch_norm_gradient,
    without_casts,
)
from backend.ops.fused.uses import Fusion, Uses, uses_of
from planner.ir.graph import Op

__all__ = ["KERNELS", "fuse"]

KERNELS: Mapping[str, Callable[..., object]] = {
    MM_BIAS: mm_bias,
    LOG_SOFTMAX_GRADIENT: log_softmax_gradient,
    BATCH_NORM: batch_norm,
    BATCH_NORM_GRADIENT: batch_norm_gradient,
    SHORT_BATCH_NORM: short_batch_norm,
    SHORT_BATCH_NORM_GRADIENT: short_batch_norm_gradient,
    PRELU: prelu,
    PRELU_GRADIENT: prelu_gradient,
}
"""Target of a whole op that torch does not have under one name -> what it computes."""

_RULES: Mapping[str, tuple[Callable[[Op, Uses], Fusion], ...]] = {
    "aten.add.Tensor": (find_mm_bias,),
    "aten.sub.Tensor": (find_log_softmax, find_log_softmax_gradient),
    "aten.rsqrt.default": (find_batch_norm,),
    "aten.mul.Tensor": (find_batch_norm_gradient,),
    "aten.where.self": (find_prelu, find_prelu_gradient),
}


def fuse(ops: Sequence[Op], leaving: frozenset[str]) -> tuple[Op, ...]:
    """The fragment's ops with one whole op for the parts that make it up; it stands where its last part stood.

    Args:
        leaving: values that leave the fragment.
    """
    uses = uses_of(ops, leaving)
    replaced: set[str] = set()
    wholes: dict[str, Op] = {}
    for op in ops:
        if op.kwargs or op.id in replaced:
            continue
        for rule in _RULES.get(op.target, ()):
            fusion = rule(op, uses)
            if fusion is None or any(part.id in replaced for part in fusion[1]):
                continue
            whole, parts = fusion
            wholes[whole.id] = whole
            replaced.update(part.id for part in parts)
            break
    return without_casts([wholes.get(op.id, op) for op in ops if op.id in wholes or op.id not in replaced], leaving)
