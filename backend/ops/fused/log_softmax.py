"""The logarithm of a softmax and its gradient as one kernel each."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from backend.ops.fused.uses import Fusion, Uses
from planner.ir.graph import Op, Ref

__all__ = ["LOG_SOFTMAX_GRADIENT", "find_log_softmax", "find_log_softmax_gradient", "log_softmax_gradient"]

LOG_SOFTMAX_GRADIENT = "fused.log_softmax_gradient"


def log_softmax_gradient(gradient: Tensor, y: Tensor, dim: int) -> Tensor:
    if gradient.dtype == y.dtype and gradient.shape == y.shape:
        return torch._log_softmax_backward_data(gradient, y, dim, y.dtype)
    return gradient - torch.exp(y) * torch.sum(gradient, dim, keepdim=True)


def find_log_softmax(last: Op, uses: Uses) -> Fusion:
    if not all(isinstance(arg, Ref) for arg in last.args):
        return None
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
            return replace(last, target="aten._log_softmax.default", args=(x, dim, False)), (top, shift, exp, total, log, last)
        case _:
            return None


def find_log_softmax_gradient(last: Op, uses: Uses) -> Fusion:
    if not all(isinstance(arg, Ref) for arg in last.args):
        return None
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
                return replace(last, target=LOG_SOFTMAX_GRADIENT, args=(gradient, exp.args[0], dim)), (mul, exp, total, last)
            case _:
                return None
    return None
