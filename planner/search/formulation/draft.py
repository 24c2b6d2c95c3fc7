"""A choice problem under construction: its nodes, edges and demands, and the stage to which each belongs."""

from __future__ import annotations

import numpy as np

from planner.search.model import StageCounts
from planner.solve.per_array import PerArray
from planner.solve.problem import Demand, Edge, Floats, Problem

__all__ = ["ProblemDraft"]


class ProblemDraft:
    """Nodes, edges and demands in the order in which they are added."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._costs: list[Floats] = []
        self._edges: list[Edge] = []
        self._demands: list[Demand] = []
        self._node_stage: list[int] = []
        self._node_count: list[int] = []
        self._edge_stage: list[int] = []
        self._edge_count: list[int] = []
        self._zeros: dict[int, Floats] = {}
        self._costs_something: PerArray[bool] = PerArray()

    def add_node(self, name: str, costs: Floats, stage: int = 0, count: int = 1) -> int:
        """Add a node and return its number.  ``costs`` are those of ``count`` acts per step on ``stage``."""
        self.names.append(name)
        self._costs.append(costs)
        self._node_stage.append(stage)
        self._node_count.append(count)
        return len(self.names) - 1

    def add_free_node(self, name: str, num_strategies: int) -> int:
        """Add a node whose strategies cost nothing and return its number."""
        return self.add_node(name, self._zeros.setdefault(num_strategies, np.zeros(num_strategies)))

    def add_edge(self, u: int, v: int, matrix: Floats, stage: int, count: int) -> None:
        """Add the costs of pairs of strategies; an edge without costs is left out."""
        if self._costs_something.of(matrix, lambda given: bool(given.any())):
            self._edges.append(Edge(u, v, matrix))
            self._edge_stage.append(stage)
            self._edge_count.append(count)

    def add_demand(self, node: int, start: int, stop: int, amount: Floats) -> None:
        """Add the memory that a node holds at times [start, stop), per strategy."""
        self._demands.append(Demand(node, start, stop, amount))

    def problem(self, limit_bytes: float) -> Problem:
        return Problem(tuple(self.names), tuple(self._costs), tuple(self._edges), tuple(self._demands), limit_bytes)

    def stage_counts(self) -> StageCounts:
        return StageCounts(self._node_stage, self._node_count, self._edge_stage, self._edge_count)
