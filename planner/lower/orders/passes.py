"""The pass of a pipeline to which each task belongs: F, B, I or W of planner.schedule, and its stage."""

from __future__ import annotations

from collections import defaultdict

from planner.ir.plan import TaskKind
from planner.lower.drafts import Draft, Drafts
from planner.schedule.actions import Pass

__all__ = ["StagePass", "acts_per_step", "passes_of"]

StagePass = tuple[Pass, int]
"""(pass, stage)"""


def passes_of(drafts: Drafts, *, split: bool) -> dict[str, StagePass]:
    """Task -> its pass.  A compute task has the pass of its kind; a boxing task has the pass that reads its result, else the one that made its input.

    Args:
        split: the backward pass has an input and a weight part.
    """
    kinds = {
        TaskKind.FORWARD: Pass.FORWARD,
        TaskKind.BACKWARD: Pass.BACKWARD_INPUT if split else Pass.BACKWARD,
        TaskKind.WEIGHT: Pass.BACKWARD_WEIGHT,
    }
    pass_of = {d.id: (kinds[d.kind], d.fragment_stage) for d in drafts.tasks.values() if d.kind in kinds}
    readers: dict[str, list[str]] = defaultdict(list)
    makers: dict[str, list[str]] = defaultdict(list)
    for draft in drafts.tasks.values():
        for instance in draft.reads:
            if (made_by := drafts.owner.get(instance)) is not None:
                readers[made_by].append(draft.id)
                makers[draft.id].append(made_by)
    boxing = [d for d in drafts.tasks.values() if d.kind is TaskKind.BOXING and not acts_per_step(drafts, d)]
    for draft in reversed(boxing):
        of_neighbour = next((pass_of[r] for r in readers[draft.id] if r in pass_of), None)
        if of_neighbour is not None:
            pass_of[draft.id] = of_neighbour
    for draft in boxing:
        of_neighbour = next((pass_of[m] for m in makers[draft.id] if m in pass_of), None)
        if draft.id not in pass_of and of_neighbour is not None:
            pass_of[draft.id] = of_neighbour
    return {task: pass_of[task] for task in drafts.tasks if task in pass_of}


def acts_per_step(drafts: Drafts, draft: Draft) -> bool:
    """Whether the task acts once per step, whatever the number of micro-batches."""
    if draft.kind in (TaskKind.UPDATE, TaskKind.FETCH):
        return True
    return draft.kind.is_communication and all(drafts.per_step(i.value) and i.scope is None for i in draft.makes)
