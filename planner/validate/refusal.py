"""The refusal of a Plan: the first difference, by task, op, value, ranks and law."""

from __future__ import annotations

from collections.abc import Iterable

from planner.ir.errors import PlanDoesNotComputeProgram
from planner.ir.plan import Plan, Task
from planner.validate.contents import Facts
from planner.validate.values.numbers import ValueNumbers

__all__ = ["at", "refusal", "shown_facts"]


def refusal(where: str, what: str, law: str) -> PlanDoesNotComputeProgram:
    """The error to raise."""
    return PlanDoesNotComputeProgram(f"{where}: {what} ({law}); this plan does not compute its program: plan it anew")


def at(plan: Plan, task: Task) -> str:
    """Where in a Plan: the task and its ranks."""
    return f"task {task.id} on {_ranks(plan.ranks_of(task))}"


def _ranks(ranks: tuple[int, ...]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if ranks == tuple(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks[:8]))}{' ...' if len(ranks) > 8 else ''}"


def shown_facts(numbers: ValueNumbers, facts: Facts) -> str:
    """What a tensor is, in words."""
    return " or ".join(_each(numbers, facts)) or "nothing that the program has"


def _each(numbers: ValueNumbers, facts: Facts) -> Iterable[str]:
    return dict.fromkeys(f"{numbers.shown(number)} as {layout}" for number, layout in facts)
