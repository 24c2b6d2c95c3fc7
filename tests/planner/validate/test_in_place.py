"""Performers update state in place after the last use of its name; no other name of the same memory may outlive that."""

from __future__ import annotations

from dataclasses import replace

import pytest
from matrix import read_plan

from planner.ir.errors import PlanDoesNotComputeProgram
from planner.ir.graph import Op, Ref, Role
from planner.ir.plan import Access, Fragment, Plan, Task
from planner.validate.in_place import check_in_place

WEIGHT = "parameter:head.weight"
VIEW = Op(id="view", target="aten.t.default", args=(Ref(WEIGHT),), outputs=("view",), role=Role.UPDATE)
COPY = Op(id="copy", target="aten.neg.default", args=(Ref(WEIGHT),), outputs=("copy",), role=Role.UPDATE)
READER = Op(id="reader", target="aten.relu.default", args=(Ref("view"),), outputs=("read",), role=Role.UPDATE)


@pytest.fixture
def plan() -> Plan:
    return read_plan("mlp", "data2", "fp32")


def update_of(plan: Plan) -> tuple[Task, Fragment]:
    task = plan.task["s0.upd.0"]
    assert isinstance(task.body, Fragment)
    return task, task.body


def test_a_view_of_state_may_be_read_before_its_update_alone(plan: Plan) -> None:
    task, body = update_of(plan)
    check_in_place(plan, task, replace(body, ops=(VIEW, READER, *body.ops)))
    with pytest.raises(PlanDoesNotComputeProgram, match=r"op reader .* it reads view, which lies in the memory of parameter:head\.weight"):
        check_in_place(plan, task, replace(body, ops=(VIEW, *body.ops, READER)))


@pytest.mark.parametrize(("op", "is_refused"), [(VIEW, True), (COPY, False)])
def test_memory_of_updated_state_is_not_handed_on(plan: Plan, op: Op, is_refused: bool) -> None:
    task, body = update_of(plan)
    handed_on = replace(task, writes=(*task.writes, Access(name=str(op.outputs[0]), regst="elsewhere", index=0)))
    changed = replace(body, ops=(op, *body.ops))
    if not is_refused:
        check_in_place(plan, handed_on, changed)
        return
    with pytest.raises(PlanDoesNotComputeProgram, match=r"it writes view, which lies in the memory of parameter:head\.weight"):
        check_in_place(plan, handed_on, changed)


def test_the_old_state_is_not_written_back_behind_its_update(plan: Plan) -> None:
    task, body = update_of(plan)
    (read,) = [access for access in task.reads if access.name == WEIGHT]
    with pytest.raises(PlanDoesNotComputeProgram, match=f"it writes {WEIGHT}"):
        check_in_place(plan, replace(task, writes=(*task.writes, read)), body)
