"""Attention as one op each way: its kernels, and how torch's scaled_dot_product_attention becomes it while it is traced."""

from collections.abc import Callable

from planner.frontend.attention.blocks import block, block_backward, block_keys, block_sums
from planner.frontend.attention.calls import whole_attention
from planner.frontend.attention.form import Attention, attention_in, attention_of
from planner.frontend.attention.ops import attention, attention_backward

__all__ = ["KERNELS", "Attention", "attention_in", "attention_of", "whole_attention"]

KERNELS: dict[str, Callable[..., object]] = {
    "regista.attention": attention,
    "regista.attention_backward": attention_backward,
    "regista.attention_block": block,
    "regista.attention_block_backward": block_backward,
    "regista.attention_block_keys": block_keys,
    "regista.attention_block_sums": block_sums,
}
"""Target -> the function that performs it."""
