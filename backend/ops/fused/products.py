"""A product and the addition of a bias as one kernel."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from backend.ops.cpu.products import product
from backend.ops.fused.uses import Fusion, Uses
from planner.ir.graph import Op, Ref

__all__ = ["MM_BIAS", "find_mm_bias", "mm_bias"]

MM_BIAS = "fused.mm_bias"


def mm_bias(bias: Tensor, x: Tensor, w: Tensor, *, out: Tensor | None = None) -> Tensor:
    if bias.dtype == x.dtype and bias.shape == w.shape[1:]:
        return product(x, w, bias, out=out)
    return torch.add(product(x, w), bias, out=out)


def find_mm_bias(add: Op, uses: Uses) -> Fusion:
    if not all(isinstance(arg, Ref) for arg in add.args):
        return None
    for multiplied, bias in (add.args, add.args[::-1]):
        mm = uses.part(multiplied, "aten.mm.default")
        if mm is not None:
            return replace(add, target=MM_BIAS, args=(bias, *mm.args)), (mm, add)
    return None
