"""Ops that the front end took apart for the planner, put together again where one fragment holds all parts.

    mm(x, w) + b                                           ->  mm_bias(b, x, w)                addmm
    s = x - max(x);  s - log sum exp s                     ->  _log_softmax(x)
    g - exp(y) sum(g)                                      ->  log_softmax_gradient(g, y)

The front end separates the parts so that the value between them can be P(sum) or P(max).  Where no device reduces that value, the parts stand
next to each other in one fragment and compute, to rounding, what the kernel of the whole op computes.  They stay as they are if a boxing (even
a local one) lies between them, or if another op reads one of the parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from planner.ir.graph import Op, Ref

__all__ = ["KERNELS", "MM_BIAS", "fuse"]

MM_BIAS, LOG_SOFTMAX_GRADIENT = "fused.mm_bias", "fused.log_softmax_gradient"


def _mm_bias(bias: Tensor, x: Tensor, w: Tensor, *, out: Tensor | None = None) -> Tensor:
    if bias.dtype == x.dtype and bias.shape == w.shape[1:]:
        return torch.addmm(bias, x, w, out=out)
    return torch.add(torch.mm(x, w), bias, out=out)


def _log_softmax_gradient(gradient: Tensor, y: Tensor, dim: int) -> Tensor:
    if gradient.dtype == y.dtype and gradient.shape == y.shape:
        return torch._log_softmax_backward_data(gradient, y, dim, y.dtype)
    return gradient - torch.exp(y) * torch.sum(gradient, dim, keepdim=True)


KERNELS: Mapping[str, Callable[..., object]] = {MM_BIAS: _mm_bias, LOG_SOFTMAX_GRADIENT: _log_softmax_gradient}


@dataclass(frozen=True, slots=True)
class _Uses:
    """The op that makes each value, and how often the value is read; leaving the fragment counts as one more read."""

    makers: Mapping[str, Op]
    reads: Mapping[str, int]

    def part(self, value: object, target: str, reads: int = 1) -> Op | None:
        """The op that makes the value, if it has this target, one output and no kwargs, and the value is read exactly ``reads`` times."""
        op = self.makers.get(value.value) if isinstance(value, Ref) else None
        plain = op is not None and op.target == target and not op.kwargs and len(op.outputs) == 1
        return op if plain and isinstance(value, Ref) and self.reads[value.value] == reads else None


def fuse(ops: Sequence[Op], leaving: frozenset[str]) -> tuple[Op, ...]:
    """The fragment's ops with one whole op for the parts that make it up; it stands where its last part stood.

    Args:
        leaving: values that leave the fragment.
    """
    uses = _Uses({v: op for op in ops for v in op.outputs if v is not None}, Counter(v for op in ops for v in op.inputs) + Counter(leaving))
    replaced: set[str] = set()
    wholes: dict[str, Op] = {}
    for op in ops:
        if op.kwargs or op.target not in ("aten.add.Tensor", "aten.sub.Tensor") or not all(isinstance(a, Ref) for a in op.args):
            continue
        for rule in (_find_mm_bias,) if op.target == "aten.add.Tensor" else (_find_log_softmax, _find_log_softmax_gradient):
            fusion = rule(op, uses)
            if fusion is not None:
                wholes[op.id], parts = fusion
                replaced.update(part.id for part in parts)
                break
    return tuple(wholes.get(op.id, op) for op in ops if op.id not in replaced)


Fusion = tuple[Op, tuple[Op, ...]] | None
"""The whole op, and the parts that it replaces beside the last one."""


def _find_mm_bias(add: Op, uses: _Uses) -> Fusion:
    for product, bias in (add.args, add.args[::-1]):
        mm = uses.part(product, "aten.mm.default")
        if mm is not None:
            return replace(add, target=MM_BIAS, args=(bias, *mm.args)), (mm,)
    return None


def _find_log_softmax(last: Op, uses: _Uses) -> Fusion:
    shifted, log_sum = last.args
    shift = uses.part(shifted, "aten.sub.Tensor", reads=2)
    log = uses.part(log_sum, "aten.log.default")
    total = uses.part(log.args[0], "aten.sum.dim_IntList") if log is not None else None
    exp = uses.part(total.args[0], "aten.exp.default") if total is not None else None
    if shift is None or log is None or total is None or exp is None or exp.args != (shifted,):
        return None
    x, largest = shift.args
    top = uses.part(largest, "aten.amax.default")
    if top is None or top.args[0] != x or top.args[1:] != total.args[1:]:
        return None
    match total.args[1:]:
        case ((int() as dim,), True):
            return replace(last, target="aten._log_softmax.default", args=(x, dim, False)), (top, shift, exp, total, log)
        case _:
            return None


def _find_log_softmax_gradient(last: Op, uses: _Uses) -> Fusion:
    gradient, product = last.args
    mul = uses.part(product, "aten.mul.Tensor")
    if mul is None or len(mul.args) != 2:
        return None
    for left, right in (mul.args, mul.args[::-1]):
        exp, total = uses.part(left, "aten.exp.default"), uses.part(right, "aten.sum.dim_IntList")
        if exp is None or total is None or total.args[0] != gradient:
            continue
        match total.args[1:]:
            case ((int() as dim,), True):
                return replace(last, target=LOG_SOFTMAX_GRADIENT, args=(gradient, exp.args[0], dim)), (mul, exp, total)
            case _:
                return None
    return None
