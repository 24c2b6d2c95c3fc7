"""A lower bound of each quota by itself: the fixed arcs alone say how long a block is held, whatever the other quotas are.

    d(u, v)     the longest path u -> v over fixed arcs with weights w - k L: s_v >= s_u + d(u, v) in every schedule of period L
    impossible  a quota q that closes a positive cycle with such a path, for some ring and some j, with i = (j + q) mod b:
                    d(P[i], C[j]) + release > L floor((j + q) / b)                         (1)   -> least_quotas()

Fewer blocks than an impossible number are impossible too.  For b = 1 the least quota is ceil((d(P, C) + release) / L): rounding *before* the
relaxation (a Chvatal-Gomory cut per Buffer), which closes most of the gap that rounding after it would leave.
"""

from __future__ import annotations

from math import inf
from time import perf_counter

import numba
import numpy as np

from simulator.quotas.period import feasible_starts
from simulator.quotas.problem import Floats, Ints, QuotaProblem

__all__ = ["least_quotas"]

_TOLERANCE = 1e-9
"""Tolerance, relative to the period: a path that is late for a block by less is in time."""

_MOST_PAIRS, _SOURCES_AT_ONCE = 2 * 10**6, 128
"""Pairs (producer, consumer) whose paths are sought, those of short rings first; and after so many sources the time is looked at."""


@numba.njit(cache=True)
def _longest(pointer, head, weight, rank, node_at, source, sink, close):  # type: ignore[no-untyped-def]
    """d(source[k], sink[k]) for pairs sorted by source; -inf without a path.

    rank: nodes in the order of a schedule, in which only arcs with tokens go back.  Nodes later than the source's last sink are left out, so
    the result is at most the longest path.
    """
    n = len(pointer) - 1
    longest = np.full(len(source), -np.inf)
    far = np.full(n, -np.inf)
    queued = np.zeros(n, np.bool_)
    touched = np.empty(n, np.int64)
    first = 0
    while first < len(source):
        root = source[first]
        end, last = first, rank[root]
        while end < len(source) and source[end] == root:
            last = max(last, rank[sink[end]])
            end += 1
        far[root] = 0.0
        queued[root] = True
        touched[0] = root
        count = 1
        low = rank[root]
        while low < n:
            back = n
            for i in range(low, last + 1):
                u = node_at[i]
                if not queued[u]:
                    continue
                queued[u] = False
                for a in range(pointer[u], pointer[u + 1]):
                    v = head[a]
                    reached = far[u] + weight[a]
                    if rank[v] <= last and reached > far[v] + close:
                        if far[v] == -np.inf:
                            touched[count] = v
                            count += 1
                        far[v] = reached
                        queued[v] = True
                        if rank[v] <= i:
                            back = min(back, rank[v])
            low = back
        for k in range(first, end):
            longest[k] = far[sink[k]]
        for k in range(count):
            far[touched[k]] = -np.inf
        first = end
    return longest


def least_quotas(problem: QuotaProblem, period_s: float, *, seconds: float = inf) -> Ints | None:
    """(1) A lower bound of each quota at this period, at least the Buffer's own; None: no quotas at all reach the period.

    Free pairs are left out, which only lowers the bounds; so are pairs that are too many, and those whose turn does not come in ``seconds``.
    """
    ends_s = perf_counter() + seconds
    arcs = problem.fixed_arcs()
    starts, _ = feasible_starts(problem.num_nodes, arcs, period_s)
    if starts is None:
        return None
    buffer, consumer, block, per_period, begins, flat, release = problem._rings
    lower = problem.lower.copy()
    if not len(consumer):
        return lower
    node_at = np.argsort(starts, kind="stable")
    rank = np.empty_like(node_at)
    rank[node_at] = np.arange(len(node_at))
    order = np.argsort(arcs.tail, kind="stable")
    pointer = np.concatenate([[0], np.cumsum(np.bincount(arcs.tail, minlength=problem.num_nodes))])
    weight: Floats = (arcs.weight_s - period_s * arcs.tokens)[order]
    # Every returned block with every producer of its ring.
    by_length = np.argsort(per_period, kind="stable")
    kept = np.sort(by_length[np.cumsum(per_period[by_length]) <= _MOST_PAIRS])
    counts = per_period[kept]
    entry = np.repeat(kept, counts)
    place = np.arange(len(entry)) - np.repeat(np.cumsum(counts) - counts, counts)
    source = flat[begins[entry] + place]
    by = np.argsort(source, kind="stable")
    sources, sinks, found = source[by], consumer[entry][by], np.full(len(entry), -np.inf)
    firsts = np.flatnonzero(np.diff(sources, prepend=-1))[::_SOURCES_AT_ONCE]
    for first, end in zip(firsts, [*firsts[1:], len(sources)], strict=True):
        if perf_counter() > ends_s:
            break
        part = slice(first, end)
        found[part] = _longest(pointer, arcs.head[order], weight, rank, node_at, sources[part], sinks[part], 1e-12 * period_s)
    path = np.empty(len(entry))
    path[by] = found
    reached = np.isfinite(path)
    entry, place, path = entry[reached], place[reached], path[reached]
    tokens = np.ceil((path + release[entry]) / period_s - _TOLERANCE).astype(np.int64)
    enough = tokens * per_period[entry] + place - block[entry]
    np.maximum.at(lower, buffer[entry], enough - per_period[entry] + 1)
    return lower
