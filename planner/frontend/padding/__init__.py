"""Batches that do not divide: samples that count nothing are added, and every sum over samples leaves them out."""

from planner.frontend.padding.program import PaddedProgram

__all__ = ["PaddedProgram"]
