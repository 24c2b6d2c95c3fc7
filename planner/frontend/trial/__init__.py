"""Trying out, before a batch is cut, whether what has its extent is the batch."""

from __future__ import annotations

from planner.frontend.trial.extents import refuse_ambiguous

__all__ = ["refuse_ambiguous"]
