"""Layers that stay whole: recurrences and attention, each one op each way, and attention in steps."""

from planner.opset.layers import attention, blocks, recurrent
from planner.opset.layers.attention import has_place
from planner.opset.layers.blocks import BLOCK, BLOCK_BACKWARD, BLOCK_KEYS, BLOCK_SUMS

__all__ = ["BLOCK", "BLOCK_BACKWARD", "BLOCK_KEYS", "BLOCK_SUMS", "TABLES", "has_place"]

TABLES = (recurrent.TABLE, attention.TABLE, blocks.TABLE)
