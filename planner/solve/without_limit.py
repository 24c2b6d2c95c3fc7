"""The optimum of a problem without demands, with a proof, for problems of ten thousands of nodes.

1. Reduce: remove nodes with at most two neighbours, functional edges and, of large problems, dominated strategies (reduce/contract).
2. If the tables of a full elimination would be small, eliminate the rest too.  This ends the search.
3. Otherwise message passing (bounds/message_passing) raises a lower bound, proposes choices, and drops strategies that no better choice has.
   If the bound meets the best choice, the search ends.  If enough strategies are dropped, continue with 2.
4. Otherwise solve an ILP over the remaining strategies (highs) for a choice better than the best one.  If the ILP would be large and the best
   choice is within the caller's ``gap`` of the bound, skip it: the first relaxation of an ILP of millions of columns takes minutes.

Bounds and objectives are compared to a relative ``EQUAL``: the proof says that no choice costs less than (1 - EQUAL) times the objective.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf, prod
from time import perf_counter

import numpy as np

from planner.ir.errors import Unsupported
from planner.solve.bounds.local_search import improve_at_multipliers
from planner.solve.bounds.message_passing import Dual
from planner.solve.highs import TOLERANCE, HighsIlp
from planner.solve.problem import Contradiction, Ints, NotFoundInTime, Problem, Progress, Solution, Watch
from planner.solve.reduce.contract import reduce_in_place
from planner.solve.reduce.elimination import Elimination
from planner.solve.time_limit import Clock, TimeLimit

__all__ = ["EQUAL", "NO_CHOICE", "Sizes", "solve_exactly"]

EQUAL = 1e-10
_FEW_NODES = 1_000
"""Up to so many nodes, message passing on all strategies takes less time than it takes to find the dominated ones."""
_LOOKED_AT = 64  # entries that a whole elimination may look at, per entry of the largest table allowed
_PATIENCE = 12
_MARGINS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes up to which each method is used.

    narrow, wide, widest: entries of the largest table of an elimination at the start, after some message passing, and at its end.
    large: columns of an ILP above which a gap within the caller's ``gap`` is accepted, because its relaxation takes seconds.
    """

    narrow: int = 1 << 16
    wide: int = 1 << 22
    widest: int = 1 << 24
    large: int = 100_000


_SIZES = Sizes()


def solve_exactly(
    problem: Problem,
    *,
    seconds: float = inf,
    clock: Clock = perf_counter,
    watch: Watch | None = None,
    gap: float = 0.0,
    sizes: Sizes = _SIZES,
) -> Solution:
    """Solve a problem without demands.

    Args:
        seconds: after so many, by ``clock``, the search stops and returns the best choice so far with a valid bound.
        watch: called in every round.  If it is given, an interrupt (Ctrl-C, or a KeyboardInterrupt that it raises) stops the search as the
            end of the time does.
        gap: share of the objective that may stay unproven where the proof would need a large ILP; the bound is valid in any case.
        sizes: which method serves a problem of which size; the optimum does not depend on it.

    Raises:
        Unsupported: no choice is free of forbidden entries.   NotFoundInTime: none was found in ``seconds``.
        KeyboardInterrupt: before any choice was found.
    """
    assert not problem.demands, "problems with demands are solved by planner.solve.limited.memory"
    time_limit = TimeLimit(seconds, clock)
    work = Elimination(problem)
    reduce_in_place(work, dominance=len(problem.names) > _FEW_NODES)
    stats = {"nodes": float(len(problem.names)), "core_nodes": float(len(work.remaining))}
    if _is_narrow(work, sizes.narrow, _LOOKED_AT * sizes.wide):
        work.run(widest=sizes.wide)
        if not work.remaining:
            return _solution(problem, work.expand(), time_limit, inf, "elimination", stats)
    core, nodes = work.core()
    state = _State()
    try:
        best, bound, proof = _close(core, time_limit, work.constant, watch, state, gap, sizes)
    except KeyboardInterrupt:
        if state.choice is None or watch is None:
            raise  # without a watch, the caller handles the interrupt
        best, bound, proof = state.choice, state.bound, "interrupted; the bound is message passing's"
    return _solution(problem, work.expand(zip(nodes, best, strict=True)), time_limit, bound + work.constant, proof, stats)


def _solution(problem: Problem, choice: Ints, time_limit: TimeLimit, bound: float, proof: str, stats: dict[str, float]) -> Solution:
    objective = problem.objective(choice)
    if objective == inf:
        raise Unsupported(NO_CHOICE)
    proven = bound >= objective - 1.01 * TOLERANCE * abs(objective) - 1e-300
    return Solution(
        choice=choice,
        objective=objective,
        lower_bound=objective if proven else bound,
        seconds=time_limit.elapsed_s(),
        method="exact",
        proof=proof,
        stats=stats,
    )


NO_CHOICE = (
    "no legal combination of layouts: the pins contradict each other or cut something that must stay whole; "
    "remove a pin or choose another mesh"
)


def _is_narrow(work: Elimination, widest: int, most_entries: int) -> bool:
    """Whether an elimination of all nodes makes no table of more than ``widest`` entries and looks at ``most_entries`` at most, by extents alone."""
    around = {v: {n for scope in work.factors[v] for n in scope if n != v} for v in work.remaining}
    size = {v: prod(work.extent[n] for n in neighbours) for v, neighbours in around.items()}
    queue = [(entries, v) for v, entries in size.items()]
    heapify(queue)
    while queue:
        entries, v = heappop(queue)
        if v not in around or size[v] != entries:
            continue
        most_entries -= entries * work.extent[v]
        if entries > widest or most_entries < 0:
            return False
        neighbours = around.pop(v)
        for n in neighbours:
            around[n].discard(v)
            around[n] |= neighbours - {n}
            size[n] = prod(work.extent[m] for m in around[n])
            heappush(queue, (size[n], n))
    return True


@dataclass(slots=True)
class _State:
    """The best choice and the bound so far, for a search that is interrupted."""

    choice: Ints | None = None
    bound: float = -inf


def _close(
    core: Problem, time_limit: TimeLimit, constant: float, watch: Watch | None, state: _State, gap: float, sizes: Sizes
) -> tuple[Ints, float, str]:
    """(choice, bound, proof) of a pairwise core; ``state`` is updated in every round."""
    dual = Dual(core)
    best: Ints | None = None
    upper = inf
    margins = list(_MARGINS)
    tested, stalls, steps = -1, 0, _PATIENCE
    while True:
        before = dual.lower_bound
        dual.sweep(5, upper * (1 - EQUAL) if upper < inf else inf)
        choice = improve_at_multipliers(dual, dual.decode())
        objective = core.objective(choice)
        if objective < upper * (1 - EQUAL):
            best, upper = choice, objective
        state.choice, state.bound = best, min(upper, dual.lower_bound)
        if watch is not None:
            watch(Progress(time_limit.elapsed_s(), upper + constant, min(upper, dual.lower_bound) + constant))
        if dual.lower_bound == inf and best is None:
            raise Unsupported(NO_CHOICE)
        if best is not None and dual.lower_bound >= upper * (1 - EQUAL):
            return best, upper, "the bound of message passing meets the choice"
        if time_limit.is_up():
            break
        if dual.lower_bound - before > 1e-2 * (min(upper, objective) - dual.lower_bound):
            continue
        # The bound rises slowly.  The remaining strategies may admit an elimination by now; if not, a better choice lets more be dropped.
        alive = int(dual.alive.sum())
        last = not margins
        if alive == tested and not last:
            better = _near(core, dual, margins.pop(0), sizes)
            if better is not None and core.objective(better) < upper * (1 - EQUAL):
                best, upper = better, core.objective(better)
            continue
        tested = alive
        strategies = dual.alive_strategies()
        if (work := _rest(core, strategies)) is None:
            return _nothing_cheaper(best, upper)
        widest = sizes.widest if last else sizes.wide
        if _is_narrow(work, widest, _LOOKED_AT * widest):
            if not work.run(widest=widest, time_limit=time_limit):
                break
            choice = _lifted(work.expand(), strategies)
            if best is None or core.objective(choice) < upper:
                best, upper = choice, core.objective(choice)
            return best, upper, "message passing, then elimination"
        stalls += 1
        if (
            gap
            and stalls > 2
            and best is not None
            and upper - dual.lower_bound <= gap * (upper + constant)
            and _columns(work) > sizes.large
        ):
            return best, dual.lower_bound, "message passing, to within the gap"
        if stalls % 3 == 1:
            better = _near(core, dual, _MARGINS[0], sizes)
            if better is not None and core.objective(better) < upper * (1 - EQUAL):
                best, upper = better, core.objective(better)
        if last and not (steps := steps - 1):
            break
    if best is None:  # the caller needs some choice
        best = _near(core, dual, _MARGINS[0], sizes)
        upper = inf if best is None else core.objective(best)
        best = best if upper < inf else None
    state.choice = best
    if not time_limit.is_up():
        strategies = dual.alive_strategies()
        if (work := _rest(core, strategies)) is None:
            return _nothing_cheaper(best, upper)
        small, nodes = work.core()
        outcome = HighsIlp(small, upper - work.constant).solve(time_limit)
        if outcome.choice is not None:
            choice = _lifted(work.expand(zip(nodes, outcome.choice, strict=True)), strategies)
            if core.objective(choice) < upper:
                best, upper = choice, core.objective(choice)
        if best is not None:
            return best, max(dual.lower_bound, min(upper, outcome.bound + work.constant)), "message passing, then branch and bound"
    if best is None:
        raise NotFoundInTime(f"{NO_CHOICE}; or give more seconds: none was found in {time_limit.seconds:g} s", dual.lower_bound + constant)
    return best, dual.lower_bound, "stopped; the bound is message passing's"


def _columns(work: Elimination) -> int:
    """Columns of an ILP over the remaining strategies."""
    rest, _ = work.core()
    return sum(costs.size for costs in rest.costs) + sum(edge.matrix.size for edge in rest.edges)


def _rest(core: Problem, strategies: list[Ints]) -> Elimination | None:
    """The problem over these strategies, reduced; None: they allow no choice."""
    if not all(k.size for k in strategies):
        return None
    work = Elimination(core.restricted(strategies))
    try:
        reduce_in_place(work)
    except Contradiction:
        return None
    return work


def _nothing_cheaper(best: Ints | None, upper: float) -> tuple[Ints, float, str]:
    """The end where message passing dropped all strategies: all choices but the best are dearer.  Raises Unsupported: there is no best."""
    if best is None:
        raise Unsupported(NO_CHOICE)
    return best, upper, "message passing leaves nothing that is cheaper"


def _near(core: Problem, dual: Dual, margin: float, sizes: Sizes) -> Ints | None:
    """The best choice among strategies whose bound exceeds their node's least by at most ``margin`` (relative); None if these are too many.

    Smaller margins are tried until an elimination is small enough.
    """
    scale = abs(dual.lower_bound)
    least = np.minimum.reduceat(dual.excess, dual.flat.first[:-1])
    above = dual.excess - np.repeat(least, np.diff(dual.flat.first))
    for near in (m for m in _MARGINS if m <= margin):
        strategies = dual.per_node(dual.alive & (above <= near * scale))
        work = _rest(core, strategies)
        if work is not None and _is_narrow(work, sizes.narrow, _LOOKED_AT * sizes.wide):
            work.run(widest=sizes.narrow)
            return _lifted(work.expand(), strategies)
    return None


def _lifted(choice: Ints, strategies: list[Ints]) -> Ints:
    """A choice that numbers each node's ``strategies``, as a choice that numbers all strategies."""
    return np.array([int(k[s]) for k, s in zip(strategies, choice, strict=True)], dtype=np.int64)
