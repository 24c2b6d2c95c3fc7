"""A problem under reduction by three kinds of steps, and the expansion of choices of the remaining nodes to all nodes.

                                                                                      expansion
keep       drop some strategies of v                                                  x_v <- strategies[x_v]
tie        v's strategy is a function of that of u, which takes over v's tables       x_v <- table[x_u]
eliminate  min-plus bucket elimination: the tables of v become one over its neighbours
               new[n1..nk] = min over s of  sum of the tables of v at (s, n1..nk)               x_v <- best[x_n1 .. x_nk]

Equal tables are stored once, and equal steps are computed once (interned_tables).  The time depends on the largest table, which ``widest``
limits.  A node with a demand is never eliminated.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from planner.solve.problem import Contradiction, Demand, Edge, Floats, Ints, Problem
from planner.solve.reduce.interned_tables import InternedTables, MatrixForm
from planner.solve.time_limit import TimeLimit

__all__ = ["WIDEST", "Elimination", "ReductionStep", "eliminate"]

WIDEST = 1 << 23
"""Entries of the largest table: 64 MB of float64."""

Scope = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ReductionStep:
    """best[i] over the nodes ``around`` is the strategy of ``node``; around itself: the strategies to which the node was restricted."""

    node: int
    around: Scope
    best: Ints


class Elimination:
    """A problem under reduction; ``run`` may be called again with a larger limit.

    remaining: nodes that are not eliminated.   constant: cost that no choice changes.   always: (start, stop, amount) that is always held.
    changed: nodes whose tables have changed since the caller emptied it.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.tables = InternedTables()
        self.extent = [len(costs) for costs in problem.costs]
        self.factors: dict[int, dict[Scope, int]] = {v: {} for v in range(len(problem.costs))}
        self.demands: dict[int, list[tuple[int, int, int]]] = {}
        self.constant_demands: list[tuple[int, int, float]] = []
        self.steps: list[ReductionStep] = []
        self.constant = 0.0
        self.remaining: set[int] = set(range(len(problem.costs)))
        self.changed: set[int] = set()
        for v, costs in enumerate(problem.costs):
            self.add_table((v,), self.tables.number_of_given(costs))
        for edge in problem.edges:
            number = self.tables.number_of_given(edge.matrix)
            if edge.u > edge.v:
                number = self.tables.flip(number)
            self.add_table((min(edge.u, edge.v), max(edge.u, edge.v)), number)
        for d in problem.demands:
            if d.stop > d.start:
                self.add_demand(d.node, d.start, d.stop, self.tables.number_of_given(d.amount))

    def add_table(self, scope: Scope, number: int) -> None:
        """Add a table over ``scope`` (ascending); it joins one that is there."""
        old = self.factors[scope[0]].get(scope)
        new = number if old is None else self.tables.add(old, number)
        for v in scope:
            self.factors[v][scope] = new
        self.changed.update(scope)

    def remove_table(self, scope: Scope) -> int:
        """Take a table out."""
        number = self.factors[scope[0]][scope]
        for v in scope:
            del self.factors[v][scope]
        self.changed.update(scope)
        return number

    def add_demand(self, v: int, start: int, stop: int, number: int) -> None:
        """Add a demand; an amount that all strategies share goes to ``always``."""
        least, rest = self.tables.above_least(number)
        if least:
            self.constant_demands.append((start, stop, least))
        if rest is not None:
            self.demands.setdefault(v, []).append((start, stop, rest))

    def matrix(self, v: int, scope: Scope) -> int:
        """The number of a pairwise table with v's strategies first."""
        number = self.factors[v][scope]
        return number if scope[0] == v else self.tables.flip(number)

    def form(self, v: int, scope: Scope) -> MatrixForm:
        return self.tables.form(self.matrix(v, scope))

    def neighbours(self, v: int) -> Scope:
        """The neighbours of v."""
        around = set().union(*self.factors[v])
        around.discard(v)
        return tuple(sorted(around))

    def _size(self, v: int) -> tuple[int, int]:
        """(entries of the table that eliminating v makes, neighbours)."""
        if self.extent[v] == 1:
            return 1, 0  # nothing to choose, so nothing joins its neighbours
        around = set().union(*self.factors[v])
        around.discard(v)
        size = 1
        for n in around:
            size *= self.extent[n]
        return size, len(around)

    def run(
        self,
        *,
        widest: int = WIDEST,
        neighbours: int | None = None,
        time_limit: TimeLimit | None = None,
        among: Iterable[int] | None = None,
    ) -> bool:
        """Eliminate nodes while the new table has at most ``widest`` entries (and the node at most ``neighbours`` neighbours).

        Args:
            among: nodes to begin with; their neighbours follow.   time_limit: no step begins after it.

        Returns:
            True if all nodes are eliminated, so that ``constant`` is the optimum.
        """
        start = self.remaining if among is None else self.remaining.intersection(among)
        queue = [(*self._size(v), v) for v in start if v not in self.demands]
        heapq.heapify(queue)
        current = {v: (size, degree) for size, degree, v in queue}
        while queue:
            size, degree, v = heapq.heappop(queue)
            if v not in self.remaining or current[v] != (size, degree):
                continue
            if size > widest:
                break
            if neighbours is not None and degree > neighbours:
                continue  # it is queued again when a neighbour is eliminated
            if time_limit is not None and time_limit.is_up():
                break
            for n in self._eliminate(v):
                if n in self.demands:
                    continue
                now = self._size(n)
                if now != current.get(n):
                    current[n] = now
                    heapq.heappush(queue, (*now, n))
        return not self.remaining

    def _eliminate_fixed(self, v: int) -> Scope:
        """Eliminate a node with one strategy: its dim is removed from every table."""
        around = self.neighbours(v)
        for scope in list(self.factors[v]):
            number = self.remove_table(scope)
            rest = tuple(n for n in scope if n != v)
            number = self.tables.only(number, scope.index(v))
            if rest:
                self.add_table(rest, number)
            else:
                self.constant += float(self.tables.tables[number])
        self._record_elimination(v, (), np.zeros((), dtype=np.int64))
        return around

    def _eliminate(self, v: int) -> Scope:
        if self.extent[v] == 1:
            return self._eliminate_fixed(v)
        around = self.neighbours(v)
        place = {n: i + 1 for i, n in enumerate(around)} | {v: 0}
        parts: list[tuple[int, tuple[int, ...]]] = []
        for scope, number in list(self.factors[v].items()):
            # Dims in the order of the joint index: the node first, then its neighbours as they are numbered, which a scope is already.
            at = scope.index(v)
            order = (at, *range(at), *range(at + 1, len(scope)))
            parts.append((self.tables.transpose(number, order), (0, *(place[n] for n in scope if n != v))))
            self.remove_table(scope)
        parts.sort()
        extents = (self.extent[v], *(self.extent[n] for n in around))
        number, best = self.tables.minimise(parts, extents)
        self._record_elimination(v, around, best)
        if around:
            self.add_table(around, number)
        else:
            self.constant += float(self.tables.tables[number])
        return around

    def _record_elimination(self, v: int, around: Scope, best: Ints) -> None:
        self.steps.append(ReductionStep(v, around, best))
        self.remaining.discard(v)
        self.changed.discard(v)
        self.demands.pop(v, None)

    def keep_strategies(self, v: int, strategies: tuple[int, ...]) -> None:
        """Drop all strategies of v but ``strategies``.

        Raises:
            Contradiction: none would be left.
        """
        if not strategies:
            raise Contradiction(
                f"no legal combination: {self.problem.names[v]} has no strategy left that its neighbours allow; "
                "remove a pin, allow more strategies or choose another mesh"
            )
        self.steps.append(ReductionStep(v, (v,), np.array(strategies, dtype=np.int64)))
        self.extent[v] = len(strategies)
        for scope in list(self.factors[v]):
            number = self.remove_table(scope)
            self.add_table(scope, self.tables.take(number, scope.index(v), strategies))
        for start, stop, number in self.demands.pop(v, ()):
            self.add_demand(v, start, stop, self.tables.take(number, 0, strategies))

    def tie(self, v: int, u: int, table: tuple[int, ...]) -> None:
        """v's strategy is table[strategy of u]: u takes over v's cost, edges and demands (while all of v's tables are pairwise)."""
        for scope in list(self.factors[v]):
            number = self.matrix(v, scope)
            self.remove_table(scope)
            if u in scope:
                self.add_table((u,), self.tables.pick(number, table))
                continue
            number = self.tables.take(number, 0, table)
            if len(scope) == 1:
                self.add_table((u,), number)
            else:
                w = scope[0] + scope[1] - v
                self.add_table((u, w), number) if u < w else self.add_table((w, u), self.tables.flip(number))
        for start, stop, number in self.demands.pop(v, ()):
            self.add_demand(u, start, stop, self.tables.take(number, 0, table))
        self._record_elimination(v, (u,), np.array(table, dtype=np.int64))

    def prune(self, among: Iterable[int] | None = None) -> int:
        """Drop dominated strategies (planner.solve.reduce.prune); only while tables are pairwise.

        Returns:
            The number of dropped strategies.
        """
        dropped = 0
        queue = sorted(self.remaining if among is None else self.remaining.intersection(among))
        while queue:
            again: set[int] = set()
            for v in queue:
                if self.extent[v] == 1:
                    continue
                numbers = [number if scope[0] == v else self.tables.flip(number) for scope, number in self.factors[v].items()]
                strategies = self.tables.undominated(tuple(sorted(numbers)), self._held(v))
                if len(strategies) < self.extent[v]:
                    dropped += self.extent[v] - len(strategies)
                    self.keep_strategies(v, strategies)
                    again.update(self.neighbours(v), (v,))
            queue = sorted(again)
        return dropped

    def _held(self, v: int) -> tuple[tuple[int, int, int], ...]:
        """v's demands, from the first time on: what is dominated does not depend on when that is, and blocks of all stages are alike."""
        held = self.demands.get(v)
        if not held:
            return ()
        first = min(start for start, _, _ in held)
        return tuple(sorted([(start - first, stop - first, number) for start, stop, number in held]))

    def core(self) -> tuple[Problem, tuple[int, ...]]:
        """(the remaining problem, its nodes' numbers here); only while every table has at most two dims."""
        nodes = tuple(sorted(self.remaining))
        index = {v: i for i, v in enumerate(nodes)}
        costs: list[Floats] = [np.zeros(self.extent[v]) for v in nodes]
        edges = []
        for v in nodes:
            for scope, number in self.factors[v].items():
                if scope[0] != v:
                    continue
                table = self.tables.tables[number]
                if len(scope) == 1:
                    costs[index[v]] = table
                elif len(scope) == 2:
                    edges.append(Edge(index[scope[0]], index[scope[1]], table))
                else:
                    raise AssertionError("the core of a wide elimination is not pairwise")
        held = [Demand(index[v], a, b, self.tables.tables[number]) for v in nodes for a, b, number in self.demands.get(v, ())]
        names = tuple(self.problem.names[v] for v in nodes)
        return Problem(names, tuple(costs), tuple(edges), tuple(held), self.problem.limit), nodes

    def expand(self, chosen: Iterable[tuple[int, int]] = ()) -> Ints:
        """The choice of all nodes, from (node, strategy) of the remaining nodes."""
        choice = np.zeros(len(self.extent), dtype=np.int64)
        for v, s in chosen:
            choice[v] = s
        for step in reversed(self.steps):
            choice[step.node] = step.best[tuple(choice[n] for n in step.around)]
        return choice

    def restricted_choice(self, choice: Sequence[int] | Ints) -> Ints | None:
        """The strategies of the remaining nodes for a choice of all nodes; None if one of them has been dropped."""
        now = np.array(choice, dtype=np.int64)
        for step in self.steps:
            if step.around == (step.node,):
                at = np.flatnonzero(step.best == now[step.node])
                if not at.size:
                    return None
                now[step.node] = at[0]
        return now


def eliminate(problem: Problem, *, widest: int = WIDEST) -> Ints | None:
    """An optimal choice of a problem without demands, or None if some table would be wider than ``widest``."""
    work = Elimination(problem)
    return work.expand() if work.run(widest=widest) else None
