"""Exact minimisation by eliminating one node after another, with equal work done once.

Eliminating node v replaces the tables around it by one table over its neighbours (min-plus bucket elimination):

    new[n1..nk] = min over s of  sum of the tables around v at (s, n1..nk)

A table with the same numbers has the same identity (hash-consing), and a step whose tables were met before is looked up.  The layers of a
model repeat, so all but the first cost a dictionary lookup each; nothing ties them together, each may still choose differently.
The cost is governed by the widest table, which ``widest`` limits.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from planner.solve.problem import Edge, Floats, Ints, Problem

__all__ = ["Elimination", "eliminate"]

WIDEST = 1 << 23
"""Entries of the largest table: 64 MB of float64."""

Scope = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """node was eliminated: best[i] over the (remaining) nodes ``around`` is its strategy (after pruning: over itself)."""

    node: int
    around: Scope
    best: Ints


class _Tables:
    """Canonical tables and the steps already done with them.  A table's number is its identity."""

    def __init__(self) -> None:
        self.tables: list[Floats] = []
        self._by_object: dict[int, tuple[Floats, int]] = {}
        self._by_content: dict[tuple[tuple[int, ...], bytes], int] = {}
        self._transposed: dict[tuple[int, tuple[int, ...]], int] = {}
        self._steps: dict[tuple[object, ...], tuple[int, Ints]] = {}
        self._taken: dict[tuple[int, int, tuple[int, ...]], int] = {}
        self._single: dict[tuple[int, int], int] = {}
        self._undominated: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._sums: dict[tuple[int, int], int] = {}

    def number(self, table: Floats) -> int:
        """The identity of a table's numbers."""
        known = self._by_object.get(id(table))
        if known is not None and known[0] is table:
            return known[1]
        content = np.asarray(table, order="C")
        key = (content.shape, content.tobytes())
        number = self._by_content.setdefault(key, len(self.tables))
        if number == len(self.tables):
            self.tables.append(content)
        self._by_object[id(table)] = (table, number)  # the reference keeps the id from being used again
        return number

    def transpose(self, number: int, order: tuple[int, ...]) -> int:
        if order == tuple(range(len(order))):
            return number
        key = (number, order)
        if key not in self._transposed:
            self._transposed[key] = self.number(np.asarray(self.tables[number].transpose(order), order="C"))
        return self._transposed[key]

    def add(self, a: int, b: int) -> int:
        key = (a, b) if a < b else (b, a)
        if key not in self._sums:
            self._sums[key] = self.number(self.tables[a] + self.tables[b])
        return self._sums[key]

    def take(self, number: int, dim: int, kept: tuple[int, ...]) -> int:
        key = (number, dim, kept)
        if key not in self._taken:
            self._taken[key] = self.number(np.take(self.tables[number], kept, axis=dim))
        return self._taken[key]

    def only(self, number: int, dim: int) -> int:
        """The table without a dim of extent 1."""
        key = (number, dim)
        if key not in self._single:
            self._single[key] = self.number(self.tables[number].squeeze(axis=dim))
        return self._single[key]

    def undominated(self, numbers: tuple[int, ...]) -> tuple[int, ...]:
        """Strategies (dim 0 of every table) that no other one beats; among equals the first stays."""
        found = self._undominated.get(numbers)
        if found is None:
            size = len(self.tables[numbers[0]])
            worse = np.zeros((size, size))  # worse[s, t]: how much s costs more than t at the least
            for number in numbers:
                table = self.tables[number].reshape(size, -1)
                with np.errstate(invalid="ignore"):
                    difference = table[:, None, :] - table[None, :, :]
                difference[np.isnan(difference)] = np.inf  # forbidden under both: never met
                with np.errstate(invalid="ignore"):
                    worse += difference.min(axis=2)
            worse[np.isnan(worse)] = -np.inf
            alive = np.ones(size, dtype=bool)
            for s in reversed(range(size)):
                alive[s] = False
                alive[s] = not (worse[s] >= 0)[alive].any()
            found = self._undominated[numbers] = tuple(int(s) for s in np.flatnonzero(alive))
        return found

    def minimise(self, parts: Sequence[tuple[int, tuple[int, ...]]], extents: tuple[int, ...]) -> tuple[int, Ints]:
        """Sum tables whose dims are ``places`` in the joint index (node first), then minimise over the node."""
        key = (tuple(parts), extents)
        found = self._steps.get(key)
        if found is None:
            found = self._steps[key] = self._minimised(parts, extents)
        return found

    def _minimised(self, parts: Sequence[tuple[int, tuple[int, ...]]], extents: tuple[int, ...]) -> tuple[int, Ints]:
        aligned = []
        for number, places in parts:
            table = self.tables[number]
            shape = [1] * len(extents)
            for place, extent in zip(places, table.shape, strict=True):
                shape[place] = extent
            aligned.append(table.reshape(shape))  # places ascend, so a reshape aligns the dims
        # One strategy after another, so that no table over the node and its neighbours is ever held; small sums first.
        aligned.sort(key=lambda table: table.size)
        smallest = np.full(extents[1:], np.inf)
        best = np.zeros(extents[1:], dtype=np.uint8 if extents[0] < 256 else np.uint16)
        for s in range(extents[0]):
            total: Floats | float = 0.0
            for table in aligned:
                total = total + table[s if len(table) > 1 else 0]
            better = total < smallest
            np.copyto(best, s, where=better, casting="unsafe")
            np.minimum(smallest, total, out=smallest)
        return self.number(smallest), best


class Elimination:
    """A problem on its way to its optimum; ``run`` may be called again with a wider limit."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._tables = _Tables()
        self.extent = [len(costs) for costs in problem.costs]
        self.factors: dict[int, dict[Scope, int]] = {v: {} for v in range(len(problem.costs))}
        self.steps: list[_Step] = []
        self.constant = 0.0
        self.left: set[int] = set(range(len(problem.costs)))
        self.largest = 0
        for v, costs in enumerate(problem.costs):
            self._put((v,), self._tables.number(costs))
        for edge in problem.edges:
            number = self._tables.number(edge.matrix)
            if edge.u > edge.v:
                number = self._tables.transpose(number, (1, 0))
            self._put((min(edge.u, edge.v), max(edge.u, edge.v)), number)

    def _put(self, scope: Scope, number: int) -> None:
        old = self.factors[scope[0]].get(scope)
        new = number if old is None else self._tables.add(old, number)
        for v in scope:
            self.factors[v][scope] = new

    def _around(self, v: int) -> Scope:
        return tuple(sorted({n for scope in self.factors[v] for n in scope if n != v}))

    def _size(self, v: int) -> tuple[int, int]:
        """(entries of the table that eliminating v makes, neighbours)."""
        around = self._around(v)
        if self.extent[v] == 1:
            return 1, 0  # nothing to choose, so nothing joins its neighbours
        size = 1
        for n in around:
            size *= self.extent[n]
        return size, len(around)

    def run(
        self, *, widest: int = WIDEST, neighbours: int | None = None, deadline: float | None = None, keep: frozenset[int] = frozenset()
    ) -> bool:
        """Eliminate while a step's new table has at most ``widest`` entries (and the node at most ``neighbours``).

        Returns:
            True if nothing is left, so that the optimum is known.  ``keep``: nodes that stay.
        """
        queue = [(*self._size(v), v) for v in self.left - keep]
        heapq.heapify(queue)
        current = {v: (size, degree) for size, degree, v in queue}
        while queue:
            size, degree, v = heapq.heappop(queue)
            if v not in self.left or current[v] != (size, degree):
                continue
            if size > widest:
                break
            if neighbours is not None and degree > neighbours:
                continue  # it comes back when a neighbour goes
            if deadline is not None and perf_counter() > deadline:
                break
            around = self._eliminate(v)
            for n in around:
                if n in keep:
                    continue
                now = self._size(n)
                if now != current[n]:
                    current[n] = now
                    heapq.heappush(queue, (*now, n))
        return not self.left

    def cones(self) -> None:
        """Eliminate nodes with at most two neighbours, and drop strategies, until neither does anything more."""
        self.run(neighbours=2)
        while self.left and self.prune():
            self.run(neighbours=2)

    def _settle(self, v: int) -> Scope:
        """A node with one strategy leaves every table by itself."""
        around = self._around(v)
        for scope, number in list(self.factors[v].items()):
            for n in scope:
                del self.factors[n][scope]
            rest = tuple(n for n in scope if n != v)
            number = self._tables.only(number, scope.index(v))
            if rest:
                self._put(rest, number)
            else:
                self.constant += float(self._tables.tables[number])
        self.left.discard(v)
        self.steps.append(_Step(v, (), np.zeros((), dtype=np.int64)))
        return around

    def _eliminate(self, v: int) -> Scope:
        if self.extent[v] == 1:
            return self._settle(v)
        around = self._around(v)
        place = {n: i + 1 for i, n in enumerate(around)} | {v: 0}
        parts: list[tuple[int, tuple[int, ...]]] = []
        for scope, number in self.factors[v].items():
            # Dims in the order of the joint index: the node first, then its neighbours as they are numbered.
            order = tuple(sorted(range(len(scope)), key=lambda i: place[scope[i]]))
            parts.append((self._tables.transpose(number, order), tuple(place[scope[i]] for i in order)))
            for n in scope:
                if n != v:
                    del self.factors[n][scope]
        parts.sort()
        extents = (self.extent[v], *(self.extent[n] for n in around))
        self.largest = max(self.largest, int(np.prod(extents[1:], dtype=np.int64)))
        number, best = self._tables.minimise(parts, extents)
        self.factors[v] = {}
        self.left.discard(v)
        self.steps.append(_Step(v, around, best))
        if around:
            self._put(around, number)
        else:
            self.constant += float(self._tables.tables[number])
        return around

    def prune(self) -> int:
        """Drop strategies that another one of the same node beats whatever the neighbours choose (dead-end elimination, Goldstein 1994):

        s goes if for some t    c_s - c_t + sum over neighbours n of  min over u of (M_n[s, u] - M_n[t, u])  >=  0,    only while tables are pairwise.

        Returns:
            How many strategies went.
        """
        dropped = 0
        queue = sorted(self.left)
        while queue:
            again: set[int] = set()
            for v in queue:
                if self.extent[v] == 1:
                    continue
                key = []
                for scope, number in self.factors[v].items():
                    key.append(number if scope[0] == v else self._tables.transpose(number, (1, 0)))
                kept = self._tables.undominated(tuple(sorted(key)))
                if len(kept) == self.extent[v]:
                    continue
                dropped += self.extent[v] - len(kept)
                self.steps.append(_Step(v, (v,), np.array(kept, dtype=np.int64)))
                self.extent[v] = len(kept)
                for scope, number in list(self.factors[v].items()):
                    new = self._tables.take(number, scope.index(v), kept)
                    for n in scope:
                        self.factors[n][scope] = new
                        if n != v:
                            again.add(n)
                again.add(v)
            queue = sorted(again)
        return dropped

    def core(self) -> tuple[Problem, tuple[int, ...]]:
        """What is left, as a problem of its own (only while every table has at most two dims), and its nodes' old numbers."""
        nodes = tuple(sorted(self.left))
        index = {v: i for i, v in enumerate(nodes)}
        costs: list[Floats] = [np.zeros(self.extent[v]) for v in nodes]
        edges = []
        for v in nodes:
            for scope, number in self.factors[v].items():
                if scope[0] != v:
                    continue
                table = self._tables.tables[number]
                if len(scope) == 1:
                    costs[index[v]] = table
                elif len(scope) == 2:
                    edges.append(Edge(index[scope[0]], index[scope[1]], table))
                else:
                    raise AssertionError("the core of a wide elimination is not pairwise")
        return Problem(tuple(self.problem.names[v] for v in nodes), tuple(costs), tuple(edges)), nodes

    def expand(self, chosen: Iterable[tuple[int, int]] = ()) -> Ints:
        """The whole choice, from the core's."""
        choice = np.zeros(len(self.extent), dtype=np.int64)
        for v, s in chosen:
            choice[v] = s
        for step in reversed(self.steps):
            choice[step.node] = step.best[tuple(choice[n] for n in step.around)]
        return choice


def eliminate(problem: Problem, *, widest: int = WIDEST) -> Ints | None:
    """An optimal choice of a problem without demands, or None if some table would be wider than ``widest``."""
    work = Elimination(problem)
    return work.expand() if work.run(widest=widest) else None
