"""Exact reductions: a smaller problem with the same optimum, and the way back from its choices to the first problem's.

parallel edges add up; strategies without a finite partner go                      -> Work.add, prune_node
functional edge: each strategy of u leaves v at most one -> v is part of u         -> _contract
an edge that is a sum a[s] + b[t] is a cost of its ends                            -> _separate
times that cannot bind leave the limit; dominated strategies go                    -> crop_times, prune_node
a node that holds nothing and has at most two neighbours is minimised away         -> _eliminate
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.solve.problem import Floats, Ints, Problem
from planner.solve.prune import prune_node
from planner.solve.times import crop_times
from planner.solve.work import Step, Work, expand

__all__ = ["Reduced", "reduce_problem"]


@dataclass(frozen=True, slots=True, eq=False)
class Reduced:
    """problem: equal in optimum to the first one.  Its last node has one strategy and carries what is always paid and held."""

    problem: Problem
    alive: tuple[int, ...]
    steps: tuple[Step, ...]
    nodes: int

    def expand(self, choice: Sequence[int] | Ints) -> Ints:
        """A choice of the first problem from one of the reduced; same objective, same demand at every time that can bind."""
        return expand(self.steps, self.alive, np.asarray(choice)[: len(self.alive)], self.nodes)

    def follow(self, choice: Sequence[int] | Ints) -> Ints | None:
        """The way down: a choice of the first problem in the reduced one; None if one of its strategies is gone."""
        now = np.array(choice, dtype=np.int64)
        for step in self.steps:
            if not step.parents:
                at = np.flatnonzero(step.table == now[step.node])
                if not at.size:
                    return None
                now[step.node] = at[0]
        return np.append(now[np.asarray(self.alive, dtype=np.int64)], 0)


def reduce_problem(problem: Problem, *, dominance: bool = True, eliminate: bool = True, largest: int = 100_000) -> Reduced:
    """Apply all reductions until none applies.

    Args:
        dominance: also drop strategies that some optimum does without (all others keep every choice).
        eliminate: also minimise over nodes with at most two neighbours that hold nothing.
        largest: no edge between the neighbours of such a node may get more entries.
    Raises:
        Contradiction: forbidden entries or the limit leave no choice.
    """
    work = Work(problem)
    while True:
        _contract(work)
        crop_times(work)
        before = len(work.steps)
        if dominance:
            _prune(work, work.nodes())
        if eliminate:
            _eliminate(work, largest)
        if len(work.steps) > before:
            work.dirty.update(work.nodes())
        if not work.dirty:
            break
    reduced, alive = work.freeze()
    return Reduced(reduced, alive, tuple(work.steps), len(problem.costs))


def _contract(work: Work) -> None:
    """Drop strategies without partners and merge along functional edges until neither is left."""
    while work.dirty:
        v = work.dirty.pop()
        if not work.alive[v]:
            continue
        _drop_lonely(work, v)
        for w in list(work.near[v]):
            if w not in work.near[v]:
                continue
            matrix = work.near[v][w]
            finite = np.isfinite(matrix)
            follows, leads = finite.sum(axis=1).max() <= 1, finite.sum(axis=0).max() <= 1
            # Where either may follow the other, the one with more to carry along stays.
            if follows and not (leads and _load(work, w) > _load(work, v)):
                work.tie(w, v, finite.argmax(axis=1))
            elif leads:
                work.tie(v, w, finite.argmax(axis=0))
                break
            elif finite.all():
                _separate(work, v, w, matrix)


def _load(work: Work, v: int) -> int:
    return len(work.near[v]) + len(work.demands[v])


def _drop_lonely(work: Work, v: int) -> None:
    good = np.isfinite(work.costs[v])
    for matrix in work.near[v].values():
        good &= np.isfinite(matrix).any(axis=1)
    if not good.all():
        work.keep(v, np.flatnonzero(good))


def _separate(work: Work, v: int, w: int, matrix: Floats) -> None:
    first = matrix[0] - matrix[0, 0]
    if (matrix == matrix[:, :1] + first).all():
        work.cut(v, w)
        work.costs[v] = work.costs[v] + matrix[:, 0]
        work.costs[w] = work.costs[w] + first


def _prune(work: Work, nodes: Sequence[int]) -> None:
    todo = dict.fromkeys(nodes)
    while todo:
        v = next(iter(todo))
        del todo[v]
        if work.alive[v] and prune_node(work, v):
            todo.update(dict.fromkeys(work.near[v]))


def _eliminate(work: Work, largest: int) -> None:
    todo = dict.fromkeys(work.nodes())
    while todo:
        v = next(iter(todo))
        del todo[v]
        if not work.alive[v] or work.demands[v] or len(work.near[v]) > 2:
            continue
        neighbours = list(work.near[v])
        if len(neighbours) == 2 and work.costs[neighbours[0]].size * work.costs[neighbours[1]].size > largest:
            continue
        work.eliminate(v)
        todo.update(dict.fromkeys(neighbours))
