"""What a step leaves: the loss, states, gradients, outputs, and what of the batch and of the first state enters it, against the program's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from planner.ir.graph import InputKind, LogicalGraph
from planner.ir.plan import Access, Plan, RegstKind, State, Task, TaskKind
from planner.validate.contents import Contents, Facts
from planner.validate.refusal import at, refusal, shown_facts

__all__ = ["check_inputs", "check_results", "first_states"]


def check_inputs(plan: Plan, graph: LogicalGraph) -> None:
    """The Plan is fed as the program is: its batch inputs, in order, are the graph's.

    Raises:
        PlanDoesNotComputeProgram: an input differs.
    """
    given = [(i.name, i.value, i.batch_dim, i.whole_of) for i in graph.inputs if i.kind is InputKind.BATCH]
    taken = [(i.name, i.value, i.batch_dim, i.whole_of) for i in plan.batch_inputs]
    if given != taken:
        wrong = next((pair for pair in zip(given, taken, strict=False) if pair[0] != pair[1]), (given, taken))
        raise refusal(
            "batch inputs", f"the program takes {wrong[0]}, the plan {wrong[1]} (name, value, batch dim, whole of)", "SEMANTICS 6.1"
        )


def first_states(plan: Plan, graph: LogicalGraph, contents: Contents) -> Iterator[tuple[tuple[str, int], Facts]]:
    """(Regst, index) -> what lies there when a step begins: of every tensor of state the value that its State entry names.

    Raises:
        PlanDoesNotComputeProgram: a tensor of state has no entry, or two, or one of another name, kind or type than the program's.
    """
    of_name = {given.name: given for given in graph.inputs if given.kind.is_state}
    name_of = {given.value: given.name for given in graph.inputs}
    seen: set[tuple[str, int]] = set()
    for entry in plan.states:
        place, given, where = (entry.regst, entry.index), of_name.get(entry.name), f"state {entry.name}"
        if given is None or given.kind is not entry.kind:
            raise refusal(where, f"the program has no {entry.kind.value} of that name", "every state is one of the program's")
        copy_of = None if given.copy_of is None else name_of[given.copy_of]
        if copy_of != entry.copy_of:
            raise refusal(where, f"it is a copy of {entry.copy_of}, the program's of {copy_of}", "SEMANTICS 9.2")
        if plan.regst[entry.regst].kind is not RegstKind.STATE or place in seen:
            raise refusal(where, f"it lies in tensor {entry.index} of {entry.regst}, which is no state, or another one", "SEMANTICS 3")
        seen.add(place)
        facts = contents.agreeing(*place, ((contents.numbers.of[given.value], contents.declared(*place)),))
        if not facts:
            placed, type_ = contents.placed(*place), graph.values[given.value]
            raise refusal(where, f"it is {placed.dtype.value}{list(placed.shape)}, the program's {type_}", "SEMANTICS 1")
        yield place, facts
    for regst in plan.regsts:
        missing = [n for n in range(len(regst.tensors)) if (regst.id, n) not in seen] if regst.kind is RegstKind.STATE else []
        if missing:
            raise refusal(f"regst {regst.id}", f"tensor {missing[0]} is state that no entry of the plan's states names", "SEMANTICS 3")


def check_results(plan: Plan, graph: LogicalGraph, contents: Contents) -> None:
    """All that the program's step makes, the Plan makes, and it hands it over.

    Raises:
        PlanDoesNotComputeProgram: the first that is missing or another one.
    """
    numbers = contents.numbers
    _check_states(plan, graph)
    _check_loss(plan, graph, contents)
    if plan.gradients.keys() != graph.gradients.keys():
        differing = sorted(plan.gradients.keys() ^ graph.gradients.keys())
        raise refusal("gradients", f"the plan and the program differ in {differing[:4]}", "SEMANTICS 6.1")
    for name, value in graph.gradients.items():
        _check_is(contents, f"the gradient of {name}", plan.gradients[name], numbers.of[value])
    given = [(output.name, output.batch_dim) for output in graph.outputs]
    taken = [(output.name, output.batch_dim) for output in plan.outputs]
    if given != taken:
        raise refusal("outputs", f"the program has {given}, the plan {taken} (name, batch dim)", "SEMANTICS 8.2")
    for output, made in zip(plan.outputs, graph.outputs, strict=True):
        _check_is(
            contents, f"output {output.name}", Access(name=output.name, regst=output.regst, index=output.index), numbers.of[made.value]
        )
    for task in plan.tasks:
        if task.kind is TaskKind.SAVE:
            _check_saved(plan, task)


def _check_states(plan: Plan, graph: LogicalGraph) -> None:
    """Each state that a step replaces is there, and the state that it does not replace has no task that writes it."""
    entries: dict[str, list[State]] = defaultdict(list)
    for entry in plan.states:
        entries[entry.name].append(entry)
    for given in graph.inputs:
        for entry in entries.get(given.name, []) if given.kind.is_state else []:
            producer = plan.regst[entry.regst].producer
            if (given.value in graph.updates) != (producer is not None):
                changed = "changes" if given.value in graph.updates else "leaves it as it is"
                raise refusal(f"state {given.name}", f"a step of the program {changed}, in the plan {producer} writes it", "SEMANTICS 6.1")
        if given.value in graph.updates and not entries.get(given.name):
            raise refusal(f"state {given.name}", "the plan does not have it, and a step of the program changes it", "SEMANTICS 6.1")


def _check_loss(plan: Plan, graph: LogicalGraph, contents: Contents) -> None:
    place = plan.loss.regst, plan.loss.index
    _check_is(contents, "the loss", plan.loss, contents.numbers.of[graph.mean_loss])
    layout = contents.declared(*place)
    if layout != layout.broadcast(len(layout)):
        raise refusal("the loss", f"it lies as {layout}, and one rank hands it over", "SEMANTICS 6.1")
    fetched = [task for task in plan.tasks if task.kind is TaskKind.FETCH]
    if not fetched or any(place not in {(a.regst, a.index) for a in task.reads} or task.acts != 1 for task in fetched):
        raise refusal(
            "the loss", f"{', '.join(t.id for t in fetched) or 'no task'} fetches it; each FETCH reads it, once per step", "SEMANTICS 6.1"
        )


def _check_is(contents: Contents, what: str, access: Access, wanted: int) -> None:
    held = contents.facts.get((access.regst, access.index), ())
    if all(number != wanted for number, _ in held):
        where = f"{what}, tensor {access.index} of regst {access.regst}"
        raise refusal(where, f"it is {shown_facts(contents.numbers, held)}, not {contents.numbers.shown(wanted)}", "SEMANTICS 6.1")


def _check_saved(plan: Plan, task: Task) -> None:
    of_place = {(entry.regst, entry.index): entry.name for entry in plan.states}
    for access in task.reads:
        if of_place.get((access.regst, access.index)) != access.name:
            raise refusal(at(plan, task), f"it saves {of_place.get((access.regst, access.index))} as {access.name}", "SEMANTICS 8.3")
