"""The optimizer ops as a runtime performs them: in one pass over memory, in place where the Plan allows it.

The reference performer runs ``regista.adamw`` as it stands in planner.frontend.optim: functional, a dozen passes, a new tensor per pass.
A worker owns the blocks of its state, and once all readers have acknowledged a block (SEMANTICS 3.2) nobody can see it change.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["adamw_in_place"]

Updated = tuple[Tensor, Tensor, Tensor, Tensor]


def adamw_in_place(own: tuple[bool, bool, bool, bool]) -> Callable[..., Updated]:
    """A kernel for ``regista.adamw`` on torch's fused CPU/CUDA kernel (the arithmetic of torch.optim.AdamW, to rounding).

    Args:
        own: whether (param, exp_avg, exp_avg_sq, step) may be overwritten; what may not is copied first.
    """

    def adamw(
        param: Tensor,
        grad: Tensor,
        exp_avg: Tensor,
        exp_avg_sq: Tensor,
        step: Tensor,
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
    ) -> Updated:
        state = (param, exp_avg, exp_avg_sq, step)
        # The kernel walks raw memory, so all of its tensors must lie in one piece.
        p, m, v, t = (
            x if mine and x.is_contiguous() else x.clone(memory_format=torch.contiguous_format) for x, mine in zip(state, own, strict=True)
        )
        t += 1
        torch._fused_adamw_(
            [p],
            [grad.contiguous()],
            [m],
            [v],
            [],
            [t],
            lr=lr,
            beta1=beta1,
            beta2=beta2,
            weight_decay=weight_decay,
            eps=eps,
            amsgrad=False,
            maximize=False,
        )
        return p, m, v, t

    return adamw
