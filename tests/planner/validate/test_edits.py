"""A Plan that computes something else is refused, and the first difference is named; one that is only written differently is proven."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from matrix import program, read_plan

from planner.ir.errors import PlanDoesNotComputeProgram
from planner.ir.graph import Op, Ref
from planner.ir.plan import Fragment, PlacedTensor, Plan, RegstKind, Task, TaskKind
from planner.ir.sbp import NdSbp
from planner.validate import validate

Edit = Callable[[Plan], Plan]


def with_task(plan: Plan, task_id: str, edit: Callable[[Task], Task]) -> Plan:
    return replace(plan, tasks=tuple(edit(task) if task.id == task_id else task for task in plan.tasks))


def with_ops(plan: Plan, edit: Callable[[Op], Op], kind: TaskKind = TaskKind.FORWARD) -> Plan:
    """Edit the ops of all fragments of a kind."""

    def edited(task: Task) -> Task:
        if task.kind is not kind or not isinstance(task.body, Fragment):
            return task
        return replace(task, body=replace(task.body, ops=tuple(map(edit, task.body.ops))))

    return replace(plan, tasks=tuple(map(edited, plan.tasks)))


def without_all_reduce(plan: Plan) -> Plan:
    """The readers of a gradient's all-reduce take what it reads."""
    (box, *_) = [task for task in plan.tasks if ".all_reduce.grad" in task.id or ".all_reduce.axis0.grad" in task.id]
    moved = {(w.regst, w.index): r for r, w in zip(box.reads, box.writes, strict=True)}
    made = {port.regst for port in box.produces}
    tasks = []
    for task in plan.tasks:
        if task.id == box.id:
            continue
        reads = tuple(replace(moved[a.regst, a.index], name=a.name) if (a.regst, a.index) in moved else a for a in task.reads)
        ports = [port for port in task.consumes if port.regst not in made]
        if reads != task.reads:
            ports += [port for port in box.consumes if port.regst not in {p.regst for p in ports}]
        tasks.append(replace(task, reads=reads, consumes=tuple(ports)))
    streams = tuple(replace(s, order=tuple(t for t in s.order if t != box.id)) for s in plan.streams)
    return replace(plan, tasks=tuple(tasks), streams=streams, regsts=tuple(r for r in plan.regsts if r.id not in made))


def exchanged_pairs(plan: Plan) -> Plan:
    """Two tensors of one shape that a communication moves change places."""
    for task in plan.tasks:
        if task.kind not in (TaskKind.BOXING, TaskKind.TRANSFER):
            continue
        shapes: dict[object, int] = {}
        for place, write in enumerate(task.writes):
            tensor = plan.regst[write.regst].tensors[write.index]
            other = shapes.setdefault((tensor.shape, tensor.dtype, tensor.sbp), place)
            if other != place:
                reads = list(task.reads)
                reads[place], reads[other] = reads[other], reads[place]
                return with_task(plan, task.id, lambda t, reads=tuple(reads): replace(t, reads=reads))
    raise AssertionError("no communication moves two tensors of one shape")


def exchanged_states(plan: Plan) -> Plan:
    """Two parameters of one shape and layout change places."""
    seen: dict[object, int] = {}
    for place, entry in enumerate(plan.states):
        tensor = plan.regst[entry.regst].tensors[entry.index]
        other = seen.setdefault((entry.kind, tensor.shape, tensor.dtype, tensor.sbp), place)
        if other != place and plan.regst[entry.regst].producer is not None:
            states = list(plan.states)
            a, b = states[place], states[other]
            states[place], states[other] = replace(a, name=b.name), replace(b, name=a.name)
            return replace(plan, states=tuple(states))
    raise AssertionError("no two states of one shape")


def replaced_target(old: str, new: str) -> Edit:
    return lambda plan: with_ops(plan, lambda op: replace(op, target=new) if op.target == old else op)


def another_rate(plan: Plan) -> Plan:
    def edit(op: Op) -> Op:
        return replace(op, args=tuple(0.02 if arg == 0.01 else arg for arg in op.args)) if op.target == "regista.adamw" else op

    return with_ops(plan, edit, TaskKind.UPDATE)


def exchanged_operands(plan: Plan) -> Plan:
    def edit(op: Op) -> Op:
        return replace(op, args=(op.args[1], op.args[0])) if op.target == "aten.sub.Tensor" else op

    return with_ops(plan, edit)


def unaccumulated(plan: Plan) -> Plan:
    """The gradient of the last micro-batch alone counts."""

    def edit(task: Task) -> Task:
        return replace(task, produces=tuple(replace(port, acts_per_block=1) for port in task.produces))

    (first, *_) = [t.id for t in plan.tasks if any(p.acts_per_block > 1 for p in t.produces)]
    changed = with_task(plan, first, edit)
    regsts = {p.regst for p in changed.task[first].produces}
    m = plan.micro_batches
    readers = {t.id for t in plan.tasks for p in t.consumes if p.regst in regsts and t.acts == 1}
    return replace(changed, tasks=tuple(replace(t, acts=m) if t.id in readers else t for t in changed.tasks))


def declared_whole(plan: Plan) -> Plan:
    """A split state lies whole on every device, says the Plan."""

    def edit(tensor: PlacedTensor) -> PlacedTensor:
        return replace(tensor, sbp=NdSbp.broadcast(len(tensor.sbp))) if tensor.name == name else tensor

    name = next(t.name for r in plan.regsts if r.kind is RegstKind.STATE for t in r.tensors if t.sbp != NdSbp.broadcast(len(t.sbp)))
    return replace(plan, regsts=tuple(replace(r, tensors=tuple(map(edit, r.tensors))) for r in plan.regsts))


WRONG: Mapping[str, tuple[str, str, Edit, str]] = {
    "an all-reduce is taken out": ("mlp", "data2", without_all_reduce, r"update|upd"),
    "the pairs of a boxing are exchanged": ("mlp", "data2", exchanged_pairs, r"writes gradient:"),
    "the pairs of a gather are exchanged": ("gpt", "zero3", exchanged_pairs, r"writes parameter:"),
    "states of one shape are exchanged": ("mlp", "data2", exchanged_states, r"the program has no|it writes updated:"),
    "another target": ("mlp", "tensor2", replaced_target("aten.relu.default", "aten.sigmoid.default"), r"the program has no aten.sigmoid"),
    "another learning rate": ("mlp", "zero1", another_rate, r"literals"),
    "operands are exchanged": ("mlp", "data2", exchanged_operands, r"the program has no aten.sub.Tensor on what it reads"),
    "a gradient is not accumulated": ("mlp", "pipeline2", unaccumulated, r"mean:loss of a single micro-batch"),
    "another layout of a state": ("mlp", "zero1", declared_whole, r"zero|S\(0\)|signature"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_plan_that_computes_something_else_is_refused(name: str) -> None:
    model, way, edit, says = WRONG[name]
    plan = read_plan(model, way, "fp32")
    edited = edit(plan)
    assert edited != plan
    with pytest.raises(PlanDoesNotComputeProgram) as refused:
        validate(edited, program(model))
    assert re.search(says, str(refused.value)), refused.value


def renamed_inside(plan: Plan) -> Plan:
    """Every value inside of a fragment has another name."""

    def edit(task: Task) -> Task:
        if not isinstance(task.body, Fragment):
            return task
        outside = {a.name for a in (*task.reads, *task.writes)}
        names = {v: f"{v} anew" for op in task.body.ops for v in op.outputs if v is not None and v not in outside}
        ops = tuple(
            replace(op.renamed(names), id=f"{op.id} anew", outputs=tuple(None if v is None else names.get(v, v) for v in op.outputs))
            for op in task.body.ops
        )
        return replace(task, body=replace(task.body, ops=ops))

    return replace(plan, tasks=tuple(map(edit, plan.tasks)))


def turned_sums(plan: Plan) -> Plan:
    def edit(op: Op) -> Op:
        two = op.target == "aten.add.Tensor" and len(op.args) == 2 and all(isinstance(arg, Ref) for arg in op.args)
        return replace(op, args=(op.args[1], op.args[0])) if two else op

    return with_ops(plan, edit, TaskKind.BACKWARD)


@pytest.mark.parametrize("edit", [renamed_inside, turned_sums])
def test_a_plan_that_is_only_written_differently_is_proven(edit: Edit) -> None:
    plan = read_plan("gpt", "data2_tensor2", "fp32")
    edited = edit(plan)
    assert edited != plan
    validate(edited, program("gpt"))
