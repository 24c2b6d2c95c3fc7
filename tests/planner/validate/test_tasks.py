"""Each law of what a task may write (SEMANTICS 2, 3.5, 3.6, 3.11), asked of the task alone: behind the laws of structure nobody else would see it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from planner.ir.collective import Collective
from planner.ir.errors import PlanDoesNotComputeProgram, RegistaError
from planner.ir.graph import GraphInput, InputKind
from planner.ir.plan import Access, Boxing, Fragment, Task, TaskKind
from planner.ir.sbp import NdSbp
from planner.validate.contents import RAW, Facts
from tests.planner.validate.proofs import Proof, proof


def refused(says: str) -> Any:
    return pytest.raises(PlanDoesNotComputeProgram, match=says)


def boxing(task: Task, **changes: Any) -> Boxing:
    assert isinstance(task.body, Boxing)
    return replace(task.body, **{name: NdSbp.parse(value) if isinstance(value, str) else value for name, value in changes.items()})


def source() -> Task:
    return proof().first(TaskKind.SOURCE)


def loaded() -> Facts:
    return proof().contents.facts[source().writes[0].regst, 0]


def transfer() -> Task:
    return proof().first(TaskKind.TRANSFER)


def fetch() -> Task:
    return proof().first(TaskKind.FETCH)


def reduce() -> Task:
    """An all-reduce of gradients."""
    return proof().first(TaskKind.BOXING)


def loss() -> Task:
    """The all-reduce of the loss."""
    return proof().first(TaskKind.BOXING, lambda task: "loss" in task.id)


def test_a_source_reads_nothing_and_what_prepares_reads() -> None:
    assert list(proof().written(source())) == [loaded()]
    assert list(proof().written(source(), kind=TaskKind.PREPARE, reads=source().writes)) == [loaded()]
    with refused("a SOURCE reads nothing"):
        proof().written(source(), reads=source().writes)
    with refused("a PREPARE reads what a SOURCE has read"):
        proof().written(source(), kind=TaskKind.PREPARE)


def test_a_source_loads_inputs_of_the_program_one_micro_batch_per_act() -> None:
    with refused(r"it writes batch:other, the program's inputs are \['batch:input.0', 'batch:input.1'\]"):
        proof().written(source(), writes=(replace(source().writes[0], name="batch:other"),))
    with refused("loads one micro-batch per act, 2 in all; it acts 1 times"):
        proof().written(source(), acts=1)
    bare = replace(source().writes[0], name="batch:input.0")
    assert list(proof().written(source(), writes=(bare,))) == [loaded()], "with or without its layout behind it"


def test_what_readers_make_of_raw_data_is_noted_and_nothing_is_claimed_of_it() -> None:
    asked = Proof(proof().plan, proof().graph, proof().contents.facts)
    raw = replace(source().writes[0], name=f"{RAW}bytes")
    assert not asked.prover.not_checked
    assert list(asked.written(source(), writes=(raw,))) == [()]
    assert list(asked.prover.not_checked) == ["what readers make of raw data"]
    asked.lay(source(), [loaded()], writes=(raw,))
    assert asked.contents.facts[raw.regst, raw.index] == ()


def test_a_copy_copies_each_tensor_that_it_reads() -> None:
    copy = replace(source(), kind=TaskKind.COPY, reads=source().writes)
    assert list(proof().written(copy)) == [loaded()]
    with refused("it copies each tensor that it reads"):
        proof().written(copy, reads=())
    with refused("it copies each tensor that it reads"):
        proof().written(copy, writes=())


@pytest.mark.parametrize("kind", [TaskKind.FETCH, TaskKind.OUTPUT, TaskKind.SAVE])
def test_what_hands_over_writes_nothing(kind: TaskKind) -> None:
    assert list(proof().written(fetch(), kind=kind)) == []
    with refused("it hands over what it reads and writes nothing"):
        proof().written(fetch(), kind=kind, writes=fetch().reads)


@pytest.mark.parametrize("kind", [TaskKind.BOXING, TaskKind.TRANSFER])
def test_a_communication_writes_each_tensor_that_it_reads(kind: TaskKind) -> None:
    task = proof().first(kind)
    for changes in ({"writes": task.writes[:-1]}, {"reads": task.reads[:-1]}):
        with pytest.raises(ValueError, match="zip"):
            list(proof().written(task, **changes))


# --- boxings -----------------------------------------------------------------------------------------------------------------


def test_a_boxing_changes_the_layout_of_the_value_that_it_reads() -> None:
    for read, write, facts in zip(reduce().reads, reduce().writes, proof().written(reduce()), strict=True):
        ((number, _),) = proof().contents.facts[read.regst, read.index]
        assert facts == ((number, NdSbp.parse("B")),) == proof().contents.facts[write.regst, write.index]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"src": "S(0)"}, r"it reads mean:loss as S\(0\), which lies as P"),
        ({"dst": "S(0)"}, r"it writes mean:loss@B as S\(0\), which lies as B"),
        ({"collective": Collective.ALL_GATHER}, "P -> B is not all_gather"),
        ({"collective": Collective.LOCAL}, "P -> B is not local"),
    ],
)
def test_a_boxing_reads_and_writes_what_it_says_by_the_collective_that_does_it(changes: dict[str, Any], says: str) -> None:
    with refused(says):
        proof().written(loss(), body=boxing(loss(), **changes))


def test_a_boxing_between_two_reductions_is_none() -> None:
    asked = proof().with_tensor(loss().writes[0].regst, 0, sbp="P(max)")
    with refused(r"two different partial reductions cannot be exchanged"):
        asked.written(loss(), body=boxing(loss(), dst="P(max)"))


def test_a_boxing_obeys_the_laws_of_a_step() -> None:
    asked = proof().with_tensor(loss().writes[0].regst, 0, sbp="S(0)")
    with refused(r"mean:loss, P -> S\(0\) on axis 0: S\(0\) cannot lie on mesh"):
        asked.written(loss(), body=boxing(loss(), dst="S(0)", collective=Collective.REDUCE_SCATTER))


# --- transfers ---------------------------------------------------------------------------------------------------------------


def test_a_transfer_brings_the_value_into_the_layout_of_the_receivers() -> None:
    (read,), (write,) = transfer().reads, transfer().writes
    ((number, _),) = proof().contents.facts[read.regst, read.index]
    assert list(proof().with_tensor(write.regst, write.index, sbp="S(1)").written(transfer())) == [((number, NdSbp.parse("S(1)")),)]
    for access in (read, write):
        with refused("partial values are reduced before they travel"):
            proof().with_tensor(access.regst, access.index, sbp="P").written(transfer())


# --- numbers of a step -------------------------------------------------------------------------------------------------------


def with_step_input() -> tuple[Proof, Task]:
    """The labels' tensor holds a learning rate instead, whole on each rank."""
    source = proof().first(TaskKind.SOURCE, lambda task: len(task.writes) > 1)
    (whole,) = [write for write in source.writes if write.name.endswith("@B")]
    rate = GraphInput(value="lr.0", kind=InputKind.STEP_INPUT, name="lr.0")
    graph = replace(
        proof().graph,
        inputs=(*proof().graph.inputs, rate),
        values={**proof().graph.values, "lr.0": proof().graph.values[proof().graph.loss]},
    )
    task = replace(source, kind=TaskKind.STEP_INPUT, acts=1, writes=(replace(whole, name="lr.0@B"),))
    return Proof(proof().plan, graph, proof().contents.facts), task


def test_a_number_of_a_step_is_written_whole_and_once_per_step() -> None:
    asked, task = with_step_input()
    assert list(asked.written(task)) == [((asked.numbers.of["lr.0"], NdSbp.parse("B")),)]
    with refused(r"it writes lr.0 once per step, 1 in all; it acts 2 times"):
        asked.written(task, acts=2)
    with refused(r"it writes batch:input.1@B, the program's inputs are \['lr.0'\]"):
        asked.written(task, writes=(replace(task.writes[0], name="batch:input.1@B"),))
    (write,) = task.writes
    with refused("each rank has the whole of lr.0, which lies as S"):
        asked.with_tensor(write.regst, write.index, sbp="S(0)").written(task)


# --- fragments ---------------------------------------------------------------------------------------------------------------


def forward() -> tuple[Task, Fragment]:
    task = proof().first(TaskKind.FORWARD)
    assert isinstance(task.body, Fragment)
    return task, task.body


def test_of_two_reads_under_one_name_the_first_counts() -> None:
    task, _ = forward()
    other = next(read for read in task.reads if read.name.endswith("bias"))
    assert proof().written(task, reads=(*task.reads, replace(other, name=task.reads[0].name))) == proof().written(task)
    with pytest.raises(RegistaError):
        proof().written(task, reads=(replace(other, name=task.reads[0].name), *task.reads))


def test_a_value_is_computed_once() -> None:
    task, body = forward()
    with refused("it computes .*, which is there already .assigned once"):
        proof().written(task, body=replace(body, ops=(*body.ops, body.ops[0])))


def test_results_that_nobody_reads_are_passed_over_and_those_behind_them_are_not() -> None:
    task, body = forward()
    made = next(name for name in body.ops[-1].outputs if name is not None)
    unread = replace(body.ops[0], id="unread", outputs=(None,))
    assert proof().written(task, body=replace(body, ops=(unread, *body.ops))) == proof().written(task)
    with pytest.raises(KeyError, match=made):
        proof().written(
            task,
            body=replace(body, ops=(*body.ops[:-1], replace(body.ops[-1], outputs=(None,)))),
            writes=(Access(name=made, regst="", index=0),),
        )


def test_an_op_that_no_rule_takes_is_refused_with_the_rules_words() -> None:
    task, body = forward()
    wrong = tuple(replace(op, target="made.up") if op.target == "aten.relu.default" else op for op in body.ops)
    with refused("the program has no made.up on what it reads"):
        proof().written(task, body=replace(body, ops=wrong))


def test_a_random_op_draws_in_every_micro_batch() -> None:
    task, body = forward()
    drawing = tuple(replace(op, draw=0) if op.target == "aten.relu.default" else op for op in body.ops)
    with refused("it draws in 1 acts, a step has 2 micro-batches"):
        proof().written(task, acts=1, body=replace(body, ops=drawing))
    with refused("the program has no aten.relu.default of draw 0"):
        proof().written(task, body=replace(body, ops=drawing))


def test_state_that_was_updated_in_place_is_not_read_again() -> None:
    update = proof().first(TaskKind.UPDATE)
    read = update.reads[0]
    assert list(proof().written(update, writes=(update.writes[0],)))
    with refused("lies in the memory of"):
        proof().written(update, writes=(*update.writes, read))
