"""A batch with samples added behind its own, and the weight of each: 1, or 0 of those added.

    7 samples in 3 micro-batches     a b c | d e f | g g g      weights  1 1 1 | 1 1 1 | 1 0 0

What is added is the last sample again, so that it is as legal an input as the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Padding"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Padding:
    """samples: of the batch.   size: with those added.   dims: per input the dim that is the batch, or None."""

    samples: int
    size: int
    dims: tuple[int | None, ...]

    def inputs(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The inputs of ``size`` samples."""
        return tuple(t if dim is None else self._longer(t, dim) for t, dim in zip(tensors, self.dims, strict=True))

    def _longer(self, tensor: Tensor, dim: int) -> Tensor:
        last = tensor.narrow(dim, self.samples - 1, 1)
        shape = [*tensor.shape]
        shape[dim] = self.size - self.samples
        return torch.cat([tensor, last.expand(shape)], dim)

    @property
    def weights(self) -> Tensor:
        """float32 [size]."""
        return (torch.arange(self.size) < self.samples).to(torch.float32)

    def batch(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """What a plan of the padded program is fed."""
        return (*self.inputs(tensors), self.weights)
