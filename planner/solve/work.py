"""A problem being reduced, and the way back: each step is undone in reverse to give every node of the first problem its strategy.

keep(v, idx)              v's strategy i was idx[i] before                              x_v <- idx[x_v]
tie(v, parents, table)    v is gone: its strategy follows from its parents' ones        x_v <- table[x_parents]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from planner.ir.errors import Unsupported
from planner.solve.problem import Demand, Edge, Floats, Ints, Problem

__all__ = ["Contradiction", "Step", "Work", "expand"]


class Contradiction(Unsupported):
    """The forbidden entries leave a node without any strategy, or no choice fits the limit."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One reduction; without parents a ``keep``, with one or two a ``tie``."""

    node: int
    parents: tuple[int, ...]
    table: Ints


def expand(steps: Sequence[Step], alive: Sequence[int], choice: Sequence[int] | Ints, nodes: int) -> Ints:
    """Strategies of all ``nodes`` of the first problem from the ``choice`` of those still alive."""
    full = np.zeros(nodes, dtype=np.int64)
    full[np.asarray(alive, dtype=np.int64)] = choice
    for step in reversed(steps):
        at = tuple(full[p] for p in step.parents) if step.parents else full[step.node]
        full[step.node] = step.table[at]
    return full


class Work:
    """Mutable twin of a Problem.  ``near[u][v]`` is the summed matrix of all edges between u and v, rows are u's strategies."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.costs: list[Floats] = [np.array(c, dtype=np.float64) for c in problem.costs]
        self.near: list[dict[int, Floats]] = [{} for _ in self.costs]
        self.demands: list[list[tuple[int, int, Floats]]] = [[] for _ in self.costs]
        self.alive = [True] * len(self.costs)
        self.steps: list[Step] = []
        self.constant = 0.0
        self.always: list[tuple[int, int, float]] = []  # (start, stop, amount) that no choice changes
        self.dirty: set[int] = set(range(len(self.costs)))
        for edge in problem.edges:
            self.add(edge.u, edge.v, np.asarray(edge.matrix, dtype=np.float64))
        for d in problem.demands:
            if d.stop > d.start:
                self.hold(d.node, d.start, d.stop, np.asarray(d.amount, dtype=np.float64))

    def add(self, u: int, v: int, matrix: Floats) -> None:
        """Add an edge; it joins a parallel one."""
        known = self.near[u].get(v)
        total = matrix if known is None else known + matrix
        self.near[u][v] = total
        self.near[v][u] = total.T
        self.dirty.update((u, v))

    def cut(self, u: int, v: int) -> Floats:
        """Remove the edge and return its matrix, rows u."""
        matrix = self.near[u].pop(v)
        del self.near[v][u]
        self.dirty.update((u, v))
        return matrix

    def hold(self, node: int, start: int, stop: int, amount: Floats) -> None:
        """Add a demand; what all strategies hold alike goes to ``always``."""
        least = float(amount.min()) if amount.size else 0.0
        if least:
            self.always.append((start, stop, least))
            amount = amount - least
        if amount.any():
            self.demands[node].append((start, stop, amount))

    def keep(self, v: int, kept: Ints) -> None:
        """Drop all strategies of v but ``kept``."""
        if not kept.size:
            raise Contradiction(
                f"{self.problem.names[v]} has no strategy left that its neighbours allow; remove a pin or allow more strategies"
            )
        self.steps.append(Step(v, (), kept))
        self.costs[v] = self.costs[v][kept]
        for w, matrix in self.near[v].items():
            smaller = np.ascontiguousarray(matrix[kept])
            self.near[v][w] = smaller
            self.near[w][v] = smaller.T
        held, self.demands[v] = self.demands[v], []
        for start, stop, amount in held:
            self.hold(v, start, stop, amount[kept])
        self.dirty.add(v)
        self.dirty.update(self.near[v])

    def tie(self, v: int, u: int, table: Ints) -> None:
        """v's strategy is table[strategy of u]: u takes over v's cost, edges and demands."""
        self.costs[u] = self.costs[u] + self.cut(u, v)[np.arange(table.size), table] + self.costs[v][table]
        for w in list(self.near[v]):
            self.add(u, w, self.cut(v, w)[table])
        for start, stop, amount in self.demands[v]:
            self.hold(u, start, stop, amount[table])
        self._gone(v, (u,), table)

    def eliminate(self, v: int) -> None:
        """Minimise over v, which holds nothing and has at most two neighbours: they get a cost or an edge instead."""
        assert not self.demands[v] and len(self.near[v]) <= 2
        cost = self.costs[v]
        match list(self.near[v]):
            case []:
                best = int(cost.argmin())
                self.constant += float(cost[best])
                self.keep(v, np.array([best]))
                self.alive[v] = False
            case [u]:
                totals = self.cut(u, v) + cost
                table = totals.argmin(axis=1)
                self.costs[u] = self.costs[u] + totals[np.arange(table.size), table]
                self._gone(v, (u,), table)
            case [u, w]:
                left, right = self.cut(u, v) + cost, self.cut(w, v)
                pair = np.empty((left.shape[0], right.shape[0]))
                best_of = np.empty(pair.shape, dtype=np.int64)
                for s, row in enumerate(left):
                    sums = right + row
                    best_of[s] = sums.argmin(axis=1)
                    pair[s] = sums[np.arange(sums.shape[0]), best_of[s]]
                self.add(u, w, pair)
                self._gone(v, (u, w), best_of)

    def _gone(self, v: int, parents: tuple[int, ...], table: Ints) -> None:
        self.steps.append(Step(v, parents, np.asarray(table, dtype=np.int64)))
        self.alive[v] = False
        self.demands[v] = []
        self.dirty.discard(v)
        self.dirty.update(parents)

    def nodes(self) -> list[int]:
        """Those still alive."""
        return [v for v, lives in enumerate(self.alive) if lives]

    def edges(self) -> Iterable[tuple[int, int, Floats]]:
        """Each edge once, u < v."""
        for u in self.nodes():
            for v, matrix in self.near[u].items():
                if u < v:
                    yield u, v, matrix

    def freeze(self) -> tuple[Problem, tuple[int, ...]]:
        """The reduced problem and which nodes of the first one its nodes are.

        A last node with one strategy, which is no node of the first problem, carries what no choice changes: cost and demands.
        """
        ids = self.nodes()
        place = {v: i for i, v in enumerate(ids)}
        last = len(ids)
        edges = tuple(Edge(place[u], place[v], np.ascontiguousarray(m)) for u, v, m in self.edges())
        demands = [Demand(place[v], a, b, amount) for v in ids for a, b, amount in self.demands[v]]
        demands += [Demand(last, a, b, np.array([amount])) for a, b, amount in self.always]
        names = (*(self.problem.names[v] for v in ids), "what is always paid")
        costs = (*(self.costs[v] for v in ids), np.array([self.constant]))
        return Problem(names, costs, edges, tuple(demands), self.problem.limit), tuple(ids)
