"""How even a pipeline's stages are: what each computes in a step, beside the mean."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from planner.ir.units import show_s
from regista.analysis.budget import Spending, StageWork, stage_work

__all__ = ["balance_json", "show_balance"]


def show_balance(spending: Sequence[Spending]) -> Table | None:
    """One row per stage; None for a plan of one stage."""
    stages = stage_work(spending)
    if len(stages) < 2:
        return None
    table = Table(title="balance of the stages, per step", title_justify="left", caption_justify="left")
    table.add_column("stage")
    for column in ("passes", "update", "computes", "against the mean"):
        table.add_column(column, justify="right")
    for stage in stages:
        table.add_row(
            stage.placement, show_s(stage.passes_s), show_s(stage.once_s), show_s(stage.compute_s), f"{_share(stage, stages):+.1%}"
        )
    table.caption = "tasks that compute, at the cluster's prices; passes: of all micro-batches"
    return table


def _share(stage: StageWork, stages: Sequence[StageWork]) -> float:
    """How far a stage is from the mean of all."""
    mean_s = sum(one.compute_s for one in stages) / len(stages)
    return stage.compute_s / mean_s - 1 if mean_s else 0.0


def balance_json(spending: Sequence[Spending]) -> list[dict[str, object]]:
    """Seconds per step of each stage."""
    return [{"stage": one.placement, "passes_s": one.passes_s, "once_s": one.once_s} for one in stage_work(spending)]
