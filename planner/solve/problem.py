"""The choice problem: every node takes one strategy, such that the cost is minimal and the memory limit holds at every time.

    min   sum_v cost[v][x_v]  +  sum_(u,v) matrix[u,v][x_u, x_v]
    s.t.  sum over demands d with start_d <= t < stop_d of amount_d[x_node(d)]  <=  limit        for every time t

A forbidden pair or strategy costs infinity.  SBP search, and Google's public contest problem (IOPDDL), are both of this form, so one solver
serves both.  Units are the caller's: seconds for SBP search.

Problems derived from a problem:  reweighted (other weights)   charged (Lagrange multipliers)   without_limit (no demands)
                                  restricted, allowing (fewer strategies)   conditioned (some nodes, given a choice of the others)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from planner.ir.errors import Unsupported
from planner.solve.per_array import PerArray

__all__ = ["Contradiction", "Demand", "Edge", "Floats", "Ints", "NotFoundInTime", "Problem", "Progress", "Solution", "Watch"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Contradiction(Unsupported):
    """The forbidden entries leave a node without any strategy, or no choice fits the limit."""


class NotFoundInTime(Unsupported):
    """The time was up before the search had a choice.   lower_bound: no choice costs less."""

    def __init__(self, message: str, lower_bound: float) -> None:
        super().__init__(message)
        self.lower_bound = lower_bound


@dataclass(frozen=True, slots=True, eq=False)
class Edge:
    """matrix[s, t]: cost when node u takes s and node v takes t (shape: strategies of u x strategies of v); u != v."""

    u: int
    v: int
    matrix: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """amount[s]: the memory that ``node`` holds under strategy s at every time in [start, stop)."""

    node: int
    start: int
    stop: int
    amount: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """names: of the nodes, for messages.  costs: one array per node, a strategy each.  Several edges between two nodes add up."""

    names: tuple[str, ...]
    costs: tuple[Floats, ...]
    edges: tuple[Edge, ...]
    demands: tuple[Demand, ...] = ()
    limit: float = float("inf")

    def objective(self, choice: Sequence[int] | Ints) -> float:
        """Cost of a choice on this very problem; infinite if it takes a forbidden entry.  Does not look at memory."""
        total = 0.0
        for costs, s in zip(self.costs, choice, strict=True):
            total += float(costs[s])
        for edge in self.edges:
            total += float(edge.matrix[choice[edge.u], choice[edge.v]])
        return total

    def peak(self, choice: Sequence[int] | Ints) -> float:
        """The largest demand at any time."""
        change: dict[int, float] = {}
        for d in self.demands:
            held = float(d.amount[choice[d.node]])
            if d.stop > d.start and held:
                change[d.start] = change.get(d.start, 0.0) + held
                change[d.stop] = change.get(d.stop, 0.0) - held
        now = peak = 0.0
        for t in sorted(change):
            now += change[t]
            peak = max(peak, now)
        return peak

    def held(self, choice: Sequence[int] | Ints, times: int) -> Floats:
        """What a choice holds at each of the times 0 .. times - 1."""
        held = np.zeros(times)
        for d in self.demands:
            held[d.start : d.stop] += d.amount[choice[d.node]]
        return held

    def feasible(self, choice: Sequence[int] | Ints) -> bool:
        """Whether a choice keeps the limit at every time."""
        return self.peak(choice) <= self.limit

    def without_limit(self) -> Problem:
        """The same costs, and nothing is held."""
        return replace(self, demands=(), limit=float("inf"))

    def reweighted(self, node_weights: Sequence[float], edge_weights: Sequence[float]) -> Problem:
        """Every node's costs and every edge's matrix times a weight.  What is forbidden stays forbidden, also at weight 0."""
        scaled: dict[float, PerArray[Floats]] = {weight: PerArray() for weight in {*node_weights, *edge_weights}}

        def times(costs: Floats, weight: float) -> Floats:
            return scaled[weight].of(costs, partial(_times, weight=weight))

        return replace(
            self,
            costs=tuple(times(costs, weight) for costs, weight in zip(self.costs, node_weights, strict=True)),
            edges=tuple(replace(e, matrix=times(e.matrix, weight)) for e, weight in zip(self.edges, edge_weights, strict=True)),
        )

    def cost_free(self) -> Problem:
        """The problem in which every allowed entry costs 0."""
        return self.reweighted([0.0] * len(self.costs), [0.0] * len(self.edges))

    def charged(self, multipliers: Mapping[int, float]) -> Problem:
        """The problem without its limit, in which each unit held at a time costs that time's multiplier (Lagrangian relaxation)."""
        costs: list[Floats] = list(self.costs)
        for d in self.demands:
            multiplier = sum(value for t, value in multipliers.items() if d.start <= t < d.stop)
            if multiplier:
                costs[d.node] = costs[d.node] + multiplier * d.amount
        return replace(self, costs=tuple(costs)).without_limit()

    def restricted(self, strategies: Sequence[Ints]) -> Problem:
        """The problem in which each node has only the strategies given, renumbered in the order given."""
        return replace(
            self,
            costs=tuple(costs[k] for costs, k in zip(self.costs, strategies, strict=True)),
            edges=tuple(Edge(e.u, e.v, e.matrix[np.ix_(strategies[e.u], strategies[e.v])]) for e in self.edges),
            demands=tuple(replace(d, amount=d.amount[strategies[d.node]]) for d in self.demands),
        )

    def allowing(self, allowed: Mapping[int, Ints]) -> Problem:
        """The problem in which some nodes may take only the strategies given; all strategies keep their numbers."""
        costs: list[Floats] = list(self.costs)
        for node, strategies in allowed.items():
            costs[node] = np.full(len(costs[node]), np.inf)
            costs[node][strategies] = self.costs[node][strategies]
        return replace(self, costs=tuple(costs))

    def conditioned(self, nodes: Ints, choice: Ints, edges: Iterable[Edge] | None = None) -> Problem:
        """The problem of some nodes alone, in the order given, where the others take ``choice``.  Nothing is held.

        Args:
            choice: a strategy per node of this problem; negative where none is taken yet: edges to such a node are left out.
            edges: those that touch one of ``nodes``, if the caller knows them.
        """
        index = {int(v): i for i, v in enumerate(nodes)}
        costs = [self.costs[v].copy() for v in nodes]
        inner = []
        for edge in self.edges if edges is None else edges:
            u, v = index.get(edge.u), index.get(edge.v)
            if u is not None and v is not None:
                inner.append(Edge(u, v, edge.matrix))
            elif u is not None and choice[edge.v] >= 0:
                costs[u] += edge.matrix[:, choice[edge.v]]
            elif v is not None and choice[edge.u] >= 0:
                costs[v] += edge.matrix[choice[edge.u]]
        return Problem(tuple(self.names[v] for v in nodes), tuple(costs), tuple(inner))


def _times(costs: Floats, weight: float) -> Floats:
    if weight == 1.0:
        return costs
    return costs * weight if weight else np.where(np.isfinite(costs), 0.0, np.inf)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solution:
    """choice[v]: strategy of node v.  lower_bound <= every feasible objective.  method: that gave the choice;  proof: that gave the bound."""

    choice: Ints
    objective: float
    lower_bound: float
    seconds: float
    method: str
    proof: str = ""
    stats: dict[str, float] = field(default_factory=dict)

    @property
    def gap(self) -> float:
        """(objective - lower bound) / |objective|, and the difference itself where the objective is 0; a gap of 0 is a proof of optimality."""
        return max(0.0, self.objective - self.lower_bound) / (abs(self.objective) or 1.0)


@dataclass(frozen=True, slots=True)
class Progress:
    """The best objective and bound after ``seconds``; the objective is infinite while there is no feasible choice."""

    seconds: float
    objective: float
    lower_bound: float


Watch = Callable[[Progress], None]
