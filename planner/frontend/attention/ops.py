"""Attention of queries over keys as one op each way: regista.attention and regista.attention_backward.

Per sample and head, with M the mask (zero, or minus infinity where nothing is to be seen) and s the scale, 1 / sqrt(E) by default:

    (1)  S = s Q K^T + M                                 [S, T]; causal: query i sees the keys 0 .. i
    (2)  l = logsumexp(S),   O = exp(S - l) V            [Dao et al. 2022, algorithm 1]

and of a gradient dO, with W = exp(S - l) and d the sum of dO * O over each row:

    (3)  dV = W^T dO,   dS = W * (dO V^T - d),   dQ = s dS K,   dK = s dS^T Q

Neither S nor W is in memory as a whole: the backward pass makes W again from l.  So what is kept is O and a number per row.  Heads of queries that
stand together share a head of keys (grouped queries) where there are fewer of these.  A row that sees nothing is zero, as its l and its gradient are.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from planner.frontend.attention.fused import fused, fused_backward
from planner.frontend.attention.later_rows import later_rows, later_rows_backward
from planner.frontend.attention.products import differentiable_gradients

__all__ = ["attention", "attention_backward"]


def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool, scale: float | None, first_row: int = 0
) -> tuple[Tensor, Tensor]:
    """Equations (1) and (2).

    Args:
        q: [N, H, S, E].   k: [N, G, T, E].   v: [N, G, T, D].   G divides H.
        mask: broadcasts to [N, H, S, T]; booleans (true: seen) or what is added to S.   is_causal: instead of a mask.
        scale: s; None: 1 / sqrt(E).   first_row: causal, the place of q's first row among all queries.

    Returns:
        O [N, H, S, D], l [N, H, S] (of 16-bit formats in float32).
    """
    with torch.no_grad():
        return later_rows(q, k, v, scale, first_row) if is_causal else fused(q, k, v, mask, False, scale)


def attention_backward(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    is_causal: bool,
    scale: float | None,
    first_row: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Equation (3): the gradients of q, k and v from that of O.   out, logsumexp: what ``attention`` returned."""
    with torch.no_grad():
        if is_causal:
            return later_rows_backward(gradient, q, k, v, out, logsumexp, scale, first_row)
        return fused_backward(gradient, q, k, v, mask, out, logsumexp, False, scale)


def _rows_type(operand: Tensor, width: int) -> Tensor:
    """[N, H, S, width] as kernels lay it out: the heads of a row stand together, so that folding them copies nothing."""
    samples, heads, rows, _ = operand.shape
    return operand.new_empty((samples, rows, heads, width)).transpose(1, 2)


def _attention_type(q: Tensor, k: Tensor, v: Tensor, *others: object) -> tuple[Tensor, Tensor]:
    wide = torch.float64 if q.dtype is torch.float64 else torch.float32
    return _rows_type(q, v.shape[-1]), q.new_empty(q.shape[:-1], dtype=wide)


def _attention_backward_type(gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, *others: object) -> tuple[Tensor, Tensor, Tensor]:
    return _rows_type(q, q.shape[-1]), _rows_type(k, k.shape[-1]), _rows_type(v, v.shape[-1])


_Given = tuple[Tensor, Tensor, Tensor, Tensor | None, bool, float | None, int]


def _keep(ctx: FunctionCtx, inputs: _Given, output: tuple[Tensor, Tensor]) -> None:
    q, k, v, mask, is_causal, scale, _ = inputs
    ctx.save_for_backward(q, k, v, mask, *output)  # type: ignore[arg-type]
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.options = is_causal, scale  # type: ignore[attr-defined]


def _differentiated(ctx: FunctionCtx, gradient: Tensor | None, *_: object) -> tuple[Tensor | None, ...]:
    if gradient is None:
        return (None,) * 7
    q, k, v, mask, out, logsumexp = ctx.saved_tensors  # type: ignore[attr-defined]
    options: tuple[bool, float | None] = ctx.options  # type: ignore[attr-defined]
    if torch.is_grad_enabled():  # the gradient is differentiated in its turn, which no fused kernel does
        return (*differentiable_gradients(gradient, q, k, v, mask, *options), None, None, None, None)
    return (*torch.ops.regista.attention_backward(gradient, q, k, v, mask, out, logsumexp, *options), None, None, None, None)


_op = torch.library.custom_op("regista::attention", attention, mutates_args=())
_op.register_fake(_attention_type)
_op.register_autograd(_differentiated, setup_context=_keep)
torch.library.custom_op("regista::attention_backward", attention_backward, mutates_args=()).register_fake(_attention_backward_type)
