"""Quotas and stream orders together, in the steady state of one micro-batch per period: a mixed-integer program in PuLP, solved by HiGHS.

Variables  s_v    start of node v, in periods          q_r  quota, whole          k_ab  order of a pair on one stream, whole

    min  sum_r price_r q_r                                                                  (1)
    s.t. s_v - s_u >= w / L - tokens                             fixed arcs                 (2)
         s_p + q_r - s_c >= release / L                          rings of Buffer r          (3)
         s_b - s_a + k_ab >= d_a / L,   s_a - s_b + 1 - k_ab >= d_b / L      pairs          (4)
         sum_{r on place} bytes_r q_r <= budget                  places                     (5)

(4) is exact, with no large constant: the starts of a and b are d_a apart one way round the period and d_b the other, whatever k is.

On p equal stages with free links this gives p - i, that is 1F1B: nobody told it.  With links of c seconds, data and quotas alone (no pairs) need
1 + ceil((p-1-i)(1 + 2c/(F+B))), the link-aware rule; an order that repeats every micro-batch needs 1 + (p-1-i) ceil(1 + 2c/(F+B)), since a stage
without idle time runs F and B back to back and each border between stages then adds whole periods.

Sources: Moreira, Basten, Geilen, Stuijk 2010, "Buffer sizing for rate-optimal single-rate data-flow scheduling revisited" (1)-(3); the wrapped
disjunction (4) is that of the periodic event scheduling problem, Serafini & Ukovich 1989.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

import numpy as np
import pulp

from planner.ir.errors import Unsupported
from simulator.quotas.bounds import least_quotas
from simulator.quotas.exact import Sized
from simulator.quotas.period import feasible_starts
from simulator.quotas.problem import Ints, QuotaProblem
from simulator.quotas.rounding import CLOSE

__all__ = ["smallest_single_rate"]

MOST_TURNS = 10**4
"""A pair's order is that many micro-batches apart at most."""


def smallest_single_rate(
    problem: QuotaProblem, period_s: float, budgets: Mapping[str, int] | None = None, *, seconds: float = inf
) -> tuple[Sized, Ints] | None:
    """Solve (1)-(5); None: no quotas and orders reach the period within the budgets.

    Args:
        problem: Buffers of one block per period.   period_s: L, seconds per micro-batch.   seconds: end by then with the best and its bound.

    Returns:
        Quotas, re-judged with the orders found, and k per pair: problem.decided(k) is the problem with these orders.

    Raises:
        Unsupported: several blocks per period; the time ended without an answer; or an answer that the judge does not confirm.
    """
    if not problem.is_single_rate:
        raise Unsupported("this model has one block per period and Regst; take simulator.quotas.exact for the acts of a whole step")
    lower = least_quotas(problem, period_s * (1 + CLOSE))
    if lower is None or (lower > problem.upper).any():
        return None
    scale = 1e3 / max(1.0, float(problem.price_bytes.max(initial=1)))
    model = pulp.LpProblem("quotas", pulp.LpMinimize)
    s = [model.add_variable(f"s{v}") for v in range(problem.num_nodes)]
    q = [model.add_variable(f"q{r}", int(lower[r]), b.upper, cat=pulp.LpInteger) for r, b in enumerate(problem.buffers)]
    k = [model.add_variable(f"k{i}", -MOST_TURNS, MOST_TURNS, cat=pulp.LpInteger) for i in range(len(problem.pairs))]
    fixed = zip(problem.tail.tolist(), problem.head.tolist(), problem.tokens.tolist(), problem.weight_s.tolist(), strict=True)
    for u, v, tokens, weight_s in fixed:
        if u != v:
            model += s[v] - s[u] >= weight_s / period_s - tokens
        elif weight_s > period_s * tokens * (1 + CLOSE):
            return None
    for r, buffer in enumerate(problem.buffers):
        for ring in buffer.rings:
            if ring.producers != ring.consumers:
                model += s[ring.producers[0]] + q[r] - s[ring.consumers[0]] >= ring.release_s / period_s
    for i, (a, b, a_s, b_s) in enumerate(problem.pairs):
        if a_s + b_s > period_s * (1 + CLOSE):
            return None
        # Where the two fill the period, rounding must not make (4) impossible.
        shrink = min(1.0, period_s / (a_s + b_s)) / period_s if a_s + b_s > 0 else 0.0
        model += s[b] - s[a] + k[i] >= a_s * shrink
        model += s[a] - s[b] + 1 - k[i] >= b_s * shrink
    for place, budget in (budgets or {}).items():
        held = [(q[r], float(b.block_bytes)) for r, b in enumerate(problem.buffers) if place in b.places]
        model += pulp.LpAffineExpression(held) <= budget - problem.fixed_bytes.get(place, 0)
    model += pulp.LpAffineExpression([(q[r], float(price) * scale) for r, price in enumerate(problem.price_bytes)])
    solver = pulp.HiGHS(msg=False, threads=1, gapRel=0.0, gapAbs=0.0, timeLimit=None if seconds == inf else max(seconds, 0.1))
    status = pulp.LpStatus[model.solve(solver)]
    if status == "Infeasible":
        return None
    if any(variable.value() is None for variable in (*q, *k)):
        raise Unsupported(f"HiGHS found no quotas in {seconds:g} s (status {status}); give it more seconds")
    quotas = np.array([round(variable.value() or 0.0) for variable in q], dtype=np.int64)
    order = np.array([round(variable.value() or 0.0) for variable in k], dtype=np.int64)
    settled = problem.decided(order)
    starts, cycle = feasible_starts(problem.num_nodes, settled.arcs(quotas), period_s * (1 + CLOSE))
    if starts is None:
        raise Unsupported(
            f"HiGHS's answer misses the period {period_s:.9g} s on a cycle of {len(cycle)} arcs; its tolerance is too coarse here"
        )
    total = problem.total_bytes(quotas)
    bound = float(total) if status == "Optimal" else float(model.solverModel.getInfo().mip_dual_bound) / scale
    return Sized(quotas, total, min(bound, float(total)), period_s, starts, "single-rate MILP"), order
