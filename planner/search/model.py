"""The choice of all layouts of a staged graph as one problem for the solver, and the Assignment that a solution of it means."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from planner.ir.sbp import NdSbp
from planner.search.layout_costs import LayoutCosts
from planner.search.routes import Move, Reader, routes_of
from planner.search.strategies import LocalOp, Strategy, relabel
from planner.search.zero import DeliveryMode
from planner.solve.problem import Floats, Ints, Problem
from planner.stages import Staged

__all__ = ["Assignment", "SearchModel", "StageCounts", "Standing", "Taken"]


@dataclass(frozen=True, slots=True)
class Assignment:
    """The decisions of a search.

    ops: op id -> local op;  states: state input value -> its stored layout;  pinned: batch and constant values with a fixed layout.
    delivered: (value, stage) -> the layout that several readers on the stage share.
    held_bytes: the bytes that the search counts on a device of the fullest stage (0 if it counted none).
    regathered: (parameter, stage) that is stored split and gathered for each pass of a block that reads it (ZeRO-3).
    routes: (value, stage, layout) in which a value is read on a stage -> the moves from its producer's stage and layout, in order: boxing
        steps, and a StageTransfer between stages; empty if the producer makes it so.  Batch inputs and constants that are not pinned are
        available in any layout and have no entry.
    """

    ops: Mapping[str, LocalOp]
    states: Mapping[str, NdSbp]
    pinned: Mapping[str, NdSbp]
    method: str
    objective_s: float
    lower_bound_s: float
    delivered: Mapping[tuple[str, int], NdSbp]
    held_bytes: float
    regathered: frozenset[tuple[str, int]] = frozenset()
    routes: Mapping[Reader, tuple[Move, ...]] = field(default_factory=dict)

    def decides_as(self, other: Assignment) -> bool:
        """Whether both have the same layouts and routes; what they cost and how they were found may differ."""
        mine, theirs = ((a.states, a.pinned, a.delivered, a.regathered, a.routes, a.ops) for a in (self, other))
        return mine == theirs


@dataclass(frozen=True, slots=True, eq=False)
class StageCounts:
    """The stage on which each node and each edge takes time, and how often per step."""

    node_stage: Sequence[int]
    node_count: Sequence[int]
    edge_stage: Sequence[int]
    edge_count: Sequence[int]


@dataclass(frozen=True, slots=True, eq=False)
class SearchModel:
    """A choice problem and the meaning of its strategies.

    ops, states, deliveries: op id, state, or (value, stage) -> (its node, the meaning of each strategy of the node).
    delivery_modes: delivery -> the mode of each strategy of its node.
    forward_only: deliveries of parameters that one act of the forward part reads and no later act of the step.
    matrices: those of the edges, and of edges that cost nothing, by all that they depend on beside prices (formulation.boxing_matrices).
    """

    staged: Staged
    costs: LayoutCosts
    problem: Problem
    ops: Mapping[str, tuple[int, tuple[Strategy, ...]]]
    states: Mapping[str, tuple[int, tuple[NdSbp, ...]]]
    deliveries: Mapping[tuple[str, int], tuple[int, tuple[NdSbp, ...]]]
    pinned: Mapping[str, NdSbp]
    micro_batches: int
    stage_counts: StageCounts
    delivery_modes: Mapping[tuple[str, int], tuple[DeliveryMode, ...]] = field(default_factory=dict)
    forward_only: frozenset[tuple[str, int]] = frozenset()
    matrices: Mapping[tuple[object, ...], Floats] = field(default_factory=dict)

    def has_choices_of(self, other: SearchModel) -> bool:
        """Whether a choice of the other model is one of this: both have the same mesh and nodes, and the strategies of a node the same layouts."""
        if self is other or self.costs.mesh != other.costs.mesh:
            return self is other
        nodes = [(list(map(len, m.problem.costs)), m.states, m.deliveries, m.delivery_modes, m.forward_only) for m in (self, other)]
        if nodes[0] != nodes[1] or self.ops.keys() != other.ops.keys():
            return False
        known: dict[tuple[int, int], bool] = {}  # of menus, which many ops have in common

        def are_alike(mine: tuple[Strategy, ...], theirs: tuple[Strategy, ...]) -> bool:
            key = id(mine), id(theirs)
            if key not in known:
                known[key] = mine is theirs or [(s.inputs, s.outputs) for s in mine] == [(s.inputs, s.outputs) for s in theirs]
            return known[key]

        pairs = [(self.ops[op_id], other.ops[op_id]) for op_id in self.ops]
        return all(mine[0] == theirs[0] and are_alike(mine[1], theirs[1]) for mine, theirs in pairs)

    @property
    def pipeline_slots(self) -> int:
        """m + p - 1: a step of p equal stages takes so many times as long as one micro-batch on one stage (1F1B and GPipe)."""
        return self.micro_batches + self.staged.num_stages - 1

    def weighted(self, weight: Callable[[int, int], float]) -> Problem:
        """The problem with every cost and matrix times ``weight(stage, how often per step)`` (Problem.reweighted)."""
        counts = self.stage_counts
        return self.problem.reweighted(
            [weight(stage, count) for stage, count in zip(counts.node_stage, counts.node_count, strict=True)],
            [weight(stage, count) for stage, count in zip(counts.edge_stage, counts.edge_count, strict=True)],
        )

    def step_s(self, choice: Sequence[int] | Ints) -> float:
        """Seconds of a step:  sum t_i + (m - 1) max t_i + max u_i,   t_i: of a micro-batch on stage i,  u_i: once per step.

        The problem's objective, divided by the number of stages p, is (m + p - 1) mean t_i + mean u_i, which is at most this.
        """
        micro_s, once_s = self.stage_s(choice)
        return float(micro_s.sum() + (self.micro_batches - 1) * micro_s.max() + once_s.max())

    def slowest_stages(self, choice: Sequence[int] | Ints) -> tuple[int, int]:
        """The stages that take longest for a micro-batch, and once per step."""
        micro_s, once_s = self.stage_s(choice)
        return int(micro_s.argmax()), int(once_s.argmax())

    def stage_s(self, choice: Sequence[int] | Ints) -> tuple[Floats, Floats]:
        """(t_i, u_i): per stage, seconds of a micro-batch and seconds once per step; with m = p = 1, all seconds are in u_i."""
        size = self.staged.num_stages
        micro_s, once_s = np.zeros(size), np.zeros(size)
        for node, (stage, count) in enumerate(zip(self.stage_counts.node_stage, self.stage_counts.node_count, strict=True)):
            seconds = self.problem.costs[node][choice[node]]
            if count > 1:
                micro_s[stage] += seconds / count
            else:
                once_s[stage] += seconds
        for edge, stage, count in zip(self.problem.edges, self.stage_counts.edge_stage, self.stage_counts.edge_count, strict=True):
            seconds = edge.matrix[choice[edge.u], choice[edge.v]]
            if count > 1:
                micro_s[stage] += seconds / count
            else:
                once_s[stage] += seconds
        return micro_s, once_s

    def decode(
        self,
        choice: Sequence[int] | Ints,
        method: str,
        objective_s: float,
        lower_bound_s: float,
        held_bytes: float = 0.0,
        before: Taken | None = None,
    ) -> Assignment:
        """A choice as layouts of every op, state and delivered value, and their routes.

        Args:
            before: another choice, of which the same ops are taken where it decides alike; it saves time and changes nothing.
        """
        by_id = {op.id: op for op in self.staged.graph.ops}
        known: Mapping[str, LocalOp] = {}
        if before is not None and before.model.staged is self.staged and self.has_choices_of(before.model):
            known = {op_id: before.assignment.ops[op_id] for op_id, (node, _) in self.ops.items() if before.choice[node] == choice[node]}
        ops = {
            op_id: known[op_id] if op_id in known else relabel(menu[choice[node]].local, by_id[op_id])
            for op_id, (node, menu) in self.ops.items()
        }
        states = {value: layouts[choice[node]] for value, (node, layouts) in self.states.items()}
        pinned = {value: sbp for value, sbp in self.pinned.items() if value not in self.states}
        delivered = {key: layouts[choice[node]] for key, (node, layouts) in self.deliveries.items()}
        return Assignment(
            ops=ops,
            states=states,
            pinned=pinned,
            method=method,
            objective_s=objective_s,
            lower_bound_s=lower_bound_s,
            delivered=delivered,
            held_bytes=held_bytes,
            regathered=self._regathered(choice),
            routes=routes_of(self.staged, self.costs, ops=ops, states=states, pinned=pinned, delivered=delivered),
        )

    def _regathered(self, choice: Sequence[int] | Ints) -> frozenset[tuple[str, int]]:
        """The parameters that are regathered; on their stages also those that only the forward part reads, because it costs the same."""
        taken = {key: held[choice[self.deliveries[key][0]]] for key, held in self.delivery_modes.items()}
        again = {key for key, held in taken.items() if held is DeliveryMode.REGATHERED}
        stages = {stage for _, stage in again}
        return frozenset(again | {key for key in self.forward_only if taken[key] is DeliveryMode.COPIED and key[1] in stages})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Taken:
    """A choice that a search took.

    model: the choice problem, on the cluster of the search.   choice: a strategy per node.   assignment: what it decides.
    multipliers: per stage, the price of memory that gave the bound of the search; empty: memory does not bind, or was not searched so.
    """

    model: SearchModel
    choice: Ints
    assignment: Assignment
    multipliers: Sequence[float]


class Standing(NamedTuple):
    """An earlier choice of the strategies of a problem, and its multipliers (Taken), in case they are known."""

    choice: Ints
    multipliers: Sequence[float] = ()
