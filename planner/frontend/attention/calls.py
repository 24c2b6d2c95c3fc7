"""torch's scaled_dot_product_attention while it is traced: one op of ours, whoever calls it (transformers, timm, nn.MultiheadAttention).

What the op does not cover stays torch's own decomposition, products and a softmax: dropout of the weights, whose draws no fused kernel takes by
counter; a mask that needs a gradient, which is as large as the weights; operands that broadcast; transforms of torch.func.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.library import Library
from torch.nn.attention import SDPBackend, sdpa_kernel

from planner.frontend.attention.form import is_whole

__all__ = ["whole_attention"]

_DTYPES = frozenset({torch.float64, torch.float32, torch.bfloat16, torch.float16})


@contextmanager
def whole_attention() -> Iterator[None]:
    """Inside, scaled_dot_product_attention is regista.attention where that covers it, and torch's decomposition elsewhere.

    The operator is composite, so it is taken under autograd's key; autocast has cast the operands by then.
    """
    with sdpa_kernel(SDPBackend.MATH):
        if not is_whole():
            yield
            return
        library = Library("aten", "IMPL")  # type: ignore[no-untyped-call]
        library.impl("scaled_dot_product_attention", _attention, "AutogradCPU")  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            library._destroy()  # type: ignore[no-untyped-call]


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if dropout_p or not _covered(query, key, value, attn_mask, is_causal, enable_gqa):
        torchs = torch.ops.aten.scaled_dot_product_attention.default
        made: Tensor = torchs.decompose(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        return made
    q, k, v = (_by_head(operand) for operand in (query, key, value))
    mask = None if attn_mask is None else _of_four_dims(attn_mask, query.ndim)
    out: Tensor = torch.ops.regista.attention(q, k, v, mask, is_causal, scale)[0]
    for dim in (1, 0)[: 4 - query.ndim]:
        out = out.squeeze(dim)
    return out


def _covered(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool, grouped: bool) -> bool:
    """Whether the op computes what torch would; where not, torch's decomposition does, or says what is wrong."""
    operands = (query, key, value)
    if any(t.ndim != query.ndim or t.dtype != query.dtype or t.numel() == 0 for t in operands):
        return False
    if query.ndim not in (2, 3, 4) or query.dtype not in _DTYPES or query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        return False
    if torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0:
        return False
    if key.shape[:-2] != value.shape[:-2] or query.shape[:-3] != key.shape[:-3]:
        return False
    if query.shape[:-2] != key.shape[:-2] and not (grouped and query.ndim == 4 and query.shape[1] % key.shape[1] == 0):
        return False
    return mask is None or (not is_causal and _fits(mask, (*query.shape[:-1], key.shape[-2])))


def _fits(mask: Tensor, scores: tuple[int, ...]) -> bool:
    """Whether the mask is a constant of the step that broadcasts to the scores."""
    if mask.requires_grad or not 2 <= mask.ndim <= len(scores) or not (mask.dtype is torch.bool or mask.is_floating_point()):
        return False
    return all(extent in (1, whole) for extent, whole in zip(mask.shape, scores[len(scores) - mask.ndim :], strict=True))


def _by_head(operand: Tensor) -> Tensor:
    """[samples, heads, time, width] of [samples, time, width] or [time, width], with one head."""
    while operand.ndim < 4:
        operand = operand.unsqueeze(operand.ndim - 2)
    return operand


def _of_four_dims(mask: Tensor, operand_dims: int) -> Tensor:
    """The mask of operands of so many dims as one of four, which broadcasts likewise."""
    if mask.ndim == operand_dims:
        return _by_head(mask)
    while mask.ndim < 4:
        mask = mask.unsqueeze(0)
    return mask
