"""Layers that stay whole: recurrences and attention, each one op each way."""

from planner.opset.layers import attention, recurrent

__all__ = ["TABLES"]

TABLES = (recurrent.TABLE, attention.TABLE)
