"""Symbolic execution of a fragment: the facts of what it reads become the facts of what it computes, op by op.

An op is proven where the program has an op of the same target, draw and literals on the same values, and a rule takes the layouts that they have
here (planner.validate.values.forms).  What the op is called, and what its values are called, says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from planner.ir.errors import InvalidPlan, RegistaError
from planner.ir.graph import ACCUMULATE, Effect, LogicalGraph, Op
from planner.ir.plan import Fragment, Plan, Task
from planner.ir.sbp import NdSbp
from planner.validate.contents import Fact, Facts
from planner.validate.refusal import at, refusal, shown_facts
from planner.validate.values.forms import LocalForms
from planner.validate.values.literals import arguments_key, operand_places
from planner.validate.values.numbers import ValueNumbers
from planner.validate.values.steps import BOXING_OP, LocalStep

__all__ = ["FragmentProver", "ProvenFragments"]


_Reads = tuple[tuple[str, Facts], ...]
_Key = tuple[int, tuple[int, ...], tuple[int, int], _Reads, tuple[str, ...]]
"""The identity of a fragment, the mesh, acts and micro-batches, the facts of what it reads, and the names of what its task writes."""


@dataclass(slots=True)
class ProvenFragments:
    """What the fragments of proven Plans of one graph compute; only those of the latest Plan are kept."""

    graph: LogicalGraph
    numbers: ValueNumbers = field(init=False)
    _known: dict[_Key, tuple[Fragment, Sequence[Facts]]] = field(default_factory=dict)
    _latest: dict[_Key, tuple[Fragment, Sequence[Facts]]] = field(default_factory=dict)
    """By identity, with the fragments, which are held so that no other gets the same."""

    def __post_init__(self) -> None:
        self.numbers = ValueNumbers(self.graph)

    def once(self, key: _Key, body: Fragment, make: Callable[[], Sequence[Facts]]) -> Sequence[Facts]:
        """What was proven with the same key, or is proven now."""
        self._latest[key] = found = self._known.get(key) or (body, make())
        return found[1]

    def keep_latest(self) -> None:
        """Forget what was not asked about since the last time."""
        self._known, self._latest = self._latest, {}


class FragmentProver:
    """Executes the fragments of a Plan.   known: of proven Plans of the same graph; those of this one are added."""

    def __init__(self, plan: Plan, known: ProvenFragments) -> None:
        self._plan, self._known, self._numbers, self._forms = plan, known, known.numbers, LocalForms()

    def written(self, task: Task, body: Fragment, read: Mapping[str, Facts]) -> Sequence[Facts]:
        """The facts of what the fragment's task writes, in order; arguments and errors as of ``results``."""
        names = tuple(write.name for write in task.writes)
        times = task.acts, self._plan.micro_batches
        key = id(body), self._plan.placement[task.placement].mesh, times, tuple(read.items()), names

        def make() -> Sequence[Facts]:
            facts = self.results(task, body, read)
            return [facts[name] for name in names]

        return self._known.once(key, body, make)

    def results(self, task: Task, body: Fragment, read: Mapping[str, Facts]) -> Mapping[str, Facts]:
        """The facts of all values inside the fragment, by name.

        Args:
            read: those of what it reads.

        Raises:
            PlanDoesNotComputeProgram: an op that the program does not have.
        """
        mesh, facts = self._plan.placement[task.placement].mesh, dict(read)
        for op in body.ops:
            made = self._boxed(task, op, mesh, facts) if op.target == BOXING_OP else self._computed(task, op, mesh, facts)
            for value, new in zip(op.outputs, made, strict=False):
                if value is None:
                    continue
                if value in facts:
                    raise refusal(f"{at(self._plan, task)}, {op.where()}", f"it computes {value}, which is there already", "assigned once")
                facts[value] = new
        return facts

    def _boxed(self, task: Task, op: Op, mesh: tuple[int, ...], facts: Mapping[str, Facts]) -> tuple[Facts]:
        try:
            step = LocalStep(op, mesh)
        except InvalidPlan as error:
            raise refusal(at(self._plan, task), str(error), "SEMANTICS 2") from None
        laws, made = [], []
        for number, layout in facts[step.value]:
            after = step.of(self._numbers.type_of(number), mesh, layout)
            if isinstance(after, NdSbp):
                made.append((number, after))
            else:
                laws.append(after)
        if not made:
            what = f"it reads {step.value}, which is {shown_facts(self._numbers, facts[step.value])}: {'; '.join(laws)}"
            raise refusal(f"{at(self._plan, task)}, {op.where()}", what, "SEMANTICS 2")
        return (tuple(made),)

    def _computed(self, task: Task, op: Op, mesh: tuple[int, ...], facts: Mapping[str, Facts]) -> list[Facts]:
        if op.effect is Effect.RANDOM and task.acts != self._plan.micro_batches:
            what = f"it draws in {task.acts} acts, a step has {self._plan.micro_batches} micro-batches"
            raise refusal(f"{at(self._plan, task)}, {op.where()}", what, "SEMANTICS 7.1")
        made: list[dict[Fact, None]] = [{} for _ in op.outputs]
        try:
            for results in self._proofs(op, mesh, facts):
                for place, fact in enumerate(results[: len(made)]):
                    if fact is not None:
                        made[place][fact] = None
        except RegistaError as error:
            raise refusal(f"{at(self._plan, task)}, {op.where()}", f"no rule takes it: {error}", "SEMANTICS 1.4") from error
        if not any(made):
            raise refusal(f"{at(self._plan, task)}, {op.where()}", *self._difference(op, mesh, facts))
        return [tuple(found) for found in made]

    def _proofs(self, op: Op, mesh: tuple[int, ...], facts: Mapping[str, Facts]) -> Iterator[tuple[Fact | None, ...]]:
        """The facts of the results, for each way to prove the op."""
        places, names = operand_places(op), tuple(dict.fromkeys(op.inputs))
        arguments = arguments_key(op, {name: place for place, name in enumerate(names)}.__getitem__)
        for chosen in product(*(facts[name] for name in names)):
            operands = tuple(chosen[place][0] for place in places)
            layouts = tuple(chosen[place][1] for place in places)
            for candidate in self._numbers.ops_on(op, operands):
                for results in self._forms.of(candidate.form, places, mesh, layouts).get(arguments, ()):
                    yield tuple(
                        None if layout is None else (self._result(op, number), layout)
                        for number, layout in zip(candidate.results, results, strict=True)
                    )

    def _result(self, op: Op, number: int) -> int:
        """Of one micro-batch the mean is the value, so nothing is pending."""
        if op.target != ACCUMULATE or self._plan.micro_batches > 1:
            return number
        settled = self._numbers.settled(number)
        return number if settled is None else settled

    def _difference(self, op: Op, mesh: tuple[int, ...], facts: Mapping[str, Facts]) -> tuple[str, str]:
        """(what is wrong, the law) of an op that could not be proven."""
        names, places = tuple(dict.fromkeys(op.inputs)), operand_places(op)
        reads = ", ".join(f"{name} is {shown_facts(self._numbers, facts[name])}" for name in names)
        on_these = f" on what it reads ({reads})" if reads else ""
        forms = [
            self._forms.of(candidate.form, places, mesh, tuple(chosen[place][1] for place in places))
            for chosen in product(*(facts[name] for name in names))
            for candidate in self._numbers.ops_on(op, tuple(chosen[place][0] for place in places))
        ]
        if not forms:
            return f"the program has no {op.target} of draw {op.draw}{on_these}" if op.draw is not None else (
                f"the program has no {op.target}{on_these}"
            ), "every op is one of the program's"
        if not any(forms):
            return f"no signature takes these layouts{on_these}", "SEMANTICS 1.4"
        return f"its literals {op.args} {dict(op.kwargs) or ''} are not those of the program's op on these parts{on_these}", "SEMANTICS 1.4"
