"""Operators of other libraries that are torch's by another name, so that they have rules and workers need not load the library.

    transformers::grouped_mm_fallback(x, w, offs)               _grouped_mm(x, w, offs)
    transformers::grouped_mm_fallback_backward(x, w, offs, g)   _grouped_mm(g, w^T, offs), _grouped_mm(x^T, g, offs)

transformers takes them wherever it believes that torch's kernel cannot be compiled, which is in every traced step that is not in bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch._ops import OpOverload

__all__ = ["library_table"]

aten = torch.ops.aten


def library_table() -> dict[OpOverload, Callable[..., object]]:
    """Of the operators that are registered in this process: the libraries that the module's own code has imported."""
    known = torch.ops.transformers
    if not (hasattr(known, "grouped_mm_fallback") and hasattr(known, "grouped_mm_fallback_backward")):
        return {}
    return {known.grouped_mm_fallback.default: _grouped_mm, known.grouped_mm_fallback_backward.default: _grouped_mm_backward}


def _grouped_mm(input: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
    made: Tensor = aten._grouped_mm.default(input, weight, offs.to(torch.int32))
    return made


def _grouped_mm_backward(input: Tensor, weight: Tensor, offs: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    return _grouped_mm(grad, weight.transpose(-2, -1), offs), _grouped_mm(input.transpose(-2, -1), grad, offs)
