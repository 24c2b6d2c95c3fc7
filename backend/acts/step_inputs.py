"""The numbers of a step (learning rates), which whoever performs a Plan gives to its STEP_INPUT tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from planner.ir.errors import InvalidProgram
from planner.ir.graph import step_input_value
from planner.ir.plan import Plan, Task, TaskKind
from planner.lower.names import value_of

__all__ = ["StepNumbers", "check_numbers", "no_numbers", "numbers_by_value", "step_input_parts"]

StepNumbers = Callable[[int], Mapping[str, float]]
"""Step number -> number by name (``lr.0``: the learning rate of parameter group 0)."""


def no_numbers(step: int) -> Mapping[str, float]:
    """What Plans without STEP_INPUT tasks need."""
    return {}


def numbers_by_value(numbers: Mapping[str, float]) -> Mapping[str, float]:
    """The numbers of one step by the value that stands for them in the graph."""
    return {step_input_value(name): number for name, number in numbers.items()}


def step_input_parts(task: Task, step: int, numbers: StepNumbers) -> list[Tensor]:
    """What a STEP_INPUT task writes in the act of a step: 0-d float64 tensors, equal on all ranks.

    Raises:
        InvalidProgram: a number that the task writes is not given.
    """
    given = numbers_by_value(numbers(step))
    wanted = [value_of(access.name) for access in task.writes]
    if missing := [value for value in wanted if value not in given]:
        raise InvalidProgram(
            f"task {task.id} needs {missing[0]} at step {step}, and {', '.join(given) or 'nothing'} is given; "
            "this plan was made for a schedule of learning rates: give the Program that has one (lr_schedule=...)"
        )
    return [torch.tensor(given[value], dtype=torch.float64) for value in wanted]


def check_numbers(plan: Plan, numbers: StepNumbers, steps: range) -> None:
    """Raises InvalidProgram: a step's numbers are missing, or (of a Program's schedule) no rates."""
    for task in plan.tasks:
        if task.kind is TaskKind.STEP_INPUT:
            for step in steps:
                step_input_parts(task, step, numbers)
