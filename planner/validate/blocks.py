"""What tasks write, laid into the blocks of Regsts."""

from __future__ import annotations

from collections.abc import Sequence

from planner.ir.graph import LogicalGraph, Role
from planner.ir.plan import Access, Plan, RegstKind, Task
from planner.validate.contents import LAYOUT_MARK, RAW, Contents, Facts
from planner.validate.refusal import at, refusal, shown_facts

__all__ = ["Writer"]


class Writer:
    """Lays what tasks write into Regsts, and proves that it is what each Regst declares (SEMANTICS 1), at the rate that it must have (3.6)."""

    def __init__(self, plan: Plan, graph: LogicalGraph, contents: Contents) -> None:
        self._plan, self._graph, self._contents, self._numbers = plan, graph, contents, contents.numbers
        value_of = {given.name: given.value for given in graph.inputs if given.kind.is_state}
        self._state_at = {(entry.regst, entry.index): value_of[entry.name] for entry in plan.states}
        self._role_of = {value: op.role for op in graph.ops for value in op.outputs if value is not None}

    def lay(self, task: Task, written: Sequence[Facts]) -> None:
        """Raises PlanDoesNotComputeProgram: a tensor is another one than declared, is written twice, or not at all."""
        plan = self._plan
        if task.acts not in (1, plan.micro_batches):
            raise refusal(at(plan, task), f"it acts {task.acts} times, a step has {plan.micro_batches} micro-batches", "SEMANTICS 3.6")
        fill = {port.regst: port.acts_per_block for port in task.produces}
        unwritten = {(regst, index) for regst in fill for index in range(len(plan.regst[regst].tensors))}
        for access, facts in zip(task.writes, written, strict=True):
            place = access.regst, access.index
            if place not in unwritten:
                raise refusal(at(plan, task), f"it writes tensor {access.index} of regst {access.regst} twice", "SEMANTICS 3.6")
            unwritten.remove(place)
            if plan.regst[access.regst].kind is RegstKind.STATE:
                self._check_replaced(task, access, facts, fill[access.regst])
            elif access.name.startswith(RAW):
                self._contents.facts[place] = ()
            else:
                self._contents.facts[place] = self._declared(task, access, facts, fill[access.regst])
        if unwritten:
            regst, index = min(unwritten)
            raise refusal(at(plan, task), f"it never writes tensor {index} of regst {regst}", "SEMANTICS 3.6")

    def _filled(self, task: Task, access: Access, facts: Facts, fill: int) -> Facts:
        """What a block holds after the acts that fill it."""
        m = self._plan.micro_batches
        if fill == 1:
            return tuple(fact for fact in facts if self._numbers.settled(fact[0]) is None)
        if not task.kind.is_compute or fill != m or task.acts != m:
            what = f"{fill} of its {task.acts} acts fill a block of {access.regst} with their mean, a step has {m} micro-batches"
            raise refusal(at(self._plan, task), what, "SEMANTICS 3.6")
        return tuple((settled, layout) for n, layout in facts if (settled := self._numbers.settled(n)) is not None)

    def _declared(self, task: Task, access: Access, facts: Facts, fill: int) -> Facts:
        """The facts that agree with what the Regst declares: type, layout, and the value of that name, where the program has one."""
        kept = self._contents.agreeing(access.regst, access.index, self._filled(task, access, facts, fill))
        placed = self._contents.placed(access.regst, access.index)
        wanted = self._numbers.of.get(placed.name, self._numbers.of.get(placed.name.rpartition(LAYOUT_MARK)[0]))
        if kept and (wanted is None or any(number == wanted for number, _ in kept)):
            return kept
        declared = f"{placed.name} {placed.dtype.value}{list(placed.shape)} as {placed.sbp}"
        what = f"it writes {shown_facts(self._numbers, facts)} to tensor {access.index} of regst {access.regst}, which declares {declared}"
        raise refusal(at(self._plan, task), what, "SEMANTICS 1")

    def _check_replaced(self, task: Task, access: Access, facts: Facts, fill: int) -> None:
        """The new value of a state, once per step, or once per micro-batch where the passes make it."""
        state = self._state_at[access.regst, access.index]
        new = self._graph.updates.get(state)
        where, role = f"{at(self._plan, task)}, state {state}", self._role_of.get(new or "")
        if new is None:
            raise refusal(where, "it writes it, and a step of the program leaves it as it is", "SEMANTICS 6.1")
        acts = self._plan.micro_batches if role in (Role.FORWARD, Role.BACKWARD) else 1
        if role is not None and (fill != 1 or task.acts != acts):
            raise refusal(where, f"it replaces it {task.acts // fill} times per step, the program {acts} times", "SEMANTICS 3.6")
        kept = self._contents.agreeing(access.regst, access.index, self._filled(task, access, facts, fill))
        if all(number != self._numbers.of[new] for number, _ in kept):
            placed, found = self._contents.placed(access.regst, access.index), shown_facts(self._numbers, facts)
            wanted = f"{new} {placed.dtype.value}{list(placed.shape)} as {placed.sbp}"
            raise refusal(where, f"it writes {found} to it, the program {wanted}", "SEMANTICS 6.1")
