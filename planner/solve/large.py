"""Big problems with a memory limit: bounds and choices in turns until they meet or the time is up.

    1  reduce                  exact; what is left has the same optimum                                                   contract
    2  ascend                  prices on memory and messages along edges raise a bound and propose choices                prices, relax
    3  fix                     a strategy whose bound exceeds the best known objective leaves                             relax.fixing
    4  solve a part            an ILP over the strategies whose bound exceeds the best bound by less than a threshold     core
       threshold = whole gap:  the part is all that can still be better, and its solution is a proof
       otherwise:              a better choice, which shrinks the gap and so the next part

Every choice is checked against the first problem, at every time, before it counts.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from planner.ir.errors import Unsupported
from planner.solve.contract import Reduced, reduce_problem
from planner.solve.core import TOLERANCE, Core
from planner.solve.improve import descend
from planner.solve.prices import Ascent
from planner.solve.problem import Floats, Ints, Problem, Progress, Solution, Watch
from planner.solve.region import Regions
from planner.solve.relax import Relaxation
from planner.solve.work import Contradiction

__all__ = ["solve_large"]

_SMALL = 150_000  # edge entries of a problem that the ILP may take whole
_PART = 40_000  # edge entries of the first part
_LARGEST = 130_000  # edge entries of the last part that is not all
_REGION = 15_000  # edge entries of the first regions
_TURN = 0.25  # share of the time that the ascent, and then one part, may take
_STALLED = 9  # steps without a better bound that end the ascent


@dataclass(slots=True, eq=False)
class _State:
    """What is known so far about the first problem."""

    problem: Problem
    began: float
    seconds: float
    watch: Watch | None
    objective: float = np.inf
    choice: Ints | None = None
    bound: float = -np.inf
    step: float = 0.0
    prepare: float = 0.5  # seconds that it takes to set up one more part
    method: str = ""
    proof: str = ""
    stats: dict[str, float] = field(default_factory=dict)

    def left(self) -> float:
        return self.seconds - (time.perf_counter() - self.began)

    def offer(self, choice: Ints, method: str) -> bool:
        """Take a choice of the first problem if it is allowed and better; checks everything anew."""
        objective = self.problem.objective(choice)
        if not objective < self.objective or not self.problem.feasible(choice):
            return False
        self.objective, self.choice, self.method = objective, choice, method
        self.tell()
        return True

    def raise_bound(self, bound: float, proof: str) -> None:
        bound = self.rounded(bound)
        if bound > self.bound:
            self.bound, self.proof = bound, proof
            self.tell()

    def rounded(self, bound: float) -> float:
        """Whole-numbered costs have a whole-numbered optimum; and no bound passes a known objective."""
        if self.step and np.isfinite(bound):
            bound = float(np.ceil(bound - 1e-6))
        return min(bound, self.objective)

    def closed(self) -> bool:
        return self.choice is not None and self.objective - self.bound <= TOLERANCE * abs(self.objective)

    def tell(self) -> None:
        if self.watch is not None:
            self.watch(Progress(time.perf_counter() - self.began, self.objective, self.bound))


def solve_large(problem: Problem, seconds: float = 300.0, on_progress: Watch | None = None) -> Solution:
    """The best choice within the limit that was found in ``seconds``, and a lower bound.  Stops early at a proof, or at Ctrl-C with the best so far.

    Raises:
        Contradiction: forbidden entries or the limit leave no choice.
        Unsupported: no choice within the limit was found in time.
    """
    state = _State(problem, time.perf_counter(), seconds, on_progress)
    state.step = 1.0 if _whole(problem) else 0.0
    try:
        _search(state)
    except KeyboardInterrupt:
        state.stats["interrupted"] = 1.0
    if state.choice is None:
        raise Unsupported(
            f"no choice within the limit {problem.limit:g} was found in {seconds:g} s (no choice costs less than {state.bound:g}); "
            "allow more time or raise the limit"
        )
    spent = time.perf_counter() - state.began
    return Solution(
        choice=state.choice,
        objective=state.objective,
        lower_bound=min(state.bound, state.objective),
        seconds=spent,
        method=state.method,
        proof=state.proof,
        stats=state.stats,
    )


def _whole(problem: Problem) -> bool:
    tables = [*problem.costs, *(e.matrix for e in problem.edges)]
    return all(bool((t[np.isfinite(t)] % 1.0 == 0.0).all()) for t in tables)


def _search(state: _State) -> None:
    reduced = reduce_problem(state.problem)
    state.prepare = max(state.prepare, 1.2 * (state.seconds - state.left()))
    small = reduced.problem
    state.stats |= {
        "nodes": float(len(small.costs) - 1),
        "edges": float(len(small.edges)),
        "strategies": float(sum(c.size for c in small.costs) - 1),
        "edge_entries": float(sum(e.matrix.size for e in small.edges)),
    }
    if len(small.costs) == 1:
        state.offer(reduced.expand(np.zeros(1, dtype=np.int64)), "reduction")
        state.raise_bound(state.objective, "the reductions, which are exact, left a single choice")
        return
    relaxation = Relaxation(small)
    ascent = Ascent(relaxation)
    _ascend(state, reduced, ascent, until=_TURN * state.seconds)
    if state.closed():
        return
    regions = Regions(small)
    part, region = _PART, float(_REGION)
    while state.left() > state.prepare and not state.closed():
        excess = relaxation.fixing()
        before = state.objective
        if part <= _LARGEST or state.choice is None:
            if _solve_part(state, reduced, ascent, excess, part):
                break
            if not state.objective < before:
                part *= 3
            continue
        region = _solve_regions(state, reduced, ascent, excess, regions, region)
        if state.objective < before - 0.05 * (before - ascent.bound):
            part = _PART
        elif ascent.stalled < _STALLED:
            _ascend(state, reduced, ascent, until=state.seconds - state.left() + 0.1 * state.seconds)


def _ascend(state: _State, reduced: Reduced, ascent: Ascent, until: float) -> None:
    """Step 2, until the bound stalls."""
    relaxation = ascent.relaxation
    text = "memory prices and messages along the edges (a Lagrange and TRW-S bound)"
    while state.left() > state.seconds - until and ascent.stalled < _STALLED and not state.closed():
        for choice in ascent.step():
            if relaxation.held(choice).max(initial=0.0) <= reduced.problem.limit:
                state.offer(reduced.expand(descend(relaxation, choice)), "messages with memory prices, then single moves")
        state.raise_bound(ascent.bound - 1e-11 * abs(ascent.bound), text)
    ascent.finish()
    state.raise_bound(ascent.bound - 1e-11 * abs(ascent.bound), text)


def _solve_part(state: _State, reduced: Reduced, ascent: Ascent, excess: Floats, entries: int) -> bool:
    """Steps 3 and 4 with about ``entries`` edge entries; says whether the part was all that could be better, and it was solved."""
    share, kept = _within(state, reduced, ascent, excess, entries)
    first, small = ascent.relaxation.flat.first, reduced.problem
    costs = tuple(np.where(kept[first[v] : first[v + 1]], c, np.inf) for v, c in enumerate(small.costs))
    began = state.left()
    try:
        # A part without dominance still holds the best choice, to begin from.
        part = reduce_problem(Problem(small.names, costs, small.edges, small.demands, small.limit), dominance=share == 1.0)
    except Contradiction:
        if share < 1.0:
            return False
        if state.choice is None:
            raise
        state.raise_bound(state.objective, "every other choice has a strategy whose own bound exceeds the best objective")
        return True
    core = Core(part.problem, state.objective, state.step)
    state.prepare = max(0.5, 1.2 * (began - state.left()))
    start = None if state.choice is None or share == 1.0 else part.follow(_followed(reduced, state.choice))
    outcome = core.solve(state.left() if share == 1.0 else min(state.left(), max(_TURN * state.seconds, 5.0)), start)
    if outcome.choice is not None:
        state.offer(reduced.expand(part.expand(outcome.choice)), "ILP over the strategies that the bounds leave")
    state.stats["parts"] = state.stats.get("parts", 0.0) + 1.0
    state.stats["last_share"] = share
    if share < 1.0:
        return False
    if state.choice is None and outcome.bound == np.inf:
        raise Contradiction(f"no choice stays within the limit {state.problem.limit:g} at every time; raise the limit")
    state.raise_bound(
        outcome.bound, "branch and bound (HiGHS) over all strategies that a better choice could take, to 1e-9 of the objective"
    )
    return state.closed()


def _solve_regions(state: _State, reduced: Reduced, ascent: Ascent, excess: Floats, regions: Regions, entries: float) -> float:
    """Connected pieces one after another, the rest as in the best choice; returns the size that suits the next ones."""
    relaxation = ascent.relaxation
    first = relaxation.flat.first
    _, kept = _within(state, reduced, ascent, excess, 1 << 60)
    count = np.add.reduceat(kept.astype(np.int64), first[:-1])
    until = state.left() - 0.5 * _TURN * state.seconds
    while state.left() > max(until, 0.5):
        assert state.choice is not None
        choice = _followed(reduced, state.choice)
        region = regions.draw(excess[first[:-1] + choice], count, int(entries))
        if not region.size:
            return entries
        local = regions.cut_out(region, choice, relaxation.held(choice), kept, first)
        part = reduce_problem(local, dominance=False)
        began = state.left()
        now = np.append(choice[region], 0)
        core = Core(part.problem, local.objective(now), state.step)
        outcome = core.solve(min(began, 0.05 * state.seconds), part.follow(now))
        if outcome.choice is not None:
            choice[region] = part.expand(outcome.choice)[:-1]
            state.offer(reduced.expand(choice), "ILPs over regions")
        state.stats["regions"] = state.stats.get("regions", 0.0) + 1.0
        spent = (began - state.left()) / state.seconds
        entries = min(max(entries * (1.1 if spent < 0.01 else 0.8 if spent > 0.03 else 1.0), 1000.0), 1e6)
    return entries


def _within(state: _State, reduced: Reduced, ascent: Ascent, excess: Floats, entries: int) -> tuple[float, NDArray[np.bool_]]:
    """The largest share of the gap, and the strategies within it, that leave few enough edge entries; the whole gap if that is small anyway."""
    relaxation = ascent.relaxation
    first = relaxation.flat.first
    gap = state.objective - ascent.bound
    if not np.isfinite(gap):
        gap = float(excess.max()) + 1.0  # nothing within the limit is known: then all strategies, or those nearest to the bound
    held = None if state.choice is None else _followed(reduced, state.choice)
    slack = TOLERANCE * abs(state.objective) if np.isfinite(state.objective) else 0.0
    share = 1.0
    while True:
        kept = excess <= share * gap + slack
        if held is not None:
            kept[first[:-1] + held] = True
        size = relaxation.entries(kept)
        if size <= (max(entries, _SMALL) if share == 1.0 else entries) or share < 1e-9:
            return share, kept
        share *= 0.7


def _followed(reduced: Reduced, choice: Ints) -> Ints:
    """In the reduced problem; every choice that was taken came from there."""
    found = reduced.follow(choice)
    assert found is not None
    return found
