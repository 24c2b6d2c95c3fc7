"""Exact reductions: a smaller problem with the same optimum, and the expansion of its choices to the original problem.

a node without demands and with at most two neighbours is eliminated               -> Elimination.run
strategies without a finite partner are dropped                                    -> _contract
functional edge: each strategy of u allows at most one of v -> v is merged into u  -> _contract, Elimination.tie
an edge that is a sum a[s] + b[t] becomes costs of its ends                        -> _contract
times at which the limit cannot bind are dropped                                   -> crop_times
dominated strategies are dropped                                                   -> Elimination.prune
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.solve.problem import Contradiction, Demand, Ints, Problem
from planner.solve.reduce.elimination import WIDEST, Elimination
from planner.solve.reduce.interned_tables import PLAIN
from planner.solve.reduce.times import crop_times

__all__ = ["ReducedProblem", "reduce_in_place", "reduce_problem"]


@dataclass(frozen=True, slots=True, eq=False)
class ReducedProblem:
    """problem: has the optimum of the original one.  Its last node has one strategy, with the constant cost and the constant demands."""

    problem: Problem
    alive: tuple[int, ...]
    work: Elimination

    def expand(self, choice: Sequence[int] | Ints) -> Ints:
        """The choice of the original problem for one of the reduced: same objective, same demand at every time that can bind."""
        return self.work.expand(zip(self.alive, np.asarray(choice)[: len(self.alive)], strict=True))

    def restricted_choice(self, choice: Sequence[int] | Ints) -> Ints | None:
        """The choice of the reduced problem for one of the original; None if one of its strategies has been dropped."""
        now = self.work.restricted_choice(choice)
        return None if now is None else np.append(now[np.asarray(self.alive, dtype=np.int64)], 0)


def reduce_problem(
    problem: Problem, *, dominance: bool = True, eliminate: bool = True, largest: int = 100_000, crop: bool = True
) -> ReducedProblem:
    """Apply all reductions until none applies.

    Args:
        dominance: also drop dominated strategies: some optimum remains, but not every choice, as it does under the other reductions.
        eliminate: also eliminate nodes without demands and with at most two neighbours.
        largest: no elimination may make an edge with more entries.
        crop: drop times at which the limit cannot bind, and number the others anew.  Without it the limit is not looked at, and the result, charged
            for what is held, has the optimum of the problem charged so, at any multipliers of 0 or more: what is dropped costs no less and holds
            no less.

    Raises:
        Contradiction: forbidden entries leave no choice.   OutOfMemory: the limit is too low at some time, whatever is chosen.
    """
    work = Elimination(problem)
    reduce_in_place(work, dominance=dominance, eliminate=eliminate, largest=largest, crop=crop)
    core, alive = work.core()
    always = tuple(Demand(len(alive), a, b, np.array([amount])) for a, b, amount in work.constant_demands)
    costs = (*core.costs, np.array([work.constant]))
    whole = Problem((*core.names, "what is always paid"), costs, core.edges, (*core.demands, *always), core.limit)
    return ReducedProblem(whole, alive, work)


def reduce_in_place(work: Elimination, *, dominance: bool = True, eliminate: bool = True, largest: int = WIDEST, crop: bool = True) -> None:
    """reduce_problem, in place."""
    again = set(work.remaining)
    for v in again:
        finite = work.tables.finite(work.factors[v][v,])
        if finite is not None and not finite.any():
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
        if crop:
            crop_times(work)
        if dominance:
            work.prune(None if work.demands and crop else again | work.changed)  # to crop times may change any node's demands
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
    tables = work.factors[v]
    finite = work.tables.finite(tables[v,])
    forms = {scope: form for scope in tables if len(scope) == 2 and (form := work.form(v, scope)) is not PLAIN}
    for form in forms.values():
        if form.rows is not None:
            met = np.zeros(work.extent[v], dtype=np.bool_)
            met[list(form.rows)] = True
            finite = met if finite is None else finite & met
    if finite is not None and not finite.all():
        work.keep_strategies(v, tuple(np.flatnonzero(finite).tolist()))
    elif not forms:
        return
    for scope in list(tables):
        if len(scope) == 1 or scope not in tables:
            continue
        form = work.form(v, scope)
        if form is PLAIN:
            continue
        w = scope[0] + scope[1] - v
        # If either may be merged into the other, the one with more tables and demands stays.
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
