"""Each law of the validator that one edit can break: of communication, of acts, of results, of states, of an op without a rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
from matrix import program, read_plan
from torch import Tensor, nn

import regista
from planner.frontend import Program
from planner.ir.collective import Collective
from planner.ir.errors import InvalidPlan, PlanDoesNotComputeProgram
from planner.ir.plan import Boxing, Fragment, Plan, Task, TaskKind
from planner.ir.sbp import NdSbp
from planner.validate import validate

Edit = Callable[[Plan], Plan]


def each(kind: TaskKind, edit: Callable[[Task], Task]) -> Edit:
    return lambda plan: replace(plan, tasks=tuple(edit(task) if task.kind is kind else task for task in plan.tasks))


def first(kind: TaskKind, edit: Callable[[Task], Task], wanted: Callable[[Task], bool] = lambda task: True) -> Edit:
    def edited(plan: Plan) -> Plan:
        place = next(number for number, task in enumerate(plan.tasks) if task.kind is kind and wanted(task))
        return replace(plan, tasks=(*plan.tasks[:place], edit(plan.tasks[place]), *plan.tasks[place + 1 :]))

    return edited


def another_collective(task: Task) -> Task:
    assert isinstance(task.body, Boxing)
    wrong = Collective.ALL_GATHER if task.body.collective is not Collective.ALL_GATHER else Collective.ALL_REDUCE
    return replace(task, body=replace(task.body, collective=wrong))


def another_layout(task: Task) -> Task:
    assert isinstance(task.body, Boxing)
    return replace(task, body=replace(task.body, src=NdSbp.parse("S(0)")))


def unknown_op(task: Task) -> Task:
    assert isinstance(task.body, Fragment)
    return replace(task, body=replace(task.body, ops=(replace(task.body.ops[0], target="aten.made_up.default"), *task.body.ops[1:])))


def exchanged_gradients(plan: Plan) -> Plan:
    a, b, *_ = plan.gradients
    return replace(plan, gradients={**plan.gradients, a: plan.gradients[b], b: plan.gradients[a]})


def without_gradient(plan: Plan) -> Plan:
    return replace(plan, gradients=dict(list(plan.gradients.items())[1:]))


def partial_loss(plan: Plan) -> Plan:
    regst = plan.regst[plan.loss.regst]
    tensors = list(regst.tensors)
    tensors[plan.loss.index] = replace(tensors[plan.loss.index], sbp=NdSbp.parse("P"))
    return replace(plan, regsts=tuple(replace(r, tensors=tuple(tensors)) if r.id == regst.id else r for r in plan.regsts))


def another_input(plan: Plan) -> Plan:
    """The labels are loaded where the inputs belong."""

    a, b, *_ = [write.name for task in plan.tasks if task.kind is TaskKind.SOURCE for write in task.writes]
    names = {a: b, b: a}
    return each(TaskKind.SOURCE, lambda t: replace(t, writes=tuple(replace(w, name=names.get(w.name, w.name)) for w in t.writes)))(plan)


WRONG: dict[str, tuple[str, str, Edit, str]] = {
    "another collective": ("mlp", "data2", first(TaskKind.BOXING, another_collective), "is not all_gather"),
    "a collective that reads another layout": ("mlp", "data2", first(TaskKind.BOXING, another_layout), r"as S\(0\), which lies as P"),
    "a source that loads too often": (
        "mlp",
        "pipeline2",
        first(TaskKind.SOURCE, lambda t: replace(t, acts=2 * t.acts)),
        "rates must agree",
    ),
    "a source that says it prepares": (
        "mlp",
        "pipeline2",
        each(TaskKind.SOURCE, lambda t: replace(t, kind=TaskKind.PREPARE)),
        "a PREPARE reads what a SOURCE has read",
    ),
    "exchanged inputs": ("mlp", "data2", another_input, "which declares batch:input.0"),
    "an op without a rule": ("mlp", "data2", first(TaskKind.FORWARD, unknown_op), "made_up"),
    "exchanged gradients": ("mlp", "data2", exchanged_gradients, "the gradient of .* it is gradient:"),
    "a gradient that is missing": ("mlp", "data2", without_gradient, "gradients: the plan and the program differ in"),
    "a loss that is a partial sum": ("mlp", "data2", partial_loss, "P"),
    "a loss that nobody fetches": (
        "mlp",
        "data2",
        lambda p: replace(p, tasks=tuple(t for t in p.tasks if t.kind is not TaskKind.FETCH)),
        "no task fetches it; each FETCH reads it, once per step",
    ),
    "a loss that is fetched twice": ("mlp", "data2", each(TaskKind.FETCH, lambda t: replace(t, acts=2)), "rates must agree"),
    "a state that is not there": (
        "mlp",
        "data2",
        lambda p: replace(p, states=p.states[1:]),
        "is state that no entry of the plan's states names",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_one_edit_breaks_one_law_and_is_refused(name: str) -> None:
    model, way, edit, says = WRONG[name]
    plan = read_plan(model, way, "fp32")
    edited = edit(plan)
    assert edited != plan
    with pytest.raises(InvalidPlan, match=says):
        validate(edited, program(model))


class TwoOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"before": (y := self.inner(x)), "after": y.tanh(), "loss": y.square().mean()}


@cache
def evaluation() -> tuple[Plan, Program]:
    source = Program(TwoOutputs(), (torch.zeros(8, 4),)).evaluating(True)
    return regista.plan(source, "local:2", micro_batches=2, pins=["input*=S(0)"]), source


def test_an_evaluation_is_proven() -> None:
    plan, source = evaluation()
    assert {output.name for output in plan.outputs} >= {"before", "after"}
    validate(plan, source)


def test_outputs_that_are_exchanged_are_refused() -> None:
    plan, source = evaluation()
    a, b = plan.outputs[:2]
    wrong = replace(plan, outputs=(replace(b, name=a.name), replace(a, name=b.name), *plan.outputs[2:]))
    with pytest.raises(PlanDoesNotComputeProgram, match=r"output \w+, tensor \d+ of regst .*: it is .*, not "):
        validate(wrong, source)


def test_an_output_by_another_name_or_along_another_dim_is_refused() -> None:
    plan, source = evaluation()
    for change in ({"name": "other"}, {"batch_dim": 1}):
        with pytest.raises(PlanDoesNotComputeProgram, match=r"outputs: the program has .*, the plan .* \(name, batch dim\)"):
            validate(replace(plan, outputs=(replace(plan.outputs[0], **change), *plan.outputs[1:])), source)  # type: ignore[arg-type]
