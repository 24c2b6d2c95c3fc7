"""The validation of a Plan: its tasks are executed symbolically, each once, after those whose blocks they read.

All ranks of a placement perform a task alike, each on its part, and a layout says what the parts are together: so one execution of a task stands
for all ranks, and all of its acts, of which act k belongs to micro-batch k.  The work is linear in the Plan, whatever the number of ranks.

    graph --numbers--> ValueNumbers               state, batch --> facts --tasks--> facts --> loss, states, gradients, outputs
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Protocol

from planner.ir.actors.verify import verify_structure
from planner.ir.graph import LogicalGraph
from planner.ir.plan import Fragment, Plan, RegstKind, Task
from planner.validate.blocks import Writer
from planner.validate.contents import Contents
from planner.validate.fragments import ProvenFragments
from planner.validate.refusal import refusal
from planner.validate.report import ValidationReport
from planner.validate.results import check_inputs, check_results, first_states
from planner.validate.tasks import TaskProver

__all__ = ["TracedProgram", "validate", "validate_graph"]


class TracedProgram(Protocol):
    """What a validation asks of a program (planner.frontend.Program)."""

    @property
    def batch_size(self) -> int:
        """Samples per step."""
        ...

    def graph(self, micro_batches: int = 1) -> LogicalGraph:
        """One step, traced at batch_size / micro_batches samples."""
        ...


def validate(plan: Plan, program: TracedProgram, *, is_verified: bool = False, known: ProvenFragments | None = None) -> ValidationReport:
    """Prove that a live Plan (planner.ir.actors.verify) computes its program.

    Args:
        is_verified: the Plan is known to be well-formed, which is not looked at again.
        known: the fragments of a Plan of the same graph that was proven; those of this one are there afterwards.

    Returns:
        what was proven, and what was not checked.

    Raises:
        PlanDoesNotComputeProgram: the first difference, with task, op, value, ranks and law.   InvalidPlan: the Plan is not well-formed.
    """
    if plan.batch_size != program.batch_size:
        raise refusal("the batch", f"the plan is for {plan.batch_size} samples, the program has {program.batch_size}", "SEMANTICS 6.1")
    return validate_graph(plan, program.graph(plan.micro_batches), is_verified=is_verified, known=known)


def validate_graph(plan: Plan, graph: LogicalGraph, *, is_verified: bool = False, known: ProvenFragments | None = None) -> ValidationReport:
    """The same, of a graph that was traced for the Plan's micro-batches."""
    if not is_verified:
        verify_structure(plan)
    fragments = ProvenFragments(graph) if known is None else known
    numbers = fragments.numbers
    contents = Contents(plan, numbers)
    check_inputs(plan, graph)
    contents.facts |= dict(first_states(plan, graph, contents))
    prover, writer = TaskProver(plan, graph, fragments, contents), Writer(plan, graph, contents)
    for task in _in_order(plan):
        writer.lay(task, prover.written(task))
    check_results(plan, graph, contents)
    fragments.keep_latest()
    return ValidationReport(
        tasks=len(plan.tasks),
        ops=sum(len(task.body.ops) for task in plan.tasks if isinstance(task.body, Fragment)),
        tensors=sum(len(task.writes) for task in plan.tasks),
        states=len({entry.name for entry in plan.states}),
        gradients=len(plan.gradients),
        outputs=len(plan.outputs),
        micro_batches=plan.micro_batches,
        not_checked=tuple(prover.not_checked),
    )


def _in_order(plan: Plan) -> Iterator[Task]:
    """The tasks, each after those that write the data it reads; state is there from the start."""
    waits = {
        task.id: {producer for port in task.consumes if (producer := plan.regst[port.regst].producer) and _is_data(plan, port.regst)}
        for task in plan.tasks
    }
    readers: dict[str, list[str]] = {task.id: [] for task in plan.tasks}
    for reader, producers in waits.items():
        for producer in producers:
            readers[producer].append(reader)
    ready = deque(task for task, producers in waits.items() if not producers)
    done = 0
    while ready:
        task = ready.popleft()
        done += 1
        yield plan.task[task]
        for reader in readers[task]:
            waits[reader].discard(task)
            if not waits[reader]:
                ready.append(reader)
    if done < len(plan.tasks):
        stuck = [task for task, producers in waits.items() if producers]
        raise refusal(f"tasks {', '.join(stuck[:4])}", "each reads what another one of them writes in the same act", "SEMANTICS 4.1")


def _is_data(plan: Plan, regst: str) -> bool:
    return plan.regst[regst].kind is RegstKind.DATA
