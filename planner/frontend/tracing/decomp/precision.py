"""Statistics of low-precision values are computed in float32, as torch's kernels do."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["LOW_PRECISION", "widened"]

LOW_PRECISION = (torch.float16, torch.bfloat16)


def widened(x: Tensor) -> Tensor:
    return x.to(torch.float32) if x.dtype in LOW_PRECISION else x
