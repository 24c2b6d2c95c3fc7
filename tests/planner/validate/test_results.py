"""All that a step leaves is the program's, and all that enters it (SEMANTICS 3, 6.1, 8, 9.2): each difference by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from planner.ir.errors import PlanDoesNotComputeProgram
from planner.ir.graph import GraphOutput, InputKind, LogicalGraph
from planner.ir.plan import Access, Output, Plan, State, TaskKind
from planner.ir.sbp import NdSbp
from planner.validate.contents import Contents
from planner.validate.results import check_inputs, check_results, first_states
from tests.planner.validate.proofs import Proof, proof


def refused(says: str) -> Any:
    return pytest.raises(PlanDoesNotComputeProgram, match=says)


def check(asked: Proof) -> None:
    check_results(asked.plan, asked.graph, asked.contents)


def states(plan: Plan, graph: LogicalGraph | None = None) -> dict[Any, Any]:
    return dict(first_states(plan, graph or proof().graph, Contents(plan, proof().numbers)))


def with_state(number: int = 0, **changes: Any) -> Plan:
    given = proof().plan.states
    return replace(proof().plan, states=(*given[:number], replace(given[number], **changes), *given[number + 1 :]))


# --- what enters -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [{"name": "x"}, {"value": "x"}, {"batch_dim": 1}, {"whole_of": "input.0"}], ids=str)
@pytest.mark.parametrize("place", [0, 1])
def test_a_plan_takes_the_batch_inputs_of_the_program(change: dict[str, Any], place: int) -> None:
    plan, graph = proof().plan, proof().graph
    check_inputs(plan, graph)
    inputs = [replace(given, **change) if n == place else given for n, given in enumerate(plan.batch_inputs)]
    with refused(rf"batch inputs: the program takes .'input.{place}', .*, the plan .* \(name, value, batch dim, whole of\)"):
        check_inputs(replace(plan, batch_inputs=tuple(inputs)), graph)
    with refused("batch inputs: the program takes "):
        check_inputs(replace(plan, batch_inputs=plan.batch_inputs[:1]), graph)
    with refused("batch inputs: the program takes "):
        check_inputs(replace(plan, batch_inputs=plan.batch_inputs[::-1]), graph)


def test_a_step_begins_with_the_values_that_the_states_name() -> None:
    found, numbers = states(proof().plan), proof().numbers
    assert found == {(s.regst, s.index): ((numbers.of[f"{s.kind.value}:{s.name}"], NdSbp.parse("B")),) for s in proof().plan.states}


def test_a_state_is_one_of_the_programs() -> None:
    with refused("state x: the program has no parameter of that name"):
        states(with_state(name="x"))
    with refused("the program has no buffer of that name"):
        states(with_state(kind=InputKind.BUFFER))
    with refused("it is a copy of x, the program's of None"):
        states(with_state(copy_of="x"))


def test_a_working_copy_is_of_the_parameter_that_the_program_copies() -> None:
    first, second = proof().plan.states[:2]
    value = f"parameter:{second.name}"
    inputs = tuple(replace(i, copy_of=value) if i.name == first.name else i for i in proof().graph.inputs)
    graph = replace(proof().graph, inputs=inputs)
    with refused(f"it is a copy of None, the program's of {second.name}"):
        states(proof().plan, graph)
    assert states(with_state(copy_of=second.name), graph)


def test_each_tensor_of_state_is_named_once_and_nothing_else_is() -> None:
    first, second = proof().plan.states[:2]
    with refused("which is no state, or another one"):
        states(with_state(1, regst=first.regst, index=first.index))
    with refused("which is no state, or another one"):
        states(with_state(regst=proof().plan.loss.regst, index=0))
    with refused(rf"regst {first.regst}: tensor {first.index} is state that no entry of the plan's states names"):
        states(replace(proof().plan, states=proof().plan.states[1:]))
    last = proof().plan.states[-1]
    with refused(rf"regst {last.regst}: tensor {last.index} is state that no entry"):
        states(replace(proof().plan, states=proof().plan.states[:-1]))
    assert second != first


def test_a_state_has_the_programs_type() -> None:
    first = proof().plan.states[0]
    with refused(rf"state {first.name}: it is float32\[1, 2\], the program's float32\["):
        states(proof().with_tensor(first.regst, first.index, shape=(1, 2)).plan)


# --- what it leaves ----------------------------------------------------------------------------------------------------------


def test_the_plan_leaves_what_the_program_leaves() -> None:
    check(proof())


def without_producer(regst: str) -> Proof:
    return proof().with_plan(regsts=tuple(replace(r, producer=None) if r.id == regst else r for r in proof().plan.regsts))


def test_a_state_is_written_if_and_only_if_the_program_changes_it() -> None:
    first = proof().plan.states[0]
    with refused("a step of the program changes, in the plan None writes it"):
        check(without_producer(first.regst))
    updates = {value: new for value, new in proof().graph.updates.items() if value != f"parameter:{first.name}"}
    with refused(rf"state {first.name}: a step of the program leaves it as it is, in the plan s\d.upd.0 writes it"):
        check(proof().with_graph(updates=updates))
    fewer = tuple(entry for entry in proof().plan.states if entry.name != first.name)
    with refused(rf"state {first.name}: the plan does not have it, and a step of the program changes it"):
        check(proof().with_plan(states=fewer))
    check(proof().with_graph(updates=updates).with_plan(states=fewer))


def test_every_copy_of_a_state_is_looked_at() -> None:
    first = proof().plan.states[0]
    constant = next(r for r in proof().plan.regsts if r.producer is not None)
    stays = replace(constant, id="stays", producer=None)
    copies = (*proof().plan.states, State(name=first.name, kind=first.kind, regst="stays", index=0))
    with refused("in the plan None writes it"):
        check(proof().with_plan(regsts=(*proof().plan.regsts, stays), states=copies))


def fetched(plan: Plan) -> str:
    return next(task.id for task in plan.tasks if task.kind is TaskKind.FETCH)


def with_fetch(**changes: Any) -> Proof:
    return proof().with_plan(tasks=tuple(replace(t, **changes) if t.kind is TaskKind.FETCH else t for t in proof().plan.tasks))


def test_the_loss_is_the_programs_whole_and_fetched_once_per_step() -> None:
    plan = proof().plan
    (boxing,) = [task for task in plan.tasks if task.writes and task.writes[0].regst == plan.loss.regst]
    parts = boxing.reads[0]
    with refused(r"the loss: it lies as P, and one rank hands it over"):
        check(proof().with_plan(loss=replace(plan.loss, regst=parts.regst, index=parts.index)))
    gradient = next(iter(plan.gradients.values()))
    with refused(r"the loss, tensor \d+ of regst .*: it is gradient:.* as .*, not mean:loss"):
        check(proof().with_plan(loss=gradient))
    with refused("no task fetches it; each FETCH reads it, once per step"):
        check(proof().with_plan(tasks=tuple(t for t in plan.tasks if t.kind is not TaskKind.FETCH)))
    with refused("fetch fetches it; each FETCH reads it, once per step"):
        check(with_fetch(acts=2))
    with refused("fetch fetches it; each FETCH reads it, once per step"):
        check(with_fetch(reads=(gradient,)))
    check(with_fetch(reads=(gradient, plan.loss)))
    another = replace(plan.task[fetched(plan)], id="another", reads=(gradient,))
    with refused("fetch, another fetches it"):
        check(proof().with_plan(tasks=(*plan.tasks, another)))


def test_a_loss_that_nobody_wrote_is_none() -> None:
    asked = Proof(proof().plan, proof().graph, proof().contents.facts)
    del asked.contents.facts[asked.plan.loss.regst, asked.plan.loss.index]
    with refused("it is nothing that the program has, not mean:loss"):
        check(asked)


def test_of_several_facts_one_suffices() -> None:
    asked = Proof(proof().plan, proof().graph, proof().contents.facts)
    place = asked.plan.loss.regst, asked.plan.loss.index
    asked.contents.facts[place] = ((-1, NdSbp.parse("B")), *asked.contents.facts[place], (-2, NdSbp.parse("B")))
    check(asked)


def renamed(gradients: dict[str, Access]) -> dict[str, Access]:
    first, *others = gradients
    return {"x": gradients[first], **{name: gradients[name] for name in others}}


def exchanged(gradients: dict[str, Access]) -> dict[str, Access]:
    first, *_, last = gradients
    return gradients | {first: gradients[last], last: gradients[first]}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (renamed, r"gradients: the plan and the program differ in \['.*', 'x'\]"),
        (exchanged, r"the gradient of .*: it is gradient:.* as .*, not gradient:"),
        (lambda gradients: dict(list(gradients.items())[:-1]), "gradients: the plan and the program differ in"),
    ],
)
def test_gradients_are_the_programs(change: Callable[[dict[str, Access]], dict[str, Access]], says: str) -> None:
    with refused(says):
        check(proof().with_plan(gradients=change(dict(proof().plan.gradients))))


def test_outputs_are_the_programs_in_its_order() -> None:
    plan, graph = proof().plan, proof().graph
    name, value = next(iter(graph.gradients.items()))
    loss, gradient = plan.loss, plan.gradients[name]
    made = (GraphOutput(name="loss", value=graph.mean_loss, batch_dim=0), GraphOutput(name="gradient", value=value))
    given = (
        Output(name="loss", regst=loss.regst, index=loss.index, batch_dim=0),
        Output(name="gradient", regst=gradient.regst, index=gradient.index),
    )
    wanted = proof().with_graph(outputs=made)

    def check_outputs(*outputs: Output) -> None:
        check(Proof(replace(plan, outputs=outputs), wanted.graph, wanted.contents.facts))

    check_outputs(*given)
    for outputs in (given[:1], given[::-1], (replace(given[0], name="x"), given[1]), (given[0], replace(given[1], batch_dim=1)), ()):
        with refused(r"outputs: the program has \[\('loss', 0\), \('gradient', None\)\], the plan"):
            check_outputs(*outputs)
    with refused("output gradient, tensor .*: it is mean:loss as B, not gradient:"):
        check_outputs(given[0], replace(given[1], regst=loss.regst, index=loss.index))
    with refused("output loss, tensor .*: it is gradient:.*, not mean:loss"):
        check_outputs(replace(given[0], regst=gradient.regst, index=gradient.index), given[1])


def test_a_checkpoint_has_each_state_under_its_name() -> None:
    plan = proof().plan
    entries = plan.states[:2]
    reads = tuple(Access(name=entry.name, regst=entry.regst, index=entry.index) for entry in entries)
    save = replace(plan.task[fetched(plan)], id="save", kind=TaskKind.SAVE, reads=reads)

    def check_saved(*reads: Access) -> None:
        check(proof().with_plan(tasks=(*plan.tasks, replace(save, reads=reads))))

    check_saved(*reads)
    with refused(f"task save on rank.*: it saves {entries[1].name} as {entries[0].name}"):
        check_saved(reads[0], replace(reads[1], name=entries[0].name))
    with refused("it saves None as "):
        check_saved(replace(plan.loss, name=entries[0].name))
