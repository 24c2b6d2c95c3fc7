"""What is laid into a Regst is what it declares, at the rate that it must have (SEMANTICS 1, 3.6, 6.1), asked of the writer alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from planner.ir.errors import PlanDoesNotComputeProgram
from planner.ir.graph import Role
from planner.ir.plan import Port, Task, TaskKind
from planner.ir.sbp import NdSbp
from planner.ir.tensor import DType
from planner.validate.contents import single_axes_whole
from tests.planner.validate.proofs import Proof, proof

B, P = NdSbp.parse("B"), NdSbp.parse("P")


def refused(says: str) -> Any:
    return pytest.raises(PlanDoesNotComputeProgram, match=says)


def forward() -> Task:
    """It writes a data Regst of several tensors, and the loss, which accumulates."""
    return proof().first(TaskKind.FORWARD, lambda task: any(port.acts_per_block == 2 for port in task.produces))


def source() -> Task:
    return proof().first(TaskKind.SOURCE)


def update() -> Task:
    return proof().first(TaskKind.UPDATE)


def fresh() -> Proof:
    """Blocks that nobody has written yet, with what tasks wrote elsewhere."""
    return Proof(proof().plan, proof().graph, proof().contents.facts)


def test_what_was_proven_stands_in_the_blocks() -> None:
    asked = fresh()
    wanted = dict(asked.contents.facts)
    for task in (source(), forward()):
        facts = asked.prover.written(task)
        for write in task.writes:
            del asked.contents.facts[write.regst, write.index]
        asked.lay(task, facts)
    assert asked.contents.facts == wanted


@pytest.mark.parametrize("acts", [0, 3, 4])
def test_a_task_acts_once_per_step_or_once_per_micro_batch(acts: int) -> None:
    with refused(f"it acts {acts} times, a step has 2 micro-batches .SEMANTICS 3.6"):
        proof().lay(source(), acts=acts)
    fresh().lay(source(), acts=1)
    fresh().lay(source(), acts=2)


def test_each_tensor_is_written_once() -> None:
    task, facts = forward(), proof().written(forward())
    first = task.writes[0]
    with refused(f"it writes tensor {first.index} of regst {first.regst} twice"):
        proof().lay(task, [*facts, facts[0]], writes=(*task.writes, first))
    kept = [number for number, write in enumerate(task.writes) if write.regst == first.regst]
    with refused(f"it never writes tensor {task.writes[kept[1]].index} of regst {first.regst}"):  # the first of two that are missing
        without = [number for number in range(len(task.writes)) if number not in kept[1:3]]
        proof().lay(task, [facts[n] for n in without], writes=tuple(task.writes[n] for n in without))


def loss_write() -> tuple[Task, int, str]:
    """The forward task, the place of its write that accumulates, and the Regst."""
    task = forward()
    regst = next(port.regst for port in task.produces if port.acts_per_block == 2)
    return task, next(n for n, write in enumerate(task.writes) if write.regst == regst), regst


def with_fill(task: Task, regst: str, fill: int) -> tuple[Port, ...]:
    return tuple(replace(port, acts_per_block=fill) if port.regst == regst else port for port in task.produces)


def test_a_block_that_accumulates_is_filled_by_all_acts_of_a_step_and_by_a_task_that_computes() -> None:
    task, _, regst = loss_write()
    facts = proof().written(task)
    for changes in ({"produces": with_fill(task, regst, 4)}, {"acts": 1}, {"kind": TaskKind.TRANSFER}):
        with refused(f"acts fill a block of {regst} with their mean, a step has 2 micro-batches"):
            proof().lay(task, facts, **changes)


def test_a_mean_is_not_the_value_of_one_micro_batch_nor_the_other_way_round() -> None:
    task, place, regst = loss_write()
    facts = proof().written(task)
    with refused(f"it writes mean:loss of a single micro-batch as P to tensor 0 of regst {regst}"):
        proof().lay(task, facts, produces=with_fill(task, regst, 1))
    settled = [*facts]
    settled[place] = proof().contents.facts[regst, 0]
    with refused(f"it writes mean:loss as P to tensor 0 of regst {regst}"):
        proof().lay(task, settled)
    unnamed = proof().with_tensor(regst, 0, name="anything")
    for wrong, changes in ((facts, {"produces": with_fill(task, regst, 1)}), (settled, {})):
        with refused("which declares anything"):
            unnamed.lay(task, wrong, **changes)


@pytest.mark.parametrize("changes", [{"sbp": "S(0)"}, {"shape": (64, 16)}, {"dtype": DType.FLOAT64}, {"name": "relu_1"}], ids=str)
def test_a_tensor_is_what_its_regst_declares(changes: dict[str, Any]) -> None:
    task = proof().first(TaskKind.TRANSFER)
    (write,), facts = task.writes, proof().written(task)
    asked = proof().with_tensor(write.regst, write.index, **{"sbp": "S(1)"} | changes)
    with refused(rf"it writes .* to tensor {write.index} of regst {write.regst}, which declares"):
        asked.lay(task, [((facts[0][0][0], NdSbp.parse("S(1)" if "sbp" not in changes else "B")),)])
    with refused("it writes nothing that the program has"):
        fresh().lay(task, [()])


def test_a_name_that_the_program_does_not_have_says_nothing_and_one_of_several_facts_suffices() -> None:
    task = proof().first(TaskKind.TRANSFER)
    (write,), (facts,) = task.writes, proof().written(task)
    unnamed = proof().with_tensor(write.regst, write.index, name="anything")
    unnamed.lay(task, [facts])
    relu = proof().numbers.of["relu"]
    for mixed in ((*facts, (facts[0][0], B)), ((facts[0][0], B), *facts)):
        asked = fresh()
        asked.lay(task, [mixed])
        assert asked.contents.facts[write.regst, write.index] == facts
    type_of_both = proof().numbers.type_of(facts[0][0])
    alike = next(n for n in proof().numbers.names if n not in (facts[0][0], relu) and proof().numbers.type_of(n) == type_of_both)
    both = ((alike, facts[0][1]), *facts)
    asked = fresh()
    asked.lay(task, [both])
    assert asked.contents.facts[write.regst, write.index] == both


# --- state -------------------------------------------------------------------------------------------------------------------


def test_a_state_becomes_what_the_program_makes_of_it() -> None:
    task, facts = update(), proof().written(update())
    before = dict(proof().contents.facts)
    proof().lay(task)
    assert proof().contents.facts == before, "its first value is read all the step"
    name = proof().plan.states[0].name
    with refused(rf"state parameter:{name}: it writes parameter:.* to it, the program updated:"):
        old = [proof().contents.facts[write.regst, write.index] for write in task.writes]
        proof().lay(task, old)
    several = [(old[0], *new) for old, new in zip([proof().contents.facts[w.regst, w.index] for w in task.writes], facts, strict=True)]
    proof().lay(task, several)


def test_a_state_that_the_program_leaves_as_it_is_is_not_written() -> None:
    asked = proof().with_graph(updates={})
    with refused("it writes it, and a step of the program leaves it as it is"):
        asked.lay(update(), proof().written(update()))


def test_a_state_is_replaced_as_often_as_in_the_program() -> None:
    task, facts = update(), proof().written(update())
    with refused("it replaces it 2 times per step, the program 1 times"):
        proof().lay(task, facts, acts=2)
    with refused("it replaces it 1 times per step, the program 1 times"):
        proof().lay(task, facts, acts=2, produces=tuple(replace(port, acts_per_block=2) for port in task.produces))
    in_passes = proof().with_graph(ops=tuple(replace(op, role=Role.BACKWARD) if op.role is Role.UPDATE else op for op in proof().graph.ops))
    in_passes.lay(task, facts, acts=2)
    with refused("it replaces it 1 times per step, the program 2 times"):
        in_passes.lay(task, facts, acts=1)


# --- layouts -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "mesh", "whole"),
    [
        ("S(0)", (1,), "B"),
        ("P", (1,), "B"),
        ("S(0)", (2,), "S(0)"),
        ("S(0),P", (1, 2), "B,P"),
        ("S(0),P", (2, 1), "S(0),B"),
        ("P,P", (2, 3), "P,P"),
    ],
)
def test_along_an_axis_of_one_device_all_layouts_are_the_whole(layout: str, mesh: tuple[int, ...], whole: str) -> None:
    assert single_axes_whole(NdSbp.parse(layout), mesh) == NdSbp.parse(whole)


def test_values_of_a_tensor_are_those_of_its_facts() -> None:
    regst = next(iter(proof().contents.facts))
    assert proof().contents.numbers_in(*regst) == {number for number, _ in proof().contents.facts[regst]}
    assert proof().contents.numbers_in("elsewhere", 0) == frozenset()
