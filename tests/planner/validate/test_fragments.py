"""Ops of a fragment on the facts of what they read, in a program of a few ops (SEMANTICS 11.1, 11.2); and the order in which tasks are executed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from planner.ir.errors import PlanDoesNotComputeProgram
from planner.ir.graph import ACCUMULATE, Arg, GraphInput, InputKind, LogicalGraph, Op, Ref, Role
from planner.ir.plan import Fragment, Plan, Port, Regst, RegstKind, TaskKind
from planner.ir.sbp import NdSbp
from planner.ir.tensor import DType, TensorType
from planner.validate import validate
from planner.validate.contents import Facts
from planner.validate.fragments import FragmentProver, ProvenFragments
from planner.validate.validate import validate_graph
from tests.planner.validate.proofs import proof

X, ROW, PLACES = TensorType((8, 6), DType.FLOAT32), TensorType((8,), DType.FLOAT32), TensorType((8,), DType.INT64)
TYPES = {"x": X, "y": X, "values": ROW, "indices": PLACES, "made": X, "mean": X}
B, P, S0, S1 = (NdSbp.parse(text) for text in ("B", "P", "S(0)", "S(1)"))


def op(target: str, *args: Arg, outputs: tuple[str | None, ...] = ("made",)) -> Op:
    return Op(id="o", target=target, args=args, outputs=outputs, role=Role.FORWARD)


LARGEST = op("aten.max.dim", Ref("x"), 1, outputs=("values", "indices"))
RELU = op("aten.relu.default", Ref("x"))


def boxing(src: str, dst: str, axis: Arg = 0, *rest: Arg) -> Op:
    return op("regista.boxing", Ref("x"), src, dst, axis, *rest)


class Asked:
    """A program of some ops on x and y, of which one rank of two performs others on given layouts."""

    def __init__(self, *program: Op, plan: Plan | None = None) -> None:
        inputs = tuple(GraphInput(value=value, kind=InputKind.BATCH, name=value) for value in "xy")
        fragments = ProvenFragments(LogicalGraph(values=TYPES, inputs=inputs, ops=program, loss="x", mean_loss="x"))
        self.numbers = fragments.numbers
        self.task = proof().first(TaskKind.FORWARD)
        self.prover = FragmentProver(plan or proof().plan, fragments)

    def computes(self, *ops: Op, x: Facts | NdSbp = B, y: NdSbp = B) -> dict[str, Facts]:
        assert isinstance(self.task.body, Fragment)
        of_x = ((self.numbers.of["x"], x),) if isinstance(x, NdSbp) else x
        read = {"x": of_x, "y": ((self.numbers.of["y"], y),)}
        found = self.prover.results(self.task, replace(self.task.body, ops=ops), read)
        assert {name: found[name] for name in read} == read
        return {name: facts for name, facts in found.items() if name not in read}


def refused(says: str) -> Any:
    return pytest.raises(PlanDoesNotComputeProgram, match=says)


def test_each_result_has_the_number_and_the_layout_that_the_rule_gives() -> None:
    asked = Asked(LARGEST, RELU)
    of = asked.numbers.of
    local = replace(RELU, id="another name", outputs=("z",), role=Role.BACKWARD, module="elsewhere")
    assert asked.computes(local, x=S1) == {"z": ((of["made"], S1),)}
    assert asked.computes(LARGEST, x=S0) == {"values": ((of["values"], S0),), "indices": ((of["indices"], S0),)}
    with refused("no signature takes these layouts on what it reads .x is x as P."):
        asked.computes(local, x=P)


def test_results_that_nobody_reads_are_left_out_here_or_in_the_program() -> None:
    asked = Asked(LARGEST)
    of = asked.numbers.of
    assert asked.computes(replace(LARGEST, outputs=(None, "second"))) == {"second": ((of["indices"], B),)}
    unread = Asked(replace(LARGEST, outputs=("values", None)))
    assert unread.computes(replace(LARGEST, outputs=("first", None))) == {"first": ((unread.numbers.of["values"], B),)}


def test_each_fact_of_an_operand_may_prove_the_op() -> None:
    asked = Asked(RELU)
    x, y, made = (asked.numbers.of[value] for value in ("x", "y", "made"))
    assert asked.computes(RELU, x=((y, B), (x, P), (x, S0), (x, B)))["made"] == ((made, S0), (made, B))
    with refused("the program has no aten.relu.default on what it reads"):
        asked.computes(RELU, x=((y, B),))


def test_an_op_with_other_literals_or_without_a_rule_is_refused() -> None:
    with refused("its literals .* are not those of the program's op"):
        Asked(LARGEST).computes(replace(LARGEST, args=(Ref("x"), 0)))
    unknown = op("made.up.op", Ref("x"))
    with refused("no rule takes it: "):
        Asked(unknown).computes(unknown)


def test_the_mean_over_one_micro_batch_is_the_value_and_over_several_it_is_pending() -> None:
    mean = op(ACCUMULATE, Ref("x"), outputs=("mean",))
    several, one = Asked(mean), Asked(mean, plan=replace(proof().plan, micro_batches=1))
    (((number, _),),) = several.computes(mean).values()
    assert several.numbers.settled(number) == several.numbers.of["mean"]
    assert one.computes(mean) == {"mean": ((one.numbers.of["mean"], B),)}


def test_a_boxing_inside_a_fragment_keeps_the_value() -> None:
    asked = Asked(RELU)
    x = asked.numbers.of["x"]
    assert asked.computes(boxing("B", "S(0)")) == {"made": ((x, S0),)}
    assert asked.computes(boxing("B", "P"), x=((x, S0), (x, B), (x, P))) == {"made": ((x, P),)}
    with refused(
        r"it reads x, which is x as S\(0\) or x as P: it takes B on axis 0, and is given S\(0\); it takes B on axis 0, and is given P"
    ):
        asked.computes(boxing("B", "S(0)"), x=((x, S0), (x, P)))
    with refused(r"regista.boxing takes \(value, src, dst, axis\[, extent\]\)"):
        asked.computes(boxing("B", "S(0)", 1))


# --- the order of tasks ------------------------------------------------------------------------------------------------------


def with_task(task: str, **changes: Any) -> Plan:
    return replace(proof().plan, tasks=tuple(replace(t, **changes) if t.id == task else t for t in proof().plan.tasks))


def test_tasks_are_executed_after_those_that_they_read_from_wherever_they_stand() -> None:
    report = validate_graph(replace(proof().plan, tasks=proof().plan.tasks[::-1]), proof().graph)
    assert (report.tasks, report.micro_batches, report.gradients) == (len(proof().plan.tasks), 2, len(proof().graph.gradients))


def test_tasks_that_wait_for_each_other_in_one_act_are_refused() -> None:
    update = proof().first(TaskKind.UPDATE)
    own = Regst(id="own", placement=update.placement, producer=update.id, tensors=(), quota=1, kind=RegstKind.DATA)
    port = Port(regst="own", acts_per_block=1)
    alone = replace(
        with_task(update.id, consumes=(*update.consumes, port), produces=(*update.produces, port)), regsts=(*proof().plan.regsts, own)
    )
    with refused(f"tasks {update.id}: each reads what another one of them writes in the same act"):
        validate_graph(alone, proof().graph)
    loss = proof().first(TaskKind.BOXING, lambda task: "loss" in task.id)
    circle = with_task(loss.id, consumes=(*loss.consumes, *loss.produces))
    with refused(f"tasks {loss.id}, fetch: each reads"):
        validate_graph(circle, proof().graph)


def test_a_plan_for_other_inputs_or_another_batch_is_refused() -> None:
    class Traced:
        batch_size = 32

        def graph(self, micro_batches: int = 1) -> LogicalGraph:
            return proof().graph

    with refused("the batch: the plan is for 64 samples, the program has 32"):
        validate(proof().plan, Traced())
    with refused("batch inputs: the program takes"):
        validate_graph(replace(proof().plan, batch_inputs=proof().plan.batch_inputs[::-1]), proof().graph)
