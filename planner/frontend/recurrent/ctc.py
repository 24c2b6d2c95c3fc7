"""CTC loss as one op each way: regista.ctc_loss and regista.ctc_loss_backward, both performed by torch's own kernels.

Each sample's loss is a recurrence over time of its own [Graves et al. 2006].  Torch's op returns the logarithms of its forward variables with
2 L + 1 entries per step, L being the longest target of the batch, a value; here they have 2 S + 1, S being the width of the padded targets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from planner.frontend.recurrent.register import register
from planner.ir.errors import InvalidProgram

__all__ = ["ctc", "ctc_backward", "ctc_losses"]

aten = torch.ops.aten

_NONE, _MEAN = 0, 1
"""Torch's numbers of reductions; 2 is the sum."""


def ctc(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, blank: int, zero_infinity: bool
) -> tuple[Tensor, Tensor]:
    """The loss of each sample.

    Args:
        log_probs: [T, N, C].   targets: [N, S], padded.   input_lengths, target_lengths: [N].   blank: a class.
        zero_infinity: whether an infinite loss has no gradient.

    Returns:
        Losses [N]; for the backward pass logarithms of forward variables, [N, T, 2 S + 1].
    """
    losses, alpha = aten._ctc_loss.Tensor(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity)
    steps, states = (torch.arange(extent, device=alpha.device) for extent in alpha.shape[1:])
    read = (steps[:, None] < input_lengths.view(-1, 1, 1)) & (states <= 2 * target_lengths.view(-1, 1, 1))
    padded = alpha.new_full((*alpha.shape[:2], 2 * targets.shape[1] + 1), -torch.inf)
    padded[..., : alpha.shape[2]].copy_(torch.where(read, alpha, -torch.inf))  # what torch does not write would be any number
    return losses, padded


def ctc_backward(
    gradient: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    losses: Tensor,
    alpha: Tensor,
    blank: int,
    zero_infinity: bool,
) -> Tensor:
    """The gradient of log_probs, [T, N, C], as torch defines it: that of the logits where log_probs are their log_softmax.

    Args:
        gradient: of the losses, [N].   losses, alpha: what ``ctc`` returned.
    """
    width = 2 * int(target_lengths.max()) + 1
    given = gradient.contiguous(), log_probs, targets, input_lengths, target_lengths, losses, alpha[..., :width].contiguous()
    made: Tensor = aten._ctc_loss_backward.Tensor(*given, blank, zero_infinity)
    return made


def _ctc_type(log_probs: Tensor, targets: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    steps, batch, _classes = log_probs.shape
    return log_probs.new_empty(batch), log_probs.new_empty((batch, steps, 2 * targets.shape[1] + 1))


def _ctc_backward_type(gradient: Tensor, log_probs: Tensor, *_: object) -> Tensor:
    return log_probs.new_empty(log_probs.shape)


def _keep(ctx: FunctionCtx, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *operands, blank, zero_infinity = inputs
    ctx.save_for_backward(*operands, *output)
    ctx.options = (blank, zero_infinity)  # type: ignore[attr-defined]


def _differentiated(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return torch.ops.regista.ctc_loss_backward(gradient, *ctx.saved_tensors, *ctx.options), *[None] * 5


register("ctc_loss", (ctc, ctc_backward), (_ctc_type, _ctc_backward_type), _keep, _differentiated)


@contextmanager
def ctc_losses() -> Iterator[None]:
    """Inside, ``torch.ctc_loss``, which every CTC loss of torch calls, calls the op of this file."""
    own: Any = torch.ctc_loss
    setattr(torch, "ctc_loss", partial(_reduced, own))  # noqa: B010  torch's stub is a function
    try:
        yield
    finally:
        setattr(torch, "ctc_loss", own)  # noqa: B010


def _reduced(
    own: Callable[..., Tensor],
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int],
    blank: int = 0,
    reduction: int = _MEAN,
    zero_infinity: bool = False,
) -> Tensor:
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return own(log_probs, targets, input_lengths, target_lengths, blank, reduction, zero_infinity)
    unbatched = log_probs.dim() == 2
    if unbatched:
        log_probs = log_probs[:, None]
        targets = targets[None] if targets.dim() == 1 else targets
    if targets.dim() != 2:
        raise InvalidProgram(
            f"ctc_loss with the targets of all samples in one row, of shape {list(targets.shape)}, lets a value decide what is computed: where "
            "a sample's targets begin depends on the lengths; give them padded, a row per sample, of shape [N, S]"
        )
    log_probs = log_probs.float() if log_probs.element_size() < 4 else log_probs
    of_inputs, of_targets = (_as_row(lengths, log_probs) for lengths in (input_lengths, target_lengths))
    losses: Tensor = torch.ops.regista.ctc_loss(log_probs, targets, of_inputs, of_targets, blank, zero_infinity)[0]
    if zero_infinity:
        losses = torch.where(losses == torch.inf, 0.0, losses)
    if reduction == _MEAN:
        return (losses / of_targets.to(losses.dtype).clamp_min(1)).mean()
    return (losses[0] if unbatched else losses) if reduction == _NONE else losses.sum()


def _as_row(lengths: Tensor | Sequence[int], log_probs: Tensor) -> Tensor:
    """[N], an integer per sample."""
    row = lengths if isinstance(lengths, Tensor) else torch.tensor(lengths)
    row = row.to(device=log_probs.device, dtype=torch.int64).reshape(-1)
    if len(row) != log_probs.shape[1]:
        raise InvalidProgram(
            f"ctc_loss is given {len(row)} lengths for {log_probs.shape[1]} samples; where the batch is split into micro-batches the lengths are "
            "a tensor among the inputs"
        )
    return row
