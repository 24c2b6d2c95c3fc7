"""Layers that stay whole: recurrences and attention, each one op each way."""

from planner.opset.layers import attention, recurrent
from planner.opset.layers.attention import has_place

__all__ = ["TABLES", "has_place"]

TABLES = (recurrent.TABLE, attention.TABLE)
