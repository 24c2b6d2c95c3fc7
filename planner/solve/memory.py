"""The optimum within memory: Lagrangian relaxation over the exact solver, with cutting planes for the multipliers.

    L(lambda) = min over x of  cost(x) + sum over times t of lambda_t (held_t(x) - limit)         a lower bound for every lambda >= 0
    max theta  s.t.  theta <= cost(x_k) + sum_t lambda_t (held_t(x_k) - limit)  for each x_k seen          (Kelley's cutting planes)

Only times that were once too full get a multiplier.  The best choice that fits comes from the choices seen, and from crossing two of them: a
model is long, so taking the cheap choice up to some node and the small one from there on fills the memory to the last layer.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from time import perf_counter

import numpy as np
import pulp

from planner.ir.errors import OutOfMemory
from planner.solve.dual import Dual
from planner.solve.eliminate import Elimination
from planner.solve.exact import beyond, lifted, restricted, solve_exactly
from planner.solve.ilp import solve_ilp
from planner.solve.problem import Demand, Edge, Floats, Ints, Problem, Progress, Solution, Watch

__all__ = ["least_demand", "priced", "solve_within"]

_ROUNDS = 40
_CLOSE = 1e-9
_ILP_WIDEST = 150_000
_ILP_S = 60.0
_SMALL = 2000


def solve_within(problem: Problem, *, seconds: float = inf, watch: Watch | None = None) -> Solution:
    """Solve a problem with demands.

    Raises:
        OutOfMemory: nothing fits; the message says how much is needed at least.   Unsupported: as solve_exactly.
    """
    began = perf_counter()
    free = replace(problem, demands=(), limit=inf)
    first = solve_exactly(free, seconds=seconds, watch=watch)
    if problem.feasible(first.choice):
        return first
    smallest = least_demand(problem)
    if not problem.feasible(smallest):
        singles = {t: solve_exactly(priced(_without_costs(problem), {t: 1.0})).choice for t in _times(problem)}
        fitting = [c for c in singles.values() if problem.feasible(c)]
        if not fitting:
            least = max(_held(problem, c)[t] for t, c in singles.items())
            raise OutOfMemory(
                f"no layout fits: at least {least / 1e9:.3g} GB are needed, {problem.limit / 1e9:.3g} GB of a device are free for it; "
                f"take more or larger devices, more stages, or smaller micro-batches"
            )
        smallest = fitting[0]
    best, upper = _cheapest(problem, [_crossed(problem, first.choice, smallest)])
    cuts: list[tuple[float, dict[int, float]]] = [_cut(problem, first.choice)]
    bound, price = first.lower_bound, dict[int, float]()
    times = sorted(_too_full(problem, first.choice))
    for _ in range(_ROUNDS):
        tried, ceiling = _multipliers(cuts, times, upper)
        if ceiling - bound <= _CLOSE * abs(upper) or perf_counter() - began > seconds:
            break
        try:
            solution = solve_exactly(priced(problem, tried), seconds=seconds - (perf_counter() - began))
        except KeyboardInterrupt:
            if watch is None:
                raise  # nobody looks on, so the interrupt is the caller's
            seconds = 0.0  # the best so far it is
            break
        raised = solution.lower_bound - sum(tried.values()) * problem.limit
        if raised > bound:
            bound, price = raised, tried
        cuts.append(_cut(problem, solution.choice))
        times = sorted({*times, *_too_full(problem, solution.choice)})
        candidates = [solution.choice] if problem.feasible(solution.choice) else [_crossed(problem, solution.choice, best)]
        candidates.append(_crossed(problem, first.choice, best))
        better, value = _cheapest(problem, candidates)
        if value < upper:
            best, upper = better, value
        if watch is not None:
            watch(Progress(perf_counter() - began, upper, min(bound, upper)))
        if bound >= upper * (1 - _CLOSE):
            break
    best = _improved(problem, best)
    objective = problem.objective(best)
    left = seconds - (perf_counter() - began)
    proof = "Lagrangian bound over exact solutions"
    if bound < objective * (1 - _CLOSE) and left > 0:
        closed = _close(problem, free, price, objective, min(left, _ILP_S))
        if closed is not None:
            found, bound = closed
            proof = "branch and bound over what the Lagrangian bound leaves"
            if found is not None and problem.feasible(found) and problem.objective(found) < objective:
                best, objective = found, problem.objective(found)
    return Solution(
        choice=best,
        objective=objective,
        lower_bound=objective if bound >= objective * (1 - _CLOSE) else min(bound, objective),
        seconds=perf_counter() - began,
        method="exact",
        proof=proof,
        stats={"memory_rows": float(len(times)), "solved": float(len(cuts))},
    )


def _close(problem: Problem, free: Problem, price: dict[int, float], upper: float, seconds: float) -> tuple[Ints | None, float] | None:
    """The ILP over the strategies that the priced problem's bound does not exclude; None if that is too large to try.

    Returns:
        (a better choice or None, lower bound).
    """
    relaxed = priced(problem, price)
    offset = sum(price.values()) * problem.limit
    dual = Dual(relaxed, beyond(relaxed))
    for _ in range(12):
        dual.sweep(5, upper + offset)
    kept = dual.kept()
    if any(len(k) == 0 for k in kept):
        return None, upper
    rest = restricted(free, kept)
    bound_to = frozenset(d.node for d in problem.demands)
    work = Elimination(rest)
    work.run(neighbours=2, keep=bound_to)
    core, nodes = work.core()
    if sum(edge.matrix.size for edge in core.edges) > _ILP_WIDEST:
        return None
    index = {v: i for i, v in enumerate(nodes)}
    demands = []
    for d in problem.demands:
        amount = d.amount[kept[d.node]]
        demands.append(Demand(index[d.node], d.start, d.stop, amount))
    small = Problem(core.names, core.costs, core.edges, tuple(demands), problem.limit)
    choice, _, bound = solve_ilp(small, seconds=seconds)
    whole = None if choice is None else lifted(work.expand(zip(nodes, choice, strict=True)), kept)
    return whole, min(upper, bound + work.constant)


def least_demand(problem: Problem) -> Ints:
    """A choice that holds as little as possible, summed over all times; the cheapest such."""
    scale = sum(float(c[np.isfinite(c)].max()) for c in problem.costs) + 1e-9
    largest = sum(float(d.amount.max()) for d in problem.demands) or 1.0
    weight = 1e6 * scale / largest
    return solve_exactly(priced(problem, dict.fromkeys(_times(problem), weight))).choice


def _without_costs(problem: Problem) -> Problem:
    """Only what is forbidden still counts."""
    costs = tuple(np.where(np.isfinite(c), 0.0, np.inf) for c in problem.costs)
    edges = tuple(Edge(e.u, e.v, np.where(np.isfinite(e.matrix), 0.0, np.inf)) for e in problem.edges)
    return replace(problem, costs=costs, edges=edges)


def _times(problem: Problem) -> list[int]:
    return sorted({d.start for d in problem.demands})


def _held(problem: Problem, choice: Ints) -> dict[int, float]:
    """Demand at every time at which some demand starts (the peak is at one of them)."""
    held = dict.fromkeys(_times(problem), 0.0)
    for d in problem.demands:
        amount = float(d.amount[choice[d.node]])
        if amount:
            for t in held:
                if d.start <= t < d.stop:
                    held[t] += amount
    return held


def _too_full(problem: Problem, choice: Ints) -> set[int]:
    return {t for t, amount in _held(problem, choice).items() if amount > problem.limit}


def _cut(problem: Problem, choice: Ints) -> tuple[float, dict[int, float]]:
    """(cost, excess per time) of a choice."""
    return problem.objective(choice), {t: amount - problem.limit for t, amount in _held(problem, choice).items()}


def _multipliers(cuts: list[tuple[float, dict[int, float]]], times: list[int], upper: float) -> tuple[dict[int, float], float]:
    """Multipliers that maximise the model of the bound, and its value there."""
    model = pulp.LpProblem("multipliers", pulp.LpMaximize)
    theta = model.add_variable("theta", upBound=1.0)  # in units of the best choice's cost, which no bound exceeds
    scale = {t: max(abs(excess[t]) for _, excess in cuts) or 1.0 for t in times}
    price = {t: model.add_variable(f"price_{t}", lowBound=0) for t in times}
    model += theta
    for cost, excess in cuts:
        model += theta <= cost / upper + pulp.lpSum(price[t] * (excess[t] / scale[t]) for t in times)
    model.solve(pulp.HiGHS(msg=False, threads=1))
    return {t: max(0.0, (price[t].value() or 0.0)) * upper / scale[t] for t in times}, float(theta.value()) * upper


def priced(problem: Problem, price: dict[int, float]) -> Problem:
    """The problem without its limit, at a price per unit held at each time."""
    costs: list[Floats] = list(problem.costs)
    for d in problem.demands:
        weight = sum(value for t, value in price.items() if d.start <= t < d.stop)
        if weight:
            costs[d.node] = costs[d.node] + weight * d.amount
    return replace(problem, costs=tuple(costs), demands=(), limit=inf)


def _crossed(problem: Problem, cheap: Ints, small: Ints) -> Ints:
    """The cheap choice up to some node and the small one from there on, or the other way about, as cheap as fits."""
    best, least = small, problem.objective(small)
    for head, tail in ((cheap, small), (small, cheap)):
        low, high = 0, len(head)
        borders = np.unique(np.linspace(low, high, 129).astype(int))
        for border in borders:
            mixed = np.concatenate((head[:border], tail[border:]))
            value = problem.objective(mixed)
            if value < least and problem.feasible(mixed):
                best, least = mixed, value
    return best


def _cheapest(problem: Problem, choices: list[Ints]) -> tuple[Ints, float]:
    best = min((c for c in choices if problem.feasible(c)), key=problem.objective)
    return best, problem.objective(best)


def _improved(problem: Problem, choice: Ints) -> Ints:
    """Change one node at a time while that is cheaper and still fits (not for large problems: it looks at every demand for every change)."""
    if len(choice) > _SMALL:
        return choice
    choice = choice.copy()
    around = problem.around()
    changed = True
    while changed:
        changed = False
        for v, costs in enumerate(problem.costs):
            total = costs.copy()
            for n, table in around[v]:
                total += table[:, choice[n]]
            old = choice[v]
            for s in np.argsort(total, kind="stable"):
                if total[s] >= total[old]:
                    break
                choice[v] = s
                if problem.feasible(choice):
                    changed = True
                    break
                choice[v] = old
    return choice
