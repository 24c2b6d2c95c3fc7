"""Every structural law of a Plan: one edit of a sound Plan breaks it, and the refusal names what is wrong with its numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import inf
from typing import Any

import pytest
from matrix import read_plan

from planner.ir.actors.claims import verify_claims
from planner.ir.actors.verify import _verify_outputs, verify_structure
from planner.ir.errors import InvalidPlan
from planner.ir.plan import Access, DTypeFlop, Output, Plan, Port, RegstKind, TaskKind
from planner.ir.sbp import NdSbp
from planner.ir.tensor import DType

Edit = Callable[[Plan], Plan]


@cache
def sound() -> Plan:
    """A pipeline of two stages, each of two data parallel devices: all kinds of task."""
    return read_plan("mlp", "pipeline2_data2", "fp32")


def test_the_sound_plan_passes() -> None:
    verify_structure_and_claims(sound())


def test_a_tensor_without_elements_is_none_that_breaks_a_law() -> None:
    verify_structure(with_first("regsts", produced_data, tensors=of_tensor(shape=(0, 4), sbp=NdSbp.parse("B")))(sound()))


def with_first(field: str, wanted: Callable[[Any], bool], **changes: Any) -> Edit:
    """The plan with its first element of ``field`` that is ``wanted`` changed; a change may be a function of the element."""

    def edit(plan: Plan) -> Plan:
        elements = list(getattr(plan, field))
        place = next(number for number, element in enumerate(elements) if wanted(element))
        made = {name: value(elements[place]) if callable(value) else value for name, value in changes.items()}
        elements[place] = replace(elements[place], **made)
        return replace(plan, **{field: tuple(elements)})

    return edit


def with_option(name: str, text: str) -> Edit:
    return lambda plan: replace(plan, options={**plan.options, name: text})


def anything(_: object) -> bool:
    return True


def of_kind(kind: TaskKind) -> Callable[[Any], bool]:
    return lambda task: task.kind is kind


def twice(field: str) -> Edit:
    return lambda plan: replace(plan, **{field: (*getattr(plan, field), getattr(plan, field)[0])})


def of_body(**changes: Any) -> Callable[[Any], Any]:
    return lambda task: replace(task.body, **{name: value(task.body) if callable(value) else value for name, value in changes.items()})


def of_tensor(**changes: Any) -> Callable[[Any], Any]:
    return lambda regst: (replace(regst.tensors[0], **changes), *regst.tensors[1:])


def produced_data(regst: Any) -> bool:
    return regst.kind is RegstKind.DATA and bool(regst.tensors)


ONE_AXIS = NdSbp.parse("B")
EMPTY = Access(name="x", regst="nowhere", index=0)

BROKEN: dict[str, tuple[Edit, str]] = {
    "a task's id stands twice": (twice("tasks"), r"task ids \[.*\] stand twice"),
    "a regst's id stands twice": (twice("regsts"), r"regst ids \[.*\] stand twice"),
    "a stream's id stands twice": (twice("streams"), r"stream ids \[.*\] stand twice"),
    "a placement's id stands twice": (twice("placements"), r"placement ids \[.*\] stand twice"),
    "no micro-batch": (lambda p: replace(p, micro_batches=0), r"micro_batches = 0, batch_size = \d+; both are at least 1"),
    "no sample": (lambda p: replace(p, batch_size=0), r"batch_size = 0; both are at least 1"),
    "no task": (lambda p: replace(p, tasks=()), "the plan has no task"),
    **{
        f"the option {name} of another form": (with_option(name, "B"), f"its option {name} is 'B', not {what}")
        for name, what in (
            ("stages", "a whole number"),
            ("zero", "a whole number"),
            ("ema", "a number"),
            ("batch_norm", "'local, parts: N'"),
        )
    },
    "an infinite claim": (lambda p: replace(p, search=replace(p.search, objective_s=inf)), "the search claims inf s per step"),
    "a bound that is no number": (
        lambda p: replace(p, search=replace(p.search, lower_bound_s=float("nan"))),
        "at best nan s; both are finite",
    ),
    "ranks with a gap": (with_first("placements", anything, ranks=(0, 7)), r"have gaps; a plan of n devices uses ranks 0 \.\. n-1"),
    "more ranks than devices": (
        lambda p: replace(p, cluster=replace(p.cluster, num_nodes=1, devices_per_node=2)),
        "the plan uses 4 devices, cluster .* has 2",
    ),
    "a mesh of another size": (with_first("placements", anything, mesh=(3,)), r"mesh \(3,\) has 3 places for ranks"),
    "a rank twice in a placement": (with_first("placements", anything, ranks=(0, 0)), "gaps|places for ranks"),
    "an axis of no device": (with_first("placements", anything, mesh=(-1, -2)), "places for ranks"),
    "a stream without placement": (
        with_first("streams", anything, placement="s9"),
        "belongs to placement s9, which the plan does not have",
    ),
    "quota 0": (with_first("regsts", produced_data, quota=0), "has quota 0; an actor needs at least 1 block"),
    "too many blocks": (with_first("regsts", produced_data, quota=10**6 + 1), "has quota 1000001; more than 1000000 blocks serve nobody"),
    "a regst nowhere": (with_first("regsts", produced_data, placement="s9"), "lies on placement s9, which the plan does not have"),
    "a producer that is not": (with_first("regsts", produced_data, producer="nobody"), "names producer nobody, which is not a task"),
    "data without producer": (with_first("regsts", produced_data, producer=None), "has no producer; only state may be without one"),
    "state in two blocks": (with_first("regsts", lambda r: r.kind is RegstKind.STATE, quota=2), "has quota 2; state is updated in place"),
    "an SBP of another mesh": (
        with_first("regsts", produced_data, tensors=of_tensor(sbp=NdSbp.parse("B,B"))),
        "has SBP B,B for a mesh of 1 axes",
    ),
    "a negative extent": (
        with_first("regsts", produced_data, tensors=of_tensor(shape=(-1, 4))),
        r"has shape \(-1, 4\); extents are at least 0",
    ),
    "a task nowhere": (with_first("tasks", anything, placement="s9"), "is placed on s9, which the plan does not have"),
    "a stream of another placement": (
        with_first("tasks", lambda t: t.placement == "s0" and t.kind is TaskKind.FORWARD, stream="s1.compute"),
        "runs on stream s1.compute, which its placement s0 does not have",
    ),
    "a task that never acts": (with_first("tasks", anything, acts=0), "acts 0 times per step; at least 1 is needed"),
    "a port to nowhere": (
        with_first("tasks", of_kind(TaskKind.FORWARD), consumes=lambda t: (*t.consumes, Port(regst="nowhere"))),
        "names regst nowhere, which the plan does not have",
    ),
    "acts that fill no block": (
        with_first("tasks", of_kind(TaskKind.FORWARD), consumes=lambda t: (replace(t.consumes[0], acts_per_block=5), *t.consumes[1:])),
        r"5 acts per block of .* do not divide its \d+ acts per step",
    ),
    "no act per block": (
        with_first("tasks", of_kind(TaskKind.FORWARD), consumes=lambda t: (replace(t.consumes[0], acts_per_block=0), *t.consumes[1:])),
        "0 acts per block",
    ),
    "one regst by two ports": (
        with_first("tasks", of_kind(TaskKind.FORWARD), consumes=lambda t: (*t.consumes, t.consumes[0])),
        "consumes a regst twice; one port per regst",
    ),
    "what another produces": (
        with_first("tasks", of_kind(TaskKind.BACKWARD), produces=lambda t: (*t.produces, Port(regst=forward_regst(t.placement)))),
        "produces regst .*, whose producer is .*fwd",
    ),
    "a read of what is not consumed": (
        with_first("tasks", of_kind(TaskKind.FORWARD), consumes=lambda t: t.consumes[1:]),
        "reads regst .* without consuming it",
    ),
    "a write of what is not produced": (
        with_first("tasks", of_kind(TaskKind.FORWARD), writes=lambda t: (*t.writes, replace(t.reads[0], name=t.writes[0].name))),
        "writes regst .* without producing it",
    ),
    "a read of a tensor that is not": (
        with_first("tasks", of_kind(TaskKind.FORWARD), reads=lambda t: (replace(t.reads[0], index=99), *t.reads[1:])),
        "names tensor 99 of regst .*, which has",
    ),
    "a read before the first tensor": (
        with_first("tasks", of_kind(TaskKind.FORWARD), reads=lambda t: (replace(t.reads[0], index=-1), *t.reads[1:])),
        "names tensor -1 of regst",
    ),
    "a forward task without a body": (
        with_first("tasks", of_kind(TaskKind.FORWARD), body=None),
        "of kind forward has a body of type NoneType",
    ),
    "a boxing task without a body": (
        with_first("tasks", of_kind(TaskKind.BOXING), body=None),
        "of kind boxing has a body of type NoneType",
    ),
    "negative work": (with_first("tasks", of_kind(TaskKind.FORWARD), body=of_body(traffic_bytes=-1)), "-1 B of traffic"),
    "negative workspace": (
        with_first("tasks", of_kind(TaskKind.FORWARD), body=of_body(workspace_bytes=-1)),
        "-1 B of workspace; none is negative",
    ),
    "more flop in one dtype than in all": (
        with_first(
            "tasks", of_kind(TaskKind.FORWARD), body=of_body(flop_by_dtype=lambda b: (DTypeFlop(dtype=DType.FLOAT32, flop=b.flop + 1),))
        ),
        "are no more than the whole",
    ),
    "a dtype's flop twice": (
        with_first("tasks", of_kind(TaskKind.FORWARD), body=of_body(flop_by_dtype=(DTypeFlop(dtype=DType.FLOAT32, flop=0),) * 2)),
        "stand once per dtype",
    ),
    "an op that reads what nobody defines": (
        with_first("tasks", of_kind(TaskKind.FORWARD), body=of_body(ops=lambda b: b.ops[1:])),
        "reads .*, which nothing before it defines",
    ),
    "a write of what is never computed": (
        with_first("tasks", of_kind(TaskKind.FORWARD), writes=lambda t: (replace(t.writes[0], name="nothing"), *t.writes[1:])),
        r"writes \['nothing'\], which it never computes",
    ),
    "an op whose keyword is no name": (
        with_first("tasks", of_kind(TaskKind.FORWARD), body=of_body(ops=lambda b: (replace(b.ops[0], kwargs=(("class", 1),)), *b.ops[1:]))),
        r"has keyword arguments \['class'\]; they must be names",
    ),
    "boxing along an axis that is not": (
        with_first("tasks", of_kind(TaskKind.BOXING), body=of_body(axis=1)),
        "works on axis 1 of a mesh of 1 axes",
    ),
    "boxing from another mesh": (
        with_first("tasks", of_kind(TaskKind.BOXING), body=of_body(src=NdSbp.parse("P,B"))),
        "P,B -> .* on axis 0 are not of one mesh",
    ),
    "communication that loses a tensor": (
        with_first("tasks", of_kind(TaskKind.BOXING), writes=lambda t: t.writes[1:]),
        r"reads \d+ tensors and writes \d+; communication keeps their number",
    ),
    "a transfer of nothing": (
        with_first("tasks", of_kind(TaskKind.TRANSFER), reads=(), writes=()),
        "moves 0 tensors to placements",
    ),
    "a regst of another placement": (
        with_first(
            "tasks", lambda t: t.kind is TaskKind.UPDATE and t.placement == "s0", consumes=lambda t: (*t.consumes, Port(regst=loss_regst()))
        ),
        "uses regst .*, which lies on s1; only a TRANSFER crosses",
    ),
    "rates that drift": (
        with_first("tasks", of_kind(TaskKind.FORWARD), acts=lambda t: 2 * t.acts),
        "rates must agree|acts per block",
    ),
    "an order that leaves a task out": (
        with_first("streams", lambda s: len(s.order) > 1, order=lambda s: s.order[1:]),
        r"orders \{.*\}, but its tasks act \{.*\} times per step",
    ),
    "collectives without an order": (
        with_first("streams", lambda s: s.kind.value == "collective", order=()),
        "carries collectives without an order; all ranks must call them alike",
    ),
    "a loss nowhere": (lambda p: replace(p, loss=EMPTY), "loss names regst nowhere, which the plan does not have"),
    "a gradient nowhere": (lambda p: replace(p, gradients={**p.gradients, "w": EMPTY}), "gradient of w names regst nowhere"),
    "a state nowhere": (with_first("states", anything, index=999), r"state .* names tensor 999 of regst"),
    "an output that nobody hands over": (
        lambda p: replace(p, outputs=(Output(name="logits", regst=p.loss.regst, index=p.loss.index, batch_dim=0),)),
        r"no task hands over output logits in each of \d+ micro-batches",
    ),
}


def forward_regst(placement: str) -> str:
    return next(
        r.id for r in sound().regsts if r.placement == placement and r.producer and sound().task[r.producer].kind is TaskKind.FORWARD
    )


def loss_regst() -> str:
    return sound().loss.regst


def verify_structure_and_claims(plan: Plan) -> None:
    verify_structure(plan)
    verify_claims(plan)


@pytest.mark.parametrize("law", BROKEN)
def test_a_plan_that_breaks_a_law_is_refused_by_it(law: str) -> None:
    edit, said = BROKEN[law]
    plan = edit(sound())
    with pytest.raises(InvalidPlan, match=said):
        verify_structure_and_claims(plan)


def test_what_lies_at_a_limit_is_within_it(monkeypatch: pytest.MonkeyPatch) -> None:
    acts = sum(task.acts for task in sound().tasks)
    for name, most in (("MOST_ACTS", acts), ("MOST_BLOCKS", max(regst.quota for regst in sound().regsts))):
        monkeypatch.setattr(f"planner.ir.actors.verify.{name}", most)
        verify_structure(sound())
        monkeypatch.setattr(f"planner.ir.actors.verify.{name}", most - 1)
        with pytest.raises(
            InvalidPlan, match=rf"{most} (acts per step, more than {most - 1}|.*; more than {most - 1} blocks)|has quota {most}"
        ):
            verify_structure(sound())
        monkeypatch.undo()
    verify_structure(replace(sound(), micro_batches=1))
    verify_structure(replace(sound(), batch_size=1))


@pytest.mark.parametrize("index", [-1, 1])
def test_an_access_names_a_tensor_of_its_regst(index: int) -> None:
    for edit in (
        lambda p, a: replace(p, loss=a),
        lambda p, a: replace(p, gradients={"x": a}),
        lambda p, a: with_first("tasks", of_kind(TaskKind.FETCH), reads=(a,))(p),
        lambda p, a: replace(p, outputs=(Output(name="o", regst=a.regst, index=a.index),)),
        lambda p, a: with_first("states", anything, regst=a.regst, index=a.index)(p),
        lambda p, a: with_first("tasks", lambda t: any(w.regst == loss_regst() for w in t.writes), writes=(a,))(p),
    ):
        with pytest.raises(InvalidPlan, match=rf"names tensor {index} of regst {loss_regst()}, which has 1"):
            verify_structure(edit(sound(), replace(sound().loss, index=index)))


def test_a_boxing_has_its_axis_and_layouts_of_one_mesh() -> None:
    nothing, two = NdSbp(()), NdSbp.parse("B,B")
    for src, dst, axis in ((nothing, nothing, 0), (ONE_AXIS, two, 0), (two, ONE_AXIS, 0), (nothing, ONE_AXIS, 0), (ONE_AXIS, nothing, 0)):
        with pytest.raises(InvalidPlan, match="on axis 0 are not of one mesh"):
            verify_structure(with_first("tasks", of_kind(TaskKind.BOXING), body=of_body(src=src, dst=dst, axis=axis))(sound()))
    for axis in (-1, 1):
        with pytest.raises(InvalidPlan, match=f"works on axis {axis} of a mesh of 1 axes"):
            verify_structure(with_first("tasks", of_kind(TaskKind.BOXING), body=of_body(axis=axis))(sound()))


def test_a_stream_that_carries_a_collective_has_an_order_whatever_else_it_carries() -> None:
    boxing = next(task for task in sound().tasks if task.kind is TaskKind.BOXING)
    fetch = next(task for task in sound().tasks if task.kind is TaskKind.FETCH and task.placement == "s1")
    plan = with_first(
        "tasks",
        lambda task: task.id == fetch.id,
        stream=next(t.stream for t in sound().tasks if t.placement == "s1" and t.kind is boxing.kind),
    )(sound())
    plan = replace(plan, streams=tuple(replace(stream, order=()) for stream in plan.streams))
    with pytest.raises(InvalidPlan, match="carries collectives without an order"):
        verify_structure(plan)
    local = with_mesh_of_one(plan)
    verify_structure(local)


def with_mesh_of_one(plan: Plan) -> Plan:
    """Each placement has its first rank alone, so nobody meets."""
    first = {placement.id: number for number, placement in enumerate(plan.placements)}
    return replace(plan, placements=tuple(replace(placement, mesh=(1,), ranks=(first[placement.id],)) for placement in plan.placements))


@pytest.mark.parametrize(
    ("micro_batches", "batch_dim", "is_put_together"),
    [
        (1, None, True),
        (1, 0, True),
        (1, 1, True),
        (1, 2, False),
        (1, -1, False),
        (2, None, False),
        (2, 0, True),
        (2, 1, True),
        (2, 2, False),
    ],
)
def test_an_output_is_of_one_micro_batch_or_put_together_along_a_dim_that_it_has(
    micro_batches: int, batch_dim: int | None, is_put_together: bool
) -> None:
    regst = forward_regst("s1")
    changes = {"kind": TaskKind.OUTPUT, "acts": micro_batches, "consumes": (), "reads": (Access(name="o", regst=regst, index=0),)}
    plan = with_first("tasks", of_kind(TaskKind.FETCH), **changes)(sound())
    assert len(plan.regst[regst].tensors[0].shape) == 2
    output = Output(name="o", regst=regst, index=0, batch_dim=batch_dim)
    plan = replace(plan, micro_batches=micro_batches, outputs=(output,))
    if is_put_together:
        _verify_outputs(plan)
        return
    with pytest.raises(InvalidPlan, match=rf"is put together along dim {batch_dim} of {micro_batches} micro-batches"):
        _verify_outputs(plan)
