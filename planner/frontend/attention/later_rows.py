"""Causal attention of later rows alone: what a device computes that has a part of the queries, from row r of the whole on.

    keys 0 .. r - 1     are seen by all of these rows              O1, l1
    keys r ..           are seen causally, row i from its own      O2, l2
    together            l = log(exp(l1) + exp(l2)),   O = O1 exp(l1 - l) + O2 exp(l2 - l)        [Liu et al. 2023, ring attention]

So both parts are performed by the fused kernels, and no mask is made.  Backward each part takes O and l of both, which gives its share of dQ.
"""

from __future__ import annotations

import torch
from torch import Tensor

from planner.frontend.attention.fused import fused, fused_backward

__all__ = ["later_rows", "later_rows_backward"]


def later_rows(q: Tensor, k: Tensor, v: Tensor, scale: float | None, first_row: int) -> tuple[Tensor, Tensor]:
    """As ``attention`` of this room, causal, of queries that stand from ``first_row`` on; keys and values are whole."""
    if first_row == 0:
        return fused(q, k, v, None, True, scale)
    before, own = _parts(first_row, k, v)
    out, rows = fused(q, before[0], before[1], None, False, scale)
    if first_row >= k.shape[2]:
        return out, rows
    of_own, own_rows = fused(q, own[0], own[1], None, True, scale)
    logsumexp = torch.logaddexp(rows, own_rows)
    shares = (torch.exp(part - logsumexp).unsqueeze(-1) for part in (rows, own_rows))
    wide = (part * share for part, share in zip((out, of_own), shares, strict=True))
    return sum(wide, torch.zeros_like(logsumexp).unsqueeze(-1)).to(q.dtype), logsumexp


def later_rows_backward(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsumexp: Tensor, scale: float | None, first_row: int
) -> tuple[Tensor, Tensor, Tensor]:
    """As ``attention_backward`` of this room, of the same."""
    if first_row == 0:
        return fused_backward(gradient, q, k, v, None, out, logsumexp, True, scale)
    before, own = _parts(first_row, k, v)
    dq, dk, dv = fused_backward(gradient, q, before[0], before[1], None, out, logsumexp, False, scale)
    if first_row >= k.shape[2]:
        return dq, dk, dv
    own_dq, own_dk, own_dv = fused_backward(gradient, q, own[0], own[1], None, out, logsumexp, True, scale)
    return dq + own_dq, torch.cat([dk, own_dk], 2), torch.cat([dv, own_dv], 2)


def _parts(first_row: int, *operands: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    return [operand[:, :, :first_row] for operand in operands], [operand[:, :, first_row:] for operand in operands]
