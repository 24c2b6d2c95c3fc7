"""The choice problem: every node takes one strategy, at least cost, within memory.

    min   sum_v cost[v][x_v]  +  sum_(u,v) matrix[u,v][x_u, x_v]
    s.t.  sum over demands d with start_d <= t < stop_d of amount_d[x_node(d)]  <=  limit        for every time t

A forbidden pair or strategy costs infinity.  SBP search, and Google's public contest problem (IOPDDL), are both of this form, so one solver
serves both.  Units are the caller's: seconds for SBP search.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from planner.ir.errors import Unsupported

__all__ = ["Contradiction", "Demand", "Edge", "Floats", "Ints", "Problem", "Progress", "Solution", "Watch"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Contradiction(Unsupported):
    """The forbidden entries leave a node without any strategy, or no choice fits the limit."""


@dataclass(frozen=True, slots=True, eq=False)
class Edge:
    """matrix[s, t]: cost when node u takes s and node v takes t (shape: strategies of u x strategies of v); u != v."""

    u: int
    v: int
    matrix: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """amount[s]: what ``node`` holds of the limited resource under strategy s at every time in [start, stop)."""

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

    def feasible(self, choice: Sequence[int] | Ints) -> bool:
        return self.peak(choice) <= self.limit


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solution:
    """choice[v]: strategy of node v.  lower_bound <= every feasible objective.  method: what found it;  proof: what the bound rests on."""

    choice: Ints
    objective: float
    lower_bound: float
    seconds: float
    method: str
    proof: str = ""
    stats: dict[str, float] = field(default_factory=dict)

    @property
    def gap(self) -> float:
        """(objective - lower bound) / objective; 0 is a proof of optimality."""
        if self.objective <= self.lower_bound:
            return 0.0
        return (self.objective - self.lower_bound) / max(abs(self.objective), 1e-30)


@dataclass(frozen=True, slots=True)
class Progress:
    """What is known after ``seconds``; objective is infinite while nothing feasible is known."""

    seconds: float
    objective: float
    lower_bound: float


Watch = Callable[[Progress], None]
