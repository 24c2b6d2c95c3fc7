"""In which formats a step computes, keeps its parameters and adds up its gradients.

precision     forward and loss                       parameters, moments   working copies
fp32          as the module is                       as the module has     none
bf16-mixed    under torch.autocast("cpu", bfloat16)  float32               bfloat16
fp16-mixed    under torch.autocast("cpu", float16)   float32               float16, gradients of a scaled loss (planner.frontend.optim.loss_scale)

Which ops compute in the low format is what torch.autocast says for CPUs, whatever device performs the Plan: the cast stands in the graph, so
every device casts alike.  torch's list for CUDA differs in that softmax, exponentials, norms and sums of a low-precision operand are computed in
float32 there; here they are stored in the low format, and their kernels add up in float32 inside.
[torch/csrc/autocast_mode, torch 2.13; Micikevicius et al. 2018, Mixed precision training]
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from enum import Enum

import torch
from torch import Tensor, nn

from planner.ir.errors import InvalidProgram
from planner.ir.tensor import DType

__all__ = ["Precision", "grad_dtype_of", "precision_of"]


class Precision(Enum):
    """The format in which forward and backward compute."""

    FP32 = "fp32"
    BF16_MIXED = "bf16-mixed"
    FP16_MIXED = "fp16-mixed"

    @property
    def working(self) -> torch.dtype | None:
        """The format of working copies; None where there are none."""
        return {Precision.BF16_MIXED: torch.bfloat16, Precision.FP16_MIXED: torch.float16}.get(self)

    @property
    def scales_loss(self) -> bool:
        """Whether gradients are those of a scaled loss: most of them would be 0 in float16."""
        return self is Precision.FP16_MIXED

    def autocast(self) -> AbstractContextManager[object]:
        """What forward and loss run under."""
        return nullcontext() if self.working is None else torch.autocast("cpu", dtype=self.working)


_GRAD_DTYPES = {"fp32": DType.FLOAT32, "bf16": DType.BFLOAT16}


def precision_of(given: Precision | str, module: nn.Module) -> Precision:
    """The precision of a module.

    Raises:
        InvalidProgram: it is unknown; or it is mixed, and the module's parameters are in another format than float32.
    """
    try:
        precision = Precision(given)
    except ValueError:
        known = ", ".join(precision.value for precision in Precision)
        raise InvalidProgram(f"precision {given!r} is unknown; it is one of {known}") from None
    if precision.working is not None:
        _check_parameters(dict(module.named_parameters()), precision)
    return precision


def grad_dtype_of(given: str | None) -> DType | None:
    """Raises InvalidProgram: it is unknown."""
    if given is None:
        return None
    if given not in _GRAD_DTYPES:
        raise InvalidProgram(f"grad_dtype {given!r} is unknown; it is one of {', '.join(_GRAD_DTYPES)}")
    return _GRAD_DTYPES[given]


def _check_parameters(parameters: Mapping[str, Tensor], precision: Precision) -> None:
    others = [name for name, p in parameters.items() if p.is_floating_point() and p.dtype is not torch.float32]
    if others:
        held = str(parameters[others[0]].dtype).removeprefix("torch.")
        raise InvalidProgram(
            f"precision {precision.value} keeps parameters and moments in float32 and computes with low-precision copies, but {others[0]} is "
            f"{held}{f', and {len(others) - 1} more parameters are not float32' if len(others) > 1 else ''}; give the module in float32 "
            f"(module.float(), a model of the zoo without dtype=), or leave precision out: it then computes and trains in {held} alone"
        )
