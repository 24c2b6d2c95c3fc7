"""``regista.check``: the op that raises where a mask is not what a check wants.  Workers import it without the tracer."""

from __future__ import annotations

import torch
from torch import Tensor

from planner.ir.errors import CheckFailed

__all__ = ["CHECK", "KERNELS", "check"]

CHECK = "regista.check"


def check(mask: Tensor, wanted: bool, text: str) -> Tensor:
    """0, a 0-d float32 tensor.   wanted: what every element has to be.   text: the statement.

    Raises:
        CheckFailed: an element is something else.  On an accelerator this waits for the device.
    """
    held = bool(mask.all()) if wanted else not bool(mask.any())
    if not held:
        raise CheckFailed(f"the check of values {text} does not hold for this micro-batch")
    return torch.zeros((), device=mask.device)


def _type(mask: Tensor, wanted: bool, text: str) -> Tensor:
    return mask.new_empty((), dtype=torch.float32)


torch.library.custom_op("regista::check", check, mutates_args=()).register_fake(_type)

KERNELS = {CHECK: check}
"""Target -> the function that performs it."""
