"""The least bytes for a period, certified, for any acts per step: integer programming with cuts from cycles of waits.

The period of a fixed order never grows with a quota (SEMANTICS 4.3).  So if quotas v are too small, all quotas <= v are, and every answer has

    q_r >= v_r + 1   for some r in R                                                        (1)   -> _lifted()

where R are the Buffers on the cycle that forbids the period (feasible_starts).  v is first made as large as it can be while it is still too
small, Buffers off the cycle being unlimited: the cut then says the most.  The master problem

    min  sum_r price_r q_r    s.t. (1) for all cuts so far,  bytes on each place <= budget,  lower_r <= q_r <= upper_r        (2)   -> _Master

in binaries x[r, k] = (q_r >= k) bounds the optimum from below; its answer, raised until start times exist, bounds it from above; both meet.

    master ---- quotas ----> feasible_starts: reached?  yes: optimal
       ^                        | no: a positive cycle
       +------ cut (1) ---------+

Source: Hooker & Ottosson 2003, "Logic-based Benders decomposition"; these cycles are the storage dependencies of Stuijk, Geilen, Basten
2006, "Exploring trade-offs in buffer requirements and throughput constraints for synchronous dataflow graphs".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from time import perf_counter

import numpy as np
import pulp

from planner.ir.errors import Unsupported
from simulator.quotas.bounds import least_quotas
from simulator.quotas.period import feasible_starts
from simulator.quotas.problem import Floats, Ints, QuotaProblem
from simulator.quotas.rounding import TOLERANCE, needed_quotas, reduced

__all__ = ["SizedQuotas", "least_bytes"]

MOST_ROUNDS = 2000
FIRST_GAP, LAST_GAP = 0.02, 1e-3
"""Gaps of the master problem: its early answers only serve to find cuts and need not be optimal; the last ones are (gap 0)."""


@dataclass(frozen=True, slots=True, eq=False)
class SizedQuotas:
    """quotas: per Buffer.   total_bytes: of all their blocks.   bound_bytes: no quotas with this period need less; equal: certified optimal.
    period_s: the one asked for.   starts_s: start times that prove it.   method: the algorithms that gave the quotas and their bound.
    """

    quotas: Ints
    total_bytes: int
    bound_bytes: float
    period_s: float
    starts_s: Floats
    method: str

    @property
    def gap(self) -> float:
        """(bytes - bound) / bytes; 0: certified optimal."""
        return max(0.0, (self.total_bytes - self.bound_bytes) / self.total_bytes) if self.total_bytes else 0.0


def least_bytes(
    problem: QuotaProblem, period_s: float, budgets: Mapping[str, int] | None = None, *, seconds: float = inf
) -> SizedQuotas | None:
    """Quotas of least bytes that reach a period; None: none do within the budgets.

    Args:
        period_s: L, in seconds.   budgets: bytes per place, problem.fixed_bytes included; places not named have no limit.
        seconds: give the best so far with its bound by then.

    Raises:
        Unsupported: the time ended before any quotas were found.
    """
    began = perf_counter()
    goal_s = period_s * (1 + TOLERANCE)
    lower = least_quotas(problem, goal_s, seconds=seconds)
    if lower is None or (lower > problem.upper).any():
        return None
    problem = problem.bounded(lower)
    top, _ = feasible_starts(problem.num_nodes, problem.arcs(problem.upper), goal_s)
    if top is None:
        return None
    best = reduced(problem, period_s, np.minimum(needed_quotas(problem, top, period_s), problem.upper), top)
    best_bytes = problem.total_bytes(best) if _fits(problem, best, budgets) else inf
    master = _Master(problem, budgets or {})
    bound, method = float(problem.total_bytes(lower)), "bounds of each quota alone"
    gap = FIRST_GAP
    for _ in range(MOST_ROUNDS):
        if best_bytes <= bound or perf_counter() - began > seconds:
            break
        quotas, told_bytes = master.solve(max(0.1, seconds - (perf_counter() - began)), gap)
        if quotas is None:
            return None if best_bytes == inf else _sized(problem, best, bound, period_s, method)
        bound, method = max(bound, told_bytes), f"{len(master.cuts)} cuts"
        raised, feasible = _raise(problem, master, quotas, goal_s, began + seconds)
        if not feasible:
            raised = reduced(problem, period_s, raised)
        if _fits(problem, raised, budgets) and problem.total_bytes(raised) < best_bytes:
            best, best_bytes = raised, problem.total_bytes(raised)
        if feasible or problem.total_bytes(raised) <= problem.total_bytes(quotas) * (1 + 2 * gap):
            gap = gap / 4 if gap > LAST_GAP else 0.0
    if best_bytes == inf:
        raise Unsupported(f"no quotas within the budgets were found in {seconds:g} s, and none were ruled out; give more seconds")
    return _sized(problem, best, min(bound, best_bytes), period_s, method)


def _sized(problem: QuotaProblem, quotas: Ints, bound: float, period_s: float, method: str) -> SizedQuotas:
    starts, cycle = feasible_starts(problem.num_nodes, problem.arcs(quotas), period_s * (1 + TOLERANCE))
    assert starts is not None, f"these quotas had start times before and have none now: cycle {cycle}"
    return SizedQuotas(quotas, problem.total_bytes(quotas), bound, period_s, starts, method)


def _fits(problem: QuotaProblem, quotas: Ints, budgets: Mapping[str, int] | None) -> bool:
    held = problem.place_bytes(quotas)
    return all(held.get(place, 0) <= budget for place, budget in (budgets or {}).items())


def _raise(problem: QuotaProblem, master: _Master, quotas: Ints, goal_s: float, ends_s: float) -> tuple[Ints, bool]:
    """Raise quotas cycle by cycle until start times exist, adding each cut to the master problem; (quotas, whether they were enough at first).

    Once the time is ``ends_s`` they are the upper bounds, which are enough.
    """
    raised, at_once = quotas.copy(), True
    while True:
        starts, cycle = feasible_starts(problem.num_nodes, problem.arcs(raised), goal_s)
        if starts is not None:
            return raised, at_once
        at_once = False
        if perf_counter() > ends_s:
            return problem.upper.copy(), False
        cut = _lifted(problem, raised, cycle, goal_s)
        master.add(cut)
        # Where one more block costs least for what is missing.
        number = min(cut, key=lambda r: (int(problem.price_bytes[r]) * (cut[r] + 1 - int(raised[r])), r))
        raised[number] = cut[number] + 1


def _lifted(problem: QuotaProblem, quotas: Ints, cycle: tuple[int, ...], goal_s: float) -> dict[int, int]:
    """(1) r -> v_r.  Buffers that cannot help even at their upper bounds are left out."""
    support = sorted({int(r) for r in problem.arcs(quotas).buffer[list(cycle)] if r >= 0})
    small = problem.only(support)
    v = quotas[support].copy()
    lowest_quota: dict[int, int] = {}
    for place in sorted(range(len(support)), key=lambda i: (int(small.price_bytes[i]), i)):
        low, high = int(v[place]), int(small.upper[place]) + 1  # too small at low; high: not even the upper bound is enough
        while high - low > 1:
            v[place] = (low + high) // 2
            if feasible_starts(small.num_nodes, small.arcs(v), goal_s)[0] is None:
                low = int(v[place])
            else:
                high = int(v[place])
        v[place] = low
        if low < int(small.upper[place]):
            lowest_quota[support[place]] = low
    if not lowest_quota:
        raise Unsupported(f"no quotas up to the upper bounds reach {goal_s} s, though the upper bounds together do; this is a defect")
    return lowest_quota


class _Master:
    """The master problem (2), with one cut more after each round; x[r, k] exists only where a cut uses it."""

    def __init__(self, problem: QuotaProblem, budgets: Mapping[str, int]) -> None:
        self.problem, self.budgets = problem, budgets
        self.cuts: list[dict[int, int]] = []

    def add(self, cut: dict[int, int]) -> None:
        self.cuts.append(cut)

    def solve(self, seconds: float, gap: float) -> tuple[Ints | None, float]:
        """(quotas, lower bound in bytes); None: no quotas satisfy the cuts within the budgets."""
        lower, price = self.problem.lower, self.problem.price_bytes
        levels: dict[int, set[int]] = {}
        for cut in self.cuts:
            for r, v in cut.items():
                levels.setdefault(r, set()).add(v + 1)
        model = pulp.LpProblem("quotas", pulp.LpMinimize)
        x: dict[tuple[int, int], pulp.LpVariable] = {}
        steps: dict[int, list[tuple[int, pulp.LpVariable]]] = {}  # r -> (blocks that this level adds, its variable)
        scale = 1e3 / max(1.0, float(price.max(initial=1)))
        cost = []
        for r, wanted in sorted(levels.items()):
            below = int(lower[r])
            for level in sorted(wanted):
                x[r, level] = model.add_variable(f"x{r}_{level}", cat=pulp.LpBinary)
                steps.setdefault(r, []).append((level - below, x[r, level]))
                if len(steps[r]) > 1:
                    model += x[r, level] <= steps[r][-2][1]
                cost.append((x[r, level], float(price[r]) * scale * (level - below)))
                below = level
        for cut in self.cuts:
            model += pulp.lpSum(x[r, v + 1] for r, v in cut.items()) >= 1
        base = self.problem.place_bytes(lower)
        for place, budget in self.budgets.items():
            buffers = self.problem.buffers
            row = [(v, float(n * buffers[r].block_bytes)) for r, parts in steps.items() if place in buffers[r].places for n, v in parts]
            spare = budget - base.get(place, 0)
            if spare < 0:
                return None, inf
            if row:
                model += pulp.LpAffineExpression([(v, size / max(spare, 1)) for v, size in row]) <= (1.0 if spare else 0.0)
        quotas = lower.copy()
        if not cost:
            return quotas, float(self.problem.total_bytes(quotas))
        model += pulp.LpAffineExpression(cost)
        status = pulp.LpStatus[model.solve(pulp.HiGHS(msg=False, threads=1, gapRel=gap, gapAbs=0.0, timeLimit=seconds))]
        if status == "Infeasible":
            return None, inf
        for r, parts in steps.items():
            quotas[r] += sum(n for n, variable in parts if (variable.value() or 0.0) > 0.5)
        if status == "Optimal" and gap == 0.0:
            return quotas, float(self.problem.total_bytes(quotas))
        bound = float(self.problem.total_bytes(lower)) + float(model.solverModel.getInfo().mip_dual_bound) / scale
        return quotas, bound - 1e-6 * abs(bound)
