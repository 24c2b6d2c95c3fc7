"""Clipping of gradients: by the norm of all of them together, as torch.nn.utils.clip_grad_norm_, or each element by value, as clip_grad_value_.

    norm 2                                                      norm inf
    regista.square_sum   gradient -> sum of squares             regista.largest      gradient -> largest absolute value
    regista.add_norms    one per gradient -> their sum          regista.join_norms   one per gradient -> the largest
    regista.clip_scale   -> min(1, max_norm / (norm + 1e-6))
    aten.mul             gradient, scale -> what the update takes

A sum of squares of parts of a gradient is a partial sum, so a split gradient is never gathered for its norm: one number crosses devices and stages.
Norms of 16-bit gradients are computed in float32.   [torch.nn.utils.clip_grad, torch 2.13]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from planner.ir.errors import InvalidProgram
from planner.ir.tensor import DType

__all__ = ["KERNELS", "ClipNorm", "clip_norm_of", "clip_value_of", "norm_dtype"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipNorm:
    """Gradients are scaled down together where their norm is larger.

    Args:
        max_norm: the largest norm that is left as it is; above 0.
        norm_type: 2 or infinity.
        error_if_nonfinite: end the run where the norm is infinite or no number.
    """

    max_norm: float
    norm_type: float = 2.0
    error_if_nonfinite: bool = False

    def __post_init__(self) -> None:
        if not self.max_norm > 0:
            raise InvalidProgram(f"clip_norm={self.max_norm}: the norm must be above 0; leave clip_norm out to clip nothing")
        if self.norm_type not in (2.0, math.inf):
            raise InvalidProgram(f"clip_norm of norm_type {self.norm_type} is unknown; write 2 or math.inf")

    @property
    def of_gradient(self) -> str:
        """The op that measures one gradient."""
        return "regista.square_sum" if self.norm_type == 2 else "regista.largest"

    @property
    def of_all(self) -> str:
        """The op that puts the measures of several gradients together."""
        return "regista.add_norms" if self.norm_type == 2 else "regista.join_norms"


def clip_norm_of(given: ClipNorm | float | None) -> ClipNorm | None:
    """A number is a largest 2-norm.  Raises InvalidProgram: it is not above 0, or no number."""
    if given is None or isinstance(given, ClipNorm):
        return given
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise InvalidProgram(f"clip_norm is a {type(given).__name__}; give a number, or ClipNorm(max_norm=..., norm_type=...)")
    return ClipNorm(max_norm=float(given))


def clip_value_of(given: float | None) -> float | None:
    """Raises InvalidProgram: it is not above 0."""
    if given is not None and not given > 0:
        raise InvalidProgram(f"clip_value={given}: the value must be above 0; leave clip_value out to clip nothing")
    return None if given is None else float(given)


def norm_dtype(gradient: DType) -> DType:
    """In which dtype the norm of a gradient is computed."""
    return gradient if gradient in (DType.FLOAT32, DType.FLOAT64) else DType.FLOAT32


def _wide(gradient: Tensor) -> torch.dtype:
    return gradient.dtype if gradient.dtype in (torch.float32, torch.float64) else torch.float32


def square_sum(gradient: Tensor) -> Tensor:
    """The sum of squares, as the square of the 2-norm that torch computes."""
    norm: Tensor = torch.linalg.vector_norm(gradient, 2, dtype=_wide(gradient))
    return norm.square_()


def largest(gradient: Tensor) -> Tensor:
    """The largest absolute value; 0 of nothing."""
    if gradient.numel() == 0:
        return torch.zeros((), dtype=_wide(gradient), device=gradient.device)
    norm: Tensor = torch.linalg.vector_norm(gradient, math.inf, dtype=_wide(gradient))
    return norm


def add_norms(*squares: Tensor) -> Tensor:
    """The sum of 0-d tensors."""
    return torch.stack(squares).sum() if len(squares) > 1 else squares[0].clone()


def join_norms(*norms: Tensor) -> Tensor:
    """The largest of 0-d tensors."""
    return torch.stack(norms).amax() if len(norms) > 1 else norms[0].clone()


def clip_scale(measure: Tensor, max_norm: float, is_square: bool, error_if_nonfinite: bool) -> Tensor:
    """What gradients are multiplied by, a 0-d tensor of at most 1.

    Raises:
        RuntimeError: with error_if_nonfinite, the norm is infinite or no number.
    """
    norm = measure.sqrt() if is_square else measure
    if error_if_nonfinite and not math.isfinite(value := float(norm.item())):
        raise RuntimeError(f"the norm of all gradients is {value}, so they cannot be clipped to {max_norm}; look for an overflow")
    return torch.clamp(max_norm / (norm + 1e-6), max=1.0)


KERNELS: Mapping[str, Callable[..., Tensor]] = {
    "regista.square_sum": square_sum,
    "regista.largest": largest,
    "regista.add_norms": add_norms,
    "regista.join_norms": join_norms,
    "regista.clip_scale": clip_scale,
}
"""Target -> what it computes."""
