"""Outputs on their way from workers to their parent: a file per act of an OUTPUT task in the run's folder."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from backend.acts.outputs import OutputParts, put_together
from planner.ir.plan import Plan

__all__ = ["save_outputs", "take_outputs"]


def save_outputs(folder: Path, step: int, parts: OutputParts) -> None:
    """What one act of a rank hands over."""
    place, micro_batch, rank = next(iter(parts))
    torch.save({key: value.to("cpu", copy=True) for key, value in parts.items()}, folder / f"output{step}.{place}.{micro_batch}.{rank}.pt")


def take_outputs(folder: Path, plan: Plan, step: int) -> dict[str, Tensor]:
    """The outputs of a step, all parts of which have been saved; their files are removed."""
    parts: dict[tuple[int, int, int], Tensor] = {}
    for path in folder.glob(f"output{step}.*.pt"):
        parts |= torch.load(path, weights_only=True)
        path.unlink()
    return put_together(plan, parts)
