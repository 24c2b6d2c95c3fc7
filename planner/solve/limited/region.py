"""Regions: problems over some connected nodes, while all other nodes keep their strategies of a given choice.

A region is small enough for an ILP, and its solution costs at most as much as the given choice.  Edges inside the region stay edges; edges
across its border become costs of its nodes; the memory that the other nodes hold becomes a constant demand.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.solve.problem import Demand, Floats, Ints, Problem

__all__ = ["Regions"]


class Regions:
    """Draws regions of a problem at random; equal seeds draw equal regions."""

    def __init__(self, problem: Problem, seed: int = 0) -> None:
        self.problem = problem
        self.rng = np.random.default_rng(seed)
        self.near: list[list[int]] = [[] for _ in problem.costs]
        for number, edge in enumerate(problem.edges):
            self.near[edge.u].append(number)
            self.near[edge.v].append(number)
        self.holds: list[list[Demand]] = [[] for _ in problem.costs]
        for d in problem.demands:
            self.holds[d.node].append(d)

    def draw(self, weight: Floats, count: Ints, entries: int) -> Ints:
        """Nodes of a region around a node that is drawn with probability proportional to ``weight``, nearly.

        Args:
            weight: per node.   count: per node, its allowed strategies; a node with only one is left out, and no path leads through it.
            entries: the region grows until its edges have so many entries.
        """
        free = count > 1
        chance = np.where(free, weight + 1e-3 * (weight.max(initial=0.0) + 1.0), 0.0)
        if not free.any():
            return np.empty(0, dtype=np.int64)
        start = int(self.rng.choice(chance.size, p=chance / chance.sum()))
        inside = {start}
        border = [start]
        size = 0
        while border and size < entries:
            v = border.pop(int(self.rng.integers(len(border))) if self.rng.random() < 0.3 else 0)
            for number in self.near[v]:
                edge = self.problem.edges[number]
                w = edge.u + edge.v - v
                if free[w] and w not in inside:
                    inside.add(w)
                    border.append(w)
                    size += sum(
                        int(count[self.problem.edges[n].u] * count[self.problem.edges[n].v])
                        for n in self.near[w]
                        if self.problem.edges[n].u + self.problem.edges[n].v - w in inside
                    )
        return np.array(sorted(inside), dtype=np.int64)

    def cut_out(self, region: Ints, choice: Ints, held: Floats, allowed: NDArray[np.bool_], first: Ints) -> Problem:
        """The problem of the region alone.

        Args:
            held: the memory that ``choice`` holds at every time.
            allowed: mask over the strategies of all nodes in a row; those of node v begin at ``first[v]``.
        """
        place = {int(v): i for i, v in enumerate(region)}
        edges = [self.problem.edges[number] for number in {n for v in place for n in self.near[v]}]
        alone = self.problem.conditioned(region, choice, edges).allowing(
            {i: np.flatnonzero(allowed[first[v] : first[v + 1]]) for v, i in place.items()}
        )
        rest = np.append(held, 0.0)
        demands = []
        for v in place:
            for d in self.holds[v]:
                rest[d.start : d.stop] -= d.amount[choice[v]]
                demands.append(Demand(place[v], d.start, d.stop, d.amount))
        last = len(place)
        starts = np.flatnonzero(np.diff(rest, prepend=0.0))
        stops = np.append(starts, held.size)[1:]  # empty if the other nodes hold nothing
        demands += [Demand(last, int(a), int(b), np.array([rest[a]])) for a, b in zip(starts, stops, strict=True) if a < b and rest[a]]
        return Problem((*alone.names, "the rest"), (*alone.costs, np.zeros(1)), alone.edges, tuple(demands), self.problem.limit)
