"""A graph whose ops have stages, and the rule for the stages of states.

A state (parameter, optimizer state, buffer) is stored on one stage: that of the op that updates it, else that of its first reader
(-> Staged.state_stages).  The update of a parameter has the stage of the first forward op that reads the parameter (-> first_readers()).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from planner.ir.graph import LogicalGraph, Op, Role

__all__ = ["Region", "Staged", "first_readers", "region_of"]

Region = tuple[int, Role]
"""(stage, role): ops of one region can share a fragment."""


@dataclass(frozen=True)  # no slots, because of the cached property
class Staged:
    """A graph with the stages of its ops.

    stage: op id -> stage, 0 to num_stages - 1.
    interleaved: with v > 1 stages per placement, op id -> its stage among num_stages x v; ``stage`` is that modulo num_stages.
    """

    graph: LogicalGraph
    stage: Mapping[str, int]
    num_stages: int
    interleaved: Mapping[str, int] = field(default_factory=dict)

    def fragment_stage(self, op: Op) -> int:
        """The stage to whose fragments the op belongs; updates of all stages of a placement may share a fragment."""
        return self.stage[op.id] if op.role is Role.UPDATE else self.interleaved.get(op.id, self.stage[op.id])

    def state_stage(self, value: str) -> int:
        """The stage on which a state input is stored; 0 if no op reads or updates it."""
        return self.state_stages.get(value, 0)

    @cached_property
    def state_stages(self) -> Mapping[str, int]:
        """Value -> the stage on which it is stored, for every graph input that an op reads or updates."""
        producers = self.graph.producers()
        first_reader: dict[str, int] = {}
        for op in self.graph.ops:
            for value in op.inputs:
                first_reader.setdefault(value, self.stage[op.id])
        updated = {old: self.stage[producers[new].id] if new in producers else 0 for old, new in self.graph.updates.items()}
        inputs = {i.value for i in self.graph.inputs}
        return {value: stage for value, stage in first_reader.items() if value in inputs} | updated


def first_readers(graph: LogicalGraph) -> Mapping[str, Op]:
    """State input -> the forward op that reads it first, in trace order."""
    states = {i.value for i in graph.inputs if i.kind.is_state}
    first_reader: dict[str, Op] = {}
    for op in graph.ops:
        if op.role is Role.FORWARD:
            for value in op.inputs:
                if value in states:
                    first_reader.setdefault(value, op)
    return first_reader


def region_of(op: Op, stage: Mapping[str, int], producers: Mapping[str, Op]) -> Region:
    """(stage, role); an accumulation has the role of the op that makes what it accumulates."""
    if op.role is Role.ACCUMULATE:
        made_by = producers.get(op.inputs[0])
        return stage[op.id], made_by.role if made_by is not None and made_by.role.per_micro_batch else Role.BACKWARD
    return stage[op.id], op.role
