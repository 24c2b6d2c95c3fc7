"""Whole quotas for very many Buffers: the start times of the relaxation, settled act by act.

Rounding up the relaxation's quotas costs up to a block per Buffer.  Moving one act's start at a time, within what the fixed arcs leave it, changes

    cost_v(s_v) = sum over Buffers at v of price_r max over rings of ceil((s_C + release - s_P) / L)           (1)

which is piecewise constant: only where some ceiling steps, and at the two ends, can it be least.  Sweeps over all acts go on until none gains;
equal costs are broken towards early and towards late in turn, which carries chains of acts along.  The start times stay a proof all the way.

Sweeps that only gain end in the nearest valley.  Warm ones come before them: each act draws its start among the same points by

    probability ~ exp(-cost_v(s_v) / heat)                                                                     (2)

while the heat falls.  They draw from a generator with a seed, so the answer is always the same.

    relaxations, by rounds of cuts -> start times -> [warm sweeps (2) ->] sweeps (1) -> the fewest bytes -> judged       -> smallest_settled()

Source of (2): heat-bath form of simulated annealing (Kirkpatrick, Gelatt & Vecchi 1983; Geman & Geman 1984).
"""

from __future__ import annotations

import numba
import numpy as np

from experiments.quotas.linear import relaxations
from planner.ir.errors import Unsupported
from simulator.quotas.bounds import least_quotas
from simulator.quotas.least_bytes import SizedQuotas
from simulator.quotas.period import feasible_starts
from simulator.quotas.problem import Floats, Ints, QuotaProblem
from simulator.quotas.rounding import TOLERANCE, needed_quotas

__all__ = ["smallest_settled"]

SWEEPS = 40
WARM_SWEEPS, HOT, COOL = 300, 0.12, 0.006
"""Heat at the beginning and the end, in mean prices of a block [fitted: layered(200, 380) and layered(5000, 10000), 2026-11-21]."""
ENOUGH = 1e-3
"""So close to the bound an answer needs no cuts and no warm sweeps."""
CUT_BUFFERS = 10_000
"""Rounds of cuts times Buffers: one round at 10,000, where each costs as much as the relaxation itself."""


@numba.njit(cache=True)
def _sweep(starts, into, tails, in_weight, out, heads, out_weight, at, at_ring, rings, first_ring, buffer, price, lower, late, heat, luck):  # type: ignore[no-untyped-def]
    """One pass of (1) over all acts, in units of the period; returns the gain.  CSR lists: into, out (fixed arcs), at (rings at an act).

    rings: producer, consumer, release.   late: equal costs go to the later start.   heat: of (2), 0: only gains; luck: a random number per act.
    """
    producer, consumer, release = rings
    gain = 0.0
    points, costs = np.empty(4096), np.empty(4096)
    for v in range(len(starts)):
        if at[v] == at[v + 1]:
            continue
        low, high = -np.inf, np.inf
        for a in range(into[v], into[v + 1]):
            low = max(low, starts[tails[a]] + in_weight[a])
        for a in range(out[v], out[v + 1]):
            high = min(high, starts[heads[a]] - out_weight[a])
        here = starts[v]
        if low == -np.inf:
            low = here - 2.0
        if high == np.inf:
            high = here + 2.0
        low, high = min(low, here), max(high, here)
        count = 1
        points[0] = here
        for end in (low, high):
            points[count] = end
            count += 1
        for k in range(at[v], at[v + 1]):
            e = at_ring[k]
            if producer[e] == consumer[e]:
                continue
            # Where this ceiling steps: the start at which the block is back just in time.
            if producer[e] == v:
                base = starts[consumer[e]] + release[e]
                point = base - np.floor(base - low)
                while point <= high and count < 4000:
                    if point >= low:
                        points[count] = point
                        count += 1
                    point += 1.0
            else:
                base = starts[producer[e]] - release[e]
                point = base + np.floor(high - base)
                while point >= low and count < 4000:
                    if point <= high:
                        points[count] = point
                        count += 1
                    point -= 1.0
        best, best_cost, now = here, np.inf, 0.0
        for p in range(count):
            starts[v] = points[p]
            cost = 0.0
            for k in range(at[v], at[v + 1]):
                r = buffer[at_ring[k]]
                # Count a Buffer once, at its first ring that touches v.
                again = False
                for j in range(at[v], k):
                    if buffer[at_ring[j]] == r:
                        again = True
                        break
                if again:
                    continue
                needed = lower[r]
                for e in range(first_ring[r], first_ring[r + 1]):
                    needed = max(needed, np.ceil(starts[consumer[e]] + release[e] - starts[producer[e]] - 1e-9))
                cost += price[r] * needed
            if p == 0:
                now = cost
            costs[p] = cost
            closer = points[p] > best if late else points[p] < best
            if cost < best_cost - 1e-9 or (cost < best_cost + 1e-9 and closer):
                best, best_cost = points[p], min(cost, best_cost)
        if heat > 0.0:
            total = 0.0
            for p in range(count):
                costs[p] = np.exp((best_cost - costs[p]) / heat)
                total += costs[p]
            left = luck[v] * total
            for p in range(count):
                best = points[p]
                left -= costs[p]
                if left <= 0.0:
                    break
        starts[v] = best
        gain += now - best_cost
    return gain


def smallest_settled(problem: QuotaProblem, period_s: float) -> SizedQuotas | None:
    """Quotas that reach a period with few bytes, and the relaxation's bound; for problems too large for a certified optimum.

    Args:
        problem: Buffers of one block per period, no budgets.   period_s: L > 0, in seconds.

    Returns:
        Re-judged quotas with bound_bytes of the relaxation (each quota's own least one, and sums around cycles, rounded up first);
        None: nothing reaches the period.

    Raises:
        Unsupported: see experiments.quotas.linear.relax, or an answer that the judge does not confirm.
    """
    lower = least_quotas(problem, period_s * (1 + TOLERANCE))
    if lower is None or (lower > problem.upper).any():
        return None
    bounded = problem.bounded(lower)
    best: tuple[Ints, Floats] | None = None
    exact: Floats | None = None
    for relaxed in relaxations(bounded, period_s, max(1, CUT_BUFFERS // max(1, len(problem.buffers)))):
        # The solver's start times are only nearly feasible; the judge makes them so, from where they are.
        exact, _ = feasible_starts(problem.num_nodes, problem.fixed_arcs(), period_s * (1 + TOLERANCE), relaxed.starts * period_s)
        assert exact is not None
        best = _fewer(bounded, best, _settled(bounded, exact, period_s, 0), period_s)
        bound_bytes = relaxed.bound_bytes * (1 - 1e-7)
        if problem.total_bytes(best[0]) * (1 - ENOUGH) <= bound_bytes:
            break
    else:
        if best is None or exact is None:
            return None
        best = _fewer(bounded, best, _settled(bounded, exact, period_s, WARM_SWEEPS), period_s)
    quotas, starts_s = best
    proof, cycle = feasible_starts(problem.num_nodes, problem.arcs(quotas), period_s * (1 + 2 * TOLERANCE), starts_s)
    if proof is None:
        raise Unsupported(
            f"the settled quotas miss the period {period_s:.9g} s on a cycle of {len(cycle)} arcs; ask for a slightly longer one"
        )
    if (quotas > problem.upper).any():
        raise Unsupported("the settled quotas exceed an upper bound; take simulator.quotas.least_bytes, which keeps them")
    return SizedQuotas(quotas, problem.total_bytes(quotas), bound_bytes, period_s, proof, "relaxation, settled act by act")


def _fewer(problem: QuotaProblem, best: tuple[Ints, Floats] | None, starts_s: Floats, period_s: float) -> tuple[Ints, Floats]:
    """The quotas that these start times need, or the best so far: within the upper bounds, if one is, and then of fewer bytes."""
    fewer = needed_quotas(problem, starts_s, period_s), starts_s

    def badness(quotas: Ints) -> tuple[bool, int]:
        return bool((quotas > problem.upper).any()), problem.total_bytes(quotas)

    return fewer if best is None or badness(fewer[0]) < badness(best[0]) else best


def _settled(problem: QuotaProblem, starts_s: Floats, period_s: float, warm: int) -> Floats:
    """Start times with fewer bytes, from feasible ones, both in seconds, after so many warm sweeps."""
    buffer, consumer, _, _, begins, flat, release = problem._rings
    nodes, ring_numbers = problem.num_nodes, np.arange(len(consumer))
    producer = flat[begins]
    fixed = problem.head != problem.tail
    tail, head = problem.tail[fixed], problem.head[fixed]
    weight = problem.weight_s[fixed] / period_s - problem.tokens[fixed]

    def listed(key: Ints) -> tuple[Ints, Ints]:
        return np.concatenate([[0], np.cumsum(np.bincount(key, minlength=nodes))]), np.argsort(key, kind="stable")

    into, by_head = listed(head)
    out, by_tail = listed(tail)
    ends = np.concatenate([producer, consumer[producer != consumer]])
    at, by_end = listed(ends)
    at_ring = np.concatenate([ring_numbers, ring_numbers[producer != consumer]])[by_end]
    first_ring = np.concatenate([[0], np.cumsum(np.bincount(buffer, minlength=len(problem.buffers)))])
    starts = starts_s / period_s
    price = problem.price_bytes.astype(np.float64)
    lower = problem.lower.astype(np.float64)
    rng = np.random.default_rng(0)
    heats = price.mean() * np.geomspace(HOT, COOL, warm) if warm else np.zeros(0)
    for number, heat in enumerate((*heats.tolist(), *[0.0] * SWEEPS)):
        gain = _sweep(
            starts, into, tail[by_head], weight[by_head], out, head[by_tail], weight[by_tail], at, at_ring,
            (producer, consumer, release / period_s), first_ring, buffer, price, lower, number % 2 == 1, heat, rng.random(nodes),
        )  # fmt: skip
        if number >= warm + 4 and gain <= 1e-6 * price.max(initial=1.0):
            break
    return starts * period_s
