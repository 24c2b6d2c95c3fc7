"""Operands of attention in every form that it takes, and what torch defines it as."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

__all__ = ["CASES", "FORMATS", "Performed", "assert_is_defined_so"]

Performed = Callable[..., tuple[Tensor, ...]]

FORMATS = {torch.float64: 1e-13, torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 3e-3}
"""Format -> largest error, as a share of the largest value."""


def _drawn(*shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    return tuple(torch.randn(shape, dtype=torch.float64) for shape in shapes)


def _same(rows: int = 10, keys: int = 10, heads: int = 4, groups: int = 4, width: int = 8, values: int = 8) -> tuple[Tensor, ...]:
    return _drawn((2, heads, rows, width), (2, groups, keys, width), (2, groups, keys, values))


def _seen(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.6


def _blind(mask: Tensor) -> Tensor:
    """The third query of the first sample sees nothing."""
    mask[0, 0, 2] = False
    return mask


def _added(mask: Tensor) -> Tensor:
    return torch.zeros(mask.shape).masked_fill(~mask, -math.inf)


CASES: Mapping[str, Callable[[], tuple[tuple[Tensor, ...], dict[str, object]]]] = {
    "plain": lambda: (_same(), {}),
    "causal": lambda: (_same(), {"is_causal": True}),
    "causal, more keys": lambda: (_same(7, 13), {"is_causal": True}),
    "causal, fewer keys": lambda: (_same(13, 7), {"is_causal": True}),
    "scaled": lambda: (_same(), {"scale": 0.3}),
    "one query": lambda: (_same(1, 9), {}),
    "300 rows": lambda: (_drawn((1, 1, 300, 40), (1, 1, 300, 40), (1, 1, 300, 40)), {"is_causal": True}),
    "width 5": lambda: (_same(width=5, values=5), {}),
    "width 300": lambda: (_same(width=300, values=300), {}),
    "wider values": lambda: (_same(width=5, values=7), {}),
    "narrower values": lambda: (_same(width=5, values=2), {}),
    "grouped": lambda: (_same(groups=2), {"is_causal": True}),
    "one head of keys": lambda: (_same(groups=1), {}),
    "every second element": lambda: (tuple(x.repeat_interleave(2, -1)[..., ::2] for x in _same()), {}),
    "heads inside of rows": lambda: (tuple(x.transpose(1, 2).contiguous().transpose(1, 2) for x in _same()), {}),
    "seen": lambda: (_same(), {"mask": _seen(2, 4, 10, 10)}),
    "seen, width 128": lambda: (_same(width=128, values=128), {"mask": _seen(2, 4, 10, 10)}),
    "seen, width 200": lambda: (_same(width=200, values=200), {"mask": _seen(2, 4, 10, 10)}),
    "seen by all samples": lambda: (_same(), {"mask": _seen(1, 1, 10, 10)}),
    "seen by all queries": lambda: (_same(), {"mask": _seen(2, 1, 1, 10)}),
    "queries that see": lambda: (_same(), {"mask": _seen(2, 1, 10, 1)}),
    "a query sees nothing": lambda: (_same(), {"mask": _blind(_seen(2, 1, 10, 10))}),
    "minus infinity for all": lambda: (_same(), {"mask": _added(_blind(_seen(2, 1, 10, 10)))}),
    "added per head": lambda: (_same(), {"mask": torch.linspace(-1, 1, 400).view(1, 4, 10, 10)}),
}


def assert_is_defined_so(forward: Performed, backward: Performed, name: str, dtype: torch.dtype, device: str = "cpu") -> None:
    """Output and gradients are torch's, in float64 on a CPU, to what the format holds."""
    operands, options = CASES[name]()
    mask, is_causal, scale = options.get("mask"), bool(options.get("is_causal", False)), options.get("scale")
    q, k, v = (operand.to(dtype) for operand in operands)
    there = [operand.to(device) if isinstance(operand, Tensor) else operand for operand in (q, k, v, mask)]
    out, logsumexp = forward(*there, is_causal, scale)
    assert out.dtype is dtype and logsumexp.dtype is (dtype if dtype is torch.float64 else torch.float32)
    gradient = torch.linspace(-1, 1, out.numel(), dtype=dtype).view(out.shape)
    made = (out, *backward(gradient.to(device), *there, out, logsumexp, is_causal, scale))
    for mine, torchs in zip(made, _defined(q, k, v, mask, is_causal, scale, gradient), strict=True):
        assert mine.dtype is dtype
        torch.testing.assert_close(mine.double().cpu(), torchs, rtol=0, atol=FORMATS[dtype] * float(torchs.abs().max()))


def _defined(q: Tensor, k: Tensor, v: Tensor, mask: object, is_causal: bool, scale: object, gradient: Tensor) -> tuple[Tensor, ...]:
    leaves = [operand.detach().double().requires_grad_() for operand in (q, k, v)]
    if isinstance(mask, Tensor) and mask.dtype is not torch.bool:
        mask = mask.double()
    shared = q.shape[1] // k.shape[1]
    with sdpa_kernel(SDPBackend.MATH):
        out = F.scaled_dot_product_attention(
            leaves[0],
            *(leaf.repeat_interleave(shared, 1) for leaf in leaves[1:]),
            attn_mask=mask,  # type: ignore[arg-type]
            is_causal=is_causal,
            scale=scale,  # type: ignore[arg-type]
        )
    return (out.detach(), *torch.autograd.grad(out, leaves, gradient.double()))
