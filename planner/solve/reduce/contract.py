"""Exact reductions: a smaller problem with the same optimum, and the way back from its choices to the first problem's.

a node that holds nothing and has at most two neighbours is minimised away         -> Elimination.run
strategies without a finite partner go                                             -> _contract
functional edge: each strategy of u leaves v at most one -> v is part of u         -> _contract, Elimination.tie
an edge that is a sum a[s] + b[t] is a cost of its ends                            -> _contract
times that cannot bind leave the limit                                             -> crop_times
dominated strategies go                                                            -> Elimination.prune
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.solve.problem import Contradiction, Demand, Ints, Problem
from planner.solve.reduce.elimination import WIDEST, Elimination
from planner.solve.reduce.times import crop_times

__all__ = ["ReducedProblem", "reduce_in_place", "reduce_problem"]


@dataclass(frozen=True, slots=True, eq=False)
class ReducedProblem:
    """problem: equal in optimum to the first one.  Its last node has one strategy and carries what is always paid and held."""

    problem: Problem
    alive: tuple[int, ...]
    work: Elimination

    def expand(self, choice: Sequence[int] | Ints) -> Ints:
        """A choice of the first problem from one of the reduced; same objective, same demand at every time that can bind."""
        return self.work.expand(zip(self.alive, np.asarray(choice)[: len(self.alive)], strict=True))

    def restricted_choice(self, choice: Sequence[int] | Ints) -> Ints | None:
        """The way down: a choice of the first problem in the reduced one; None if one of its strategies is gone."""
        now = self.work.restricted_choice(choice)
        return None if now is None else np.append(now[np.asarray(self.alive, dtype=np.int64)], 0)


def reduce_problem(problem: Problem, *, dominance: bool = True, eliminate: bool = True, largest: int = 100_000) -> ReducedProblem:
    """Apply all reductions until none applies.

    Args:
        dominance: also drop strategies that some optimum does without (all others keep every choice).
        eliminate: also minimise over nodes with at most two neighbours that hold nothing.
        largest: no edge between the neighbours of such a node may get more entries.

    Raises:
        Contradiction: forbidden entries leave no choice.   OutOfMemory: the limit is too low at some time, whatever is chosen.
    """
    work = Elimination(problem)
    reduce_in_place(work, dominance=dominance, eliminate=eliminate, largest=largest)
    core, alive = work.core()
    always = tuple(Demand(len(alive), a, b, np.array([amount])) for a, b, amount in work.constant_demands)
    costs = (*core.costs, np.array([work.constant]))
    whole = Problem((*core.names, "what is always paid"), costs, core.edges, (*core.demands, *always), core.limit)
    return ReducedProblem(whole, alive, work)


def reduce_in_place(work: Elimination, *, dominance: bool = True, eliminate: bool = True, largest: int = WIDEST) -> None:
    """reduce_problem, in place."""
    again = set(work.remaining)
    for v in again:
        if not np.isfinite(work.tables.tables[work.factors[v][v,]]).any():
            work.keep_strategies(v, ())
    while again:
        work.changed = set()
        if eliminate:
            work.run(neighbours=2, widest=largest, among=again)
        if work.constant == np.inf:
            raise Contradiction(
                "no legal combination: the forbidden entries leave nothing to choose; remove a pin, allow more strategies or choose another mesh"
            )
        _contract(work, again | work.changed)
        crop_times(work)
        if dominance:
            work.prune(None if work.demands else again | work.changed)
        again = work.changed & work.remaining


def _contract(work: Elimination, among: set[int]) -> None:
    """Drop strategies without partners and merge along functional edges until neither is left."""
    seen, queue, waiting = work.changed, deque(sorted(among)), set(among)
    while queue:
        v = queue.popleft()
        waiting.discard(v)
        if v not in work.remaining:
            continue
        work.changed = set()
        _contract_around(work, v)
        seen |= work.changed
        fresh = sorted(work.changed - waiting)
        queue.extend(fresh)
        waiting.update(fresh)
    work.changed = seen


def _contract_around(work: Elimination, v: int) -> None:
    finite = np.isfinite(work.tables.tables[work.factors[v][v,]])
    for scope in work.factors[v]:
        if len(scope) == 2 and (rows := work.form(v, scope).rows) is not None:
            met = np.zeros(finite.size, dtype=np.bool_)
            met[list(rows)] = True
            finite = finite & met
    if not finite.all():
        work.keep_strategies(v, tuple(np.flatnonzero(finite).tolist()))
    for scope in list(work.factors[v]):
        if len(scope) == 1 or scope not in work.factors[v]:
            continue
        w = scope[0] + scope[1] - v
        form = work.form(v, scope)
        # Where either may follow the other, the one with more to carry along stays.
        if form.column_of is not None and not (form.row_of is not None and _load(work, w) > _load(work, v)):
            work.tie(w, v, form.column_of)
        elif form.row_of is not None:
            work.tie(v, w, form.row_of)
            return
        elif form.parts is not None:
            work.remove_table(scope)
            work.add_table((v,), form.parts[0])
            work.add_table((w,), form.parts[1])


def _load(work: Elimination, v: int) -> int:
    return len(work.factors[v]) + len(work.demands.get(v, ()))
