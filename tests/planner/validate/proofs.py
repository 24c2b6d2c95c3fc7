"""A Plan whose tasks have been executed, so that each piece of the validation can be asked by itself, with something changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from matrix import program, read_plan

from planner.ir.graph import LogicalGraph
from planner.ir.plan import PlacedTensor, Plan, Task, TaskKind
from planner.ir.sbp import NdSbp
from planner.validate.blocks import Writer
from planner.validate.contents import Contents, Facts
from planner.validate.fragments import ProvenFragments
from planner.validate.results import first_states
from planner.validate.tasks import TaskProver

__all__ = ["Proof", "proof"]


class Proof:
    """facts: of a Plan that was executed before; without them this one is."""

    def __init__(self, plan: Plan, graph: LogicalGraph, facts: Mapping[tuple[str, int], Facts] | None = None) -> None:
        self.plan, self.graph, fragments = plan, graph, ProvenFragments(graph)
        self.numbers = fragments.numbers
        self.contents = Contents(plan, self.numbers, dict(facts or {}))
        self.prover = TaskProver(plan, graph, fragments, self.contents)
        self.writer = Writer(plan, graph, self.contents)
        if facts is None:
            self.contents.facts |= dict(first_states(plan, graph, self.contents))
            for task in plan.tasks:
                self.writer.lay(task, self.prover.written(task))

    def written(self, task: Task, **changes: Any) -> Sequence[Facts]:
        return self.prover.written(replace(task, **changes))

    def lay(self, task: Task, written: Sequence[Facts] | None = None, **changes: Any) -> None:
        """The task's own facts, or others, by a changed task."""
        self.writer.lay(replace(task, **changes), self.prover.written(task) if written is None else written)

    def first(self, kind: TaskKind, wanted: Callable[[Task], bool] = lambda task: True) -> Task:
        return next(task for task in self.plan.tasks if task.kind is kind and wanted(task))

    def with_plan(self, **changes: Any) -> Proof:
        return Proof(replace(self.plan, **changes), self.graph, self.contents.facts)

    def with_graph(self, **changes: Any) -> Proof:
        return Proof(self.plan, replace(self.graph, **changes), self.contents.facts)

    def with_tensor(self, regst: str, index: int, **changes: Any) -> Proof:
        """The Plan whose Regst declares something else of one tensor."""
        given = self.plan.regst[regst]
        tensors = tuple(_changed(tensor, changes) if n == index else tensor for n, tensor in enumerate(given.tensors))
        return self.with_plan(regsts=tuple(replace(r, tensors=tensors) if r.id == regst else r for r in self.plan.regsts))


def _changed(tensor: PlacedTensor, changes: Mapping[str, Any]) -> PlacedTensor:
    sbp = changes.get("sbp", tensor.sbp)
    return replace(tensor, **{**changes, "sbp": NdSbp.parse(sbp) if isinstance(sbp, str) else sbp})


@cache
def proof(way: str = "pipeline2_data2", model: str = "mlp") -> Proof:
    plan = read_plan(model, way, "fp32")
    return Proof(plan, program(model).graph(plan.micro_batches))
