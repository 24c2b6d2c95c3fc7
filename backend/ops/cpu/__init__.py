"""Faster replacements of torch's CPU kernels for matrix products, masked_fill and GELU; for other devices and arguments torch's kernels run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from backend.ops.cpu.gelu import gelu, gelu_gradient
from backend.ops.cpu.masks import masked_fill

__all__ = ["QUICKER"]

QUICKER: Mapping[str, tuple[Callable[..., Tensor], str]] = {
    "aten.masked_fill.Scalar": (masked_fill, "out"),
    "aten.gelu.default": (gelu, "out"),
    "aten.gelu_backward.default": (gelu_gradient, "grad_input"),
}
"""Target -> its kernel, and the argument that takes the memory of the result."""
