"""A module in eval mode while it is traced for an evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from torch import nn

from planner.frontend.tracing.untouched import untouched
from planner.ir.graph import Mode

__all__ = ["in_mode"]


@contextmanager
def in_mode(module: nn.Module, mode: Mode) -> Iterator[None]:
    """Inside, the module is as a step of this kind has it: for an evaluation in eval mode, afterwards every part of it in its own again."""
    with nullcontext() if mode is Mode.TRAIN else untouched({"": module}):
        if mode is Mode.EVAL:
            module.eval()
        yield
