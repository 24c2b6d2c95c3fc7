"""The oracle of simulator.quotas.least_bytes, which also finds stream orders: a mixed-integer program for one micro-batch per period, solved by HiGHS.

Variables  s_v    start of node v, in periods          q_r  quota, whole          k_ab  order of a pair on one stream, whole

    min  sum_r price_r q_r                                                                  (1)
    s.t. s_v - s_u >= w / L - tokens                             fixed arcs                 (2)
         s_p + q_r - s_c >= release / L                          rings of Buffer r          (3)
         s_b - s_a + k_ab >= d_a / L,   s_a - s_b + 1 - k_ab >= d_b / L      pairs          (4)

(4) is exact, with no large constant: the starts of a and b are d_a apart one way round the period and d_b the other, whatever k is.

A pair (a, b, d_a, d_b) are two nodes of one stream, of which one runs at a time, and their durations.
On p equal stages with free links this gives p - i, that is 1F1B: nobody told it.  With links of c seconds, data and quotas alone (no pairs) need
1 + ceil((p-1-i)(1 + 2c/(F+B))), the link-aware rule; an order that repeats every micro-batch needs 1 + (p-1-i) ceil(1 + 2c/(F+B)), since a stage
without idle time runs F and B back to back and each border between stages then adds whole periods.

Sources: Moreira, Basten, Geilen, Stuijk 2010, "Buffer sizing for rate-optimal single-rate data-flow scheduling revisited" (1)-(3); the wrapped
disjunction (4) is that of the periodic event scheduling problem, Serafini & Ukovich 1989.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pulp

from experiments.quotas.instances import Draft
from simulator.quotas.bounds import least_quotas
from simulator.quotas.least_bytes import SizedQuotas
from simulator.quotas.period import feasible_starts
from simulator.quotas.problem import Ints, QuotaProblem
from simulator.quotas.rounding import TOLERANCE

__all__ = ["Pair", "decided", "pipeline", "smallest_single_rate"]

Pair = tuple[int, int, float, float]

MOST_TURNS = 10**4
"""A pair's order is that many micro-batches apart at most."""


def smallest_single_rate(problem: QuotaProblem, period_s: float, pairs: Sequence[Pair] = ()) -> tuple[SizedQuotas, Ints] | None:
    """Solve (1)-(4); None: no quotas and orders reach the period.

    Args:
        problem: Buffers of one block per period.   period_s: L, seconds per micro-batch.

    Returns:
        Quotas, re-judged with the orders found, and k per pair: decided(problem, pairs, k) is the problem with these orders.
    """
    lower = least_quotas(problem, period_s * (1 + TOLERANCE))
    if lower is None or (lower > problem.upper).any():
        return None
    scale = 1e3 / max(1.0, float(problem.price_bytes.max(initial=1)))
    model = pulp.LpProblem("quotas", pulp.LpMinimize)
    s = [model.add_variable(f"s{v}") for v in range(problem.num_nodes)]
    q = [model.add_variable(f"q{r}", int(lower[r]), b.upper, cat=pulp.LpInteger) for r, b in enumerate(problem.buffers)]
    k = [model.add_variable(f"k{i}", -MOST_TURNS, MOST_TURNS, cat=pulp.LpInteger) for i in range(len(pairs))]
    fixed = zip(problem.tail.tolist(), problem.head.tolist(), problem.tokens.tolist(), problem.weight_s.tolist(), strict=True)
    for u, v, tokens, weight_s in fixed:
        if u != v:
            model += s[v] - s[u] >= weight_s / period_s - tokens
        elif weight_s > period_s * tokens * (1 + TOLERANCE):
            return None
    for r, buffer in enumerate(problem.buffers):
        for ring in buffer.rings:
            if ring.producers != ring.consumers:
                model += s[ring.producers[0]] + q[r] - s[ring.consumers[0]] >= ring.release_s / period_s
    for i, (a, b, a_s, b_s) in enumerate(pairs):
        if a_s + b_s > period_s * (1 + TOLERANCE):
            return None
        # Where the two fill the period, rounding must not make (4) impossible.
        shrink = min(1.0, period_s / (a_s + b_s)) / period_s if a_s + b_s > 0 else 0.0
        model += s[b] - s[a] + k[i] >= a_s * shrink
        model += s[a] - s[b] + 1 - k[i] >= b_s * shrink
    model += pulp.LpAffineExpression([(q[r], float(price) * scale) for r, price in enumerate(problem.price_bytes)])
    solver = pulp.HiGHS(msg=False, threads=1, gapRel=0.0, gapAbs=0.0)
    status = pulp.LpStatus[model.solve(solver)]
    if status == "Infeasible":
        return None
    quotas = np.array([round(variable.value() or 0.0) for variable in q], dtype=np.int64)
    order = np.array([round(variable.value() or 0.0) for variable in k], dtype=np.int64)
    settled = decided(problem, pairs, order)
    starts, cycle = feasible_starts(problem.num_nodes, settled.arcs(quotas), period_s * (1 + TOLERANCE))
    assert starts is not None, f"HiGHS's answer misses the period {period_s:.9g} s on a cycle of {len(cycle)} arcs"
    total = problem.total_bytes(quotas)
    bound = float(total) if status == "Optimal" else float(model.solverModel.getInfo().mip_dual_bound) / scale
    return SizedQuotas(quotas, total, min(bound, float(total)), period_s, starts, "single-rate MILP"), order


def decided(problem: QuotaProblem, pairs: Sequence[Pair], order: Ints) -> QuotaProblem:
    """The problem with (4) as fixed arcs, for these whole numbers k."""
    a, b = (np.array([pair[end] for pair in pairs], dtype=np.int64) for end in (0, 1))
    return replace(
        problem,
        tail=np.concatenate([problem.tail, a, b]),
        head=np.concatenate([problem.head, b, a]),
        tokens=np.concatenate([problem.tokens, order, 1 - order]),
        weight_s=np.concatenate([problem.weight_s, np.array([p[2] for p in pairs]), np.array([p[3] for p in pairs])]),
    )


def pipeline(stages: int, forward_s: float, backward_s: float, link_s: float) -> tuple[QuotaProblem, tuple[Pair, ...]]:
    """Equal stages in the steady state of one micro-batch per period, and the pairs (F, B) that share their stage's stream.

    The Buffer of stage i that waits from F to B is number i; then those of the links, large enough to be no matter.
    """
    draft = Draft()
    forward = [draft.node(forward_s) for _ in range(stages)]
    backward = [draft.node(backward_s) for _ in range(stages)]
    for i in range(stages):
        draft.regst(forward[i], [backward[i]], 1000, 8 * stages, (f"stage {i}",))
    for chain in (forward, backward[::-1]):
        for here, there in zip(chain, chain[1:], strict=False):
            link = draft.node(link_s)
            draft.regst(here, [link], 1, 64)
            draft.regst(link, [there], 1, 64)
    return draft.problem(), tuple((f, b, forward_s, backward_s) for f, b in zip(forward, backward, strict=True))
