"""One step of ring attention: queries cut into blocks of rows see one block of keys each, and what they have seen before is merged in.

With R blocks, in step t block i of the queries sees block (i - t) mod R of the keys and values, which a neighbour saw a step before:

    (1)  O', l'   of these keys alone (causal: none where their block lies behind the queries')
    (2)  l = log(exp(l0) + exp(l')),   O = O0 exp(l0 - l) + O' exp(l' - l)        O0, l0: of the steps before     [Liu et al. 2023]

After R steps every query has seen every key that it may see.  Step 0 shows each row its own key, so l0 is finite wherever there is a step before.
Backward each step gives a share of dQ, and dK and dV of the keys it saw, from O and l of all steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from planner.frontend.attention.fused import fused, fused_backward

__all__ = ["block", "block_backward", "block_keys", "block_sums"]


def block(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor | None,
    logsumexp: Tensor | None,
    is_causal: bool,
    scale: float | None,
    turn: int,
    parts: int,
    extent: int,
    first_row: int = 0,
) -> tuple[Tensor, Tensor]:
    """Equations (1) and (2) of step ``turn``.

    Args:
        q: [N, H, S, E], whole or one block of rows.   k, v: [N, G, S, E], [N, G, S, D], likewise.
        out, logsumexp: O0 [N, H, S, D] and l0 [N, H, S] of the steps before; None in the first.
        parts, extent: R, and rows of a block.   first_row: the place of q's first row among all queries.

    Returns:
        O, after the last step in q's format, else in float32 or wider; l.
    """
    with torch.no_grad():
        made = [
            _seen(q[:, :, a:b], k[:, :, c:d], v[:, :, c:d], is_causal, scale, i, j)
            for i, j, a, b, c, d in _blocks(q, k, turn, parts, extent, first_row)
        ]
        new, rows = (torch.cat(pieces, 2) for pieces in zip(*made, strict=True))
        if out is not None and logsumexp is not None:
            both = torch.logaddexp(logsumexp, rows)
            new = out * torch.exp(logsumexp - both).unsqueeze(-1) + new * torch.exp(rows - both).unsqueeze(-1)
            rows = both
        return new.to(q.dtype if turn == parts - 1 else rows.dtype), rows


def block_backward(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dq: Tensor | None,
    is_causal: bool,
    scale: float | None,
    turn: int,
    parts: int,
    extent: int,
    first_row: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of step ``turn``: dQ of the steps up to it (dq: of those before), dK and dV of the keys that it saw."""
    wide = torch.float64 if q.dtype is torch.float64 else torch.float32
    with torch.no_grad():
        share, dk, dv = torch.zeros_like(q, dtype=wide), torch.zeros_like(k), torch.zeros_like(v)
        for i, j, a, b, c, d in _blocks(q, k, turn, parts, extent, first_row):
            if is_causal and j > i:
                continue
            rows, keys = slice(a, b), slice(c, d)
            share[:, :, rows], dk[:, :, keys], dv[:, :, keys] = fused_backward(
                gradient[:, :, rows],
                q[:, :, rows],
                k[:, :, keys],
                v[:, :, keys],
                None,
                out[:, :, rows],
                logsumexp[:, :, rows],
                is_causal and i == j,
                scale,
            )
        share = share if dq is None else dq + share
        return share.to(q.dtype if turn == parts - 1 else wide), dk, dv


def block_sums(dk: Tensor, new_dk: Tensor, dv: Tensor, new_dv: Tensor, turn: int, parts: int) -> tuple[Tensor, Tensor]:
    """Gradients of keys and values, of the steps up to ``turn``."""
    return dk + new_dk, dv + new_dv


def block_keys(k: Tensor, v: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values once more, from which they go around the ring for the backward part.   gradient: not read, but waited for."""
    return k.clone(), v.clone()


def _blocks(q: Tensor, k: Tensor, turn: int, parts: int, extent: int, first_row: int) -> Iterator[tuple[int, int, int, int, int, int]]:
    """(block of queries, block of keys that it sees, its rows here, those keys here)."""
    for place in range(q.shape[2] // extent):
        i = first_row // extent + place
        j = (i - turn) % parts
        keys = 0 if k.shape[2] == extent else j * extent
        yield i, j, place * extent, (place + 1) * extent, keys, keys + extent


def _seen(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: float | None, i: int, j: int) -> tuple[Tensor, Tensor]:
    if is_causal and j > i:
        wide = torch.float64 if q.dtype is torch.float64 else torch.float32
        return q.new_zeros((*q.shape[:3], v.shape[3])), q.new_full(q.shape[:3], -math.inf, dtype=wide)
    return fused(q, k, v, None, is_causal and i == j, scale)
