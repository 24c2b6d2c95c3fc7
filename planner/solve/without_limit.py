"""The optimum of a problem without demands, with a proof, for problems of ten thousands of nodes.

1. Reduce: nodes with at most two neighbours, functional edges and dominated strategies go; equal work is done once (contract, eliminate).
2. If the rest is narrow, it is eliminated as well: done.
3. Otherwise message passing raises a lower bound and proposes choices; what cannot be part of a better choice is dropped (dual).
   The bound meets the best choice: done.  Enough is dropped: the rest is narrow, 2.
4. Otherwise the rest is an ILP (core), which looks for something better than the best choice; not where the rest is large and the choice is
   within the caller's ``gap`` of the bound: an ILP of millions of columns takes minutes for its first relaxation alone.

Bounds and prices are compared to a relative ``EQUAL``: the proof says that no choice is cheaper than (1 - EQUAL) times the objective.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf, prod
from time import perf_counter

import numpy as np

from planner.ir.errors import Unsupported
from planner.solve.bounds.local_search import improve_at_prices
from planner.solve.bounds.message_passing import Dual
from planner.solve.highs import TOLERANCE, HighsIlp
from planner.solve.problem import Contradiction, Ints, NotFoundInTime, Problem, Progress, Solution, Watch
from planner.solve.reduce.contract import reduce_in_place
from planner.solve.reduce.elimination import Elimination
from planner.solve.time_limit import Clock, TimeLimit

__all__ = ["EQUAL", "NO_CHOICE", "Sizes", "solve_exactly"]

EQUAL = 1e-10
_WORK_PER_ENTRY = 64
_PATIENCE = 12
_MARGINS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Up to which size a problem is solved in one way, and in the next from there on.

    narrow, wide, widest: entries of the largest table of an elimination: at once, after message passing, and where message passing has ended.
    large: columns of an ILP whose relaxation takes seconds, so that a gap within the caller's is left as it is.
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
        seconds: stop by then, by ``clock``, with the best choice so far and an honest bound.   watch: told of every round; if there is one, an
            interrupt (Ctrl-C, or a KeyboardInterrupt that it raises) stops as the time does.
        gap: share of the objective that may stay unproven where the proof would need a large ILP; the bound is honest either way.
        sizes: which way a problem of which size is solved; the optimum is the same.

    Raises:
        Unsupported: no choice is free of forbidden entries.   NotFoundInTime: none was found in ``seconds``.
        KeyboardInterrupt: before any choice was found.
    """
    assert not problem.demands, "memory is the caller's: see planner.solve.limited.memory"
    time_limit = TimeLimit(seconds, clock)
    work = Elimination(problem)
    reduce_in_place(work)
    stats = {"nodes": float(len(problem.names)), "core_nodes": float(len(work.remaining))}
    if not work.remaining or _width(work, sizes.wide) <= sizes.narrow:
        work.run(widest=sizes.wide)
        if not work.remaining:
            return _solution(problem, work.expand(), time_limit, inf, "elimination", stats)
    core, nodes = work.core()
    known = _Known()
    try:
        best, bound, proof = _close(core, time_limit, work.constant, watch, known, gap, sizes)
    except KeyboardInterrupt:
        if known.choice is None or watch is None:
            raise  # nobody looks on, so the interrupt is the caller's
        best, bound, proof = known.choice, known.bound, "interrupted; the bound is message passing's"
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


def _width(work: Elimination, limit: int) -> int:
    """The largest table of the elimination still to come (or more than ``limit``, also where there would be too many), on the graph alone."""
    around = {v: {n for scope in work.factors[v] for n in scope if n != v} for v in work.remaining}
    size = {v: prod(work.extent[n] for n in neighbours) for v, neighbours in around.items()}
    queue = [(entries, v) for v, entries in size.items()]
    heapify(queue)
    widest, work_left = 1, _WORK_PER_ENTRY * limit
    while queue:
        entries, v = heappop(queue)
        if v not in around or size[v] != entries:
            continue
        widest = max(widest, entries)
        work_left -= entries * work.extent[v]
        if widest > limit or work_left < 0:
            return max(widest, limit + 1)
        neighbours = around.pop(v)
        for n in neighbours:
            around[n].discard(v)
            around[n] |= neighbours - {n}
            size[n] = prod(work.extent[m] for m in around[n])
            heappush(queue, (size[n], n))
    return widest


@dataclass(slots=True)
class _Known:
    """What is left of a search that is interrupted."""

    choice: Ints | None = None
    bound: float = -inf


def _close(
    core: Problem, time_limit: TimeLimit, constant: float, watch: Watch | None, known: _Known, gap: float, sizes: Sizes
) -> tuple[Ints, float, str]:
    """(choice, bound, proof) of a pairwise core; ``known`` is kept up to date."""
    dual = Dual(core)
    best: Ints | None = None
    upper = inf
    margins = list(_MARGINS)
    looked_at, stalls, steps = -1, 0, _PATIENCE
    while True:
        before = dual.lower_bound
        dual.sweep(5, upper * (1 - EQUAL) if upper < inf else inf)
        choice = improve_at_prices(dual, dual.decode())
        objective = core.objective(choice)
        if objective < upper * (1 - EQUAL):
            best, upper = choice, objective
        known.choice, known.bound = best, min(upper, dual.lower_bound)
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
        # The bound creeps.  What is left may be narrow by now; if not, a better choice lets more be dropped.
        alive = int(dual.alive.sum())
        last = not margins
        if alive == looked_at and not last:
            better = _near(core, dual, margins.pop(0), sizes)
            if better is not None and core.objective(better) < upper * (1 - EQUAL):
                best, upper = better, core.objective(better)
            continue
        looked_at = alive
        kept = dual.kept()
        try:
            work = _rest(core, kept)
        except Contradiction:
            if best is None:
                raise
            return best, upper, "message passing leaves nothing that is cheaper"
        widest = sizes.widest if last else sizes.wide
        if _width(work, widest) <= widest:
            if not work.run(widest=widest, time_limit=time_limit):
                break
            choice = _lifted(work.expand(), kept)
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
    if best is None:  # so that there is a choice to come back with
        best = _near(core, dual, _MARGINS[0], sizes)
        upper = inf if best is None else core.objective(best)
        best = best if upper < inf else None
    known.choice = best
    if not time_limit.is_up():
        kept = dual.kept()
        try:
            work = _rest(core, kept)
        except Contradiction:
            if best is None:
                raise
            return best, upper, "message passing leaves nothing that is cheaper"
        small, nodes = work.core()
        outcome = HighsIlp(small, upper - work.constant).solve(time_limit)
        if outcome.choice is not None:
            choice = _lifted(work.expand(zip(nodes, outcome.choice, strict=True)), kept)
            if core.objective(choice) < upper:
                best, upper = choice, core.objective(choice)
        if best is not None:
            return best, max(dual.lower_bound, min(upper, outcome.bound + work.constant)), "message passing, then branch and bound"
    if best is None:
        raise NotFoundInTime(f"{NO_CHOICE}; or give more seconds: none was found in {time_limit.seconds:g} s", dual.lower_bound + constant)
    return best, dual.lower_bound, "stopped; the bound is message passing's"


def _columns(work: Elimination) -> int:
    """Columns of an ILP of what is left."""
    rest, _ = work.core()
    return sum(costs.size for costs in rest.costs) + sum(edge.matrix.size for edge in rest.edges)


def _rest(core: Problem, kept: list[Ints]) -> Elimination:
    """The problem over the strategies kept, reduced.  Raises Contradiction: they allow no choice."""
    if not all(k.size for k in kept):
        raise Contradiction("a node has no strategy left")
    work = Elimination(core.restricted(kept))
    reduce_in_place(work)
    return work


def _near(core: Problem, dual: Dual, margin: float, sizes: Sizes) -> Ints | None:
    """The best choice among strategies that the dual finds within ``margin`` (of its value) of the best; None if that is still too wide."""
    scale = abs(dual.lower_bound)
    least = np.minimum.reduceat(dual.excess, dual.flat.first[:-1])
    above = dual.excess - np.repeat(least, np.diff(dual.flat.first))
    for near in (m for m in _MARGINS if m <= margin):
        kept = dual.per_node(dual.alive & (above <= near * scale))
        try:
            work = _rest(core, kept)
        except Contradiction:
            continue
        if _width(work, sizes.wide) <= sizes.narrow:
            work.run(widest=sizes.narrow)
            return _lifted(work.expand(), kept)
    return None


def _lifted(choice: Ints, kept: list[Ints]) -> Ints:
    """A choice among the strategies kept, as a choice among all."""
    return np.array([int(k[s]) for k, s in zip(kept, choice, strict=True)], dtype=np.int64)
