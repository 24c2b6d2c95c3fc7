"""Saving is one task per placement that is home to state, and taking those tasks out again gives the Plan back."""

from __future__ import annotations

import handmade
import pytest
from stories import TableCost

from planner.ir.plan import Plan, TaskKind
from planner.lower.data_actors.saving import plain, with_saving, without_saving
from simulator import simulate

PLANS = [handmade.data_parallel(2, 2), handmade.pipeline(2)]


@pytest.mark.parametrize("plan", PLANS, ids=["data parallel", "pipeline"])
def test_the_plan_without_its_saving_tasks_is_the_plan_that_was_given(plan: Plan) -> None:
    saving = with_saving(plan)
    assert saving.plan_id != plan.plan_id
    assert plain(saving).plan_id == plan.plan_id
    assert plain(plan) is plan


@pytest.mark.parametrize("plan", PLANS, ids=["data parallel", "pipeline"])
def test_every_state_is_read_once_by_the_task_of_its_placement(plan: Plan) -> None:
    saving = with_saving(plan)
    tasks = [task for task in saving.tasks if task.kind is TaskKind.SAVE]
    assert [task.id for task in tasks] == [f"{task.placement}.save" for task in tasks] == [task.stream for task in tasks]
    read = [access.name for task in tasks for access in task.reads]
    assert sorted(read) == sorted({state.name for state in plan.states})
    assert all(saving.regst[access.regst].placement == task.placement for task in tasks for access in task.reads)
    assert all(task.acts == 1 and not task.produces for task in tasks)
    assert with_saving(saving) is saving


def test_a_trace_without_its_saving_acts_is_one_of_the_plan_that_was_given() -> None:
    plan = handmade.data_parallel(2, 2)
    trace = simulate(with_saving(plan), TableCost({}), steps=2)
    plain_trace = without_saving(plan, trace)
    assert plain_trace.plan_id == plan.plan_id
    assert {act.task for act in trace.acts} - {act.task for act in plain_trace.acts} == {
        task.id for task in with_saving(plan).tasks if task.kind is TaskKind.SAVE
    }
    assert without_saving(plan, plain_trace) is plain_trace
