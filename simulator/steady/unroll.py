"""A marked graph played out step by step: the max-plus recurrence, for Plans whose streams all have an order.

    start(v, s) = max over waits u -> v of  start(u, s - t) + duration(u, s - t) + latency,    waits from before step 0 are already over

Acts of one step are taken in an order in which nobody waits for a later one, which exists iff the Plan is live.

Source: the dater equation of Baccelli, Cohen, Olsder, Quadrat 1992, "Synchronization and Linearity", ch. 2.
"""

from __future__ import annotations

import numba
import numpy as np

from planner.ir.errors import DeadLock, Unsupported
from simulator.steady.graph import MarkedGraph, Reals
from simulator.steady.observed_order import is_ordered

__all__ = ["starts_s"]


def starts_s(graph: MarkedGraph, duration_s: Reals) -> Reals:
    """When every act of every step starts, in seconds.

    Args:
        graph: of a Plan whose streams all have an order (is_ordered).
        duration_s: shape [steps, n], seconds of each act of each step; row s is step s.

    Returns:
        Shape [steps, n].

    Raises:
        Unsupported: a stream without an order.   DeadLock: the graph is not live.
    """
    if not is_ordered(graph.plan):
        raise Unsupported("some streams of the plan have no order of their own (they choose as they go); give them one, or let SimPy play")
    latency_s = graph.weight_s - graph.duration_s[graph.src]
    order = np.argsort(graph.dst, kind="stable")
    pointer = np.zeros(graph.num_nodes + 1, dtype=np.int64)
    pointer[1:] = np.cumsum(np.bincount(graph.dst, minlength=graph.num_nodes))
    turn, done = _turns(pointer, graph.src[order], graph.tokens[order])
    if not done:
        raise DeadLock("the graph has a cycle without tokens (SEMANTICS 4.1); check_live names it")
    started = np.zeros_like(duration_s, dtype=np.float64)
    _play(turn, pointer, graph.src[order], graph.tokens[order], latency_s[order], duration_s.astype(np.float64), started)
    return started


@numba.njit(cache=True)
def _turns(pointer, src, tokens):  # type: ignore[no-untyped-def]
    """Nodes such that an arc without tokens leads from an earlier one to a later one, and whether there is such an order."""
    n = len(pointer) - 1
    turn = np.empty(n, dtype=np.int64)
    state = np.zeros(n, dtype=np.int64)  # 0 new, 1 on the stack, 2 placed
    at = pointer[:-1].copy()
    stack = np.empty(n, dtype=np.int64)
    placed = 0
    for first in range(n):
        if state[first] != 0:
            continue
        depth = 1
        stack[0] = first
        state[first] = 1
        while depth > 0:
            v = stack[depth - 1]
            if at[v] == pointer[v + 1]:
                state[v] = 2
                turn[placed] = v
                placed += 1
                depth -= 1
                continue
            a = at[v]
            at[v] += 1
            if tokens[a] == 0:
                u = src[a]
                if state[u] == 1:
                    return turn, False
                if state[u] == 0:
                    state[u] = 1
                    stack[depth] = u
                    depth += 1
    return turn, True


@numba.njit(cache=True)
def _play(turn, pointer, src, tokens, latency_s, duration_s, started):  # type: ignore[no-untyped-def]
    for step in range(len(duration_s)):
        for v in turn:
            begin = 0.0
            for a in range(pointer[v], pointer[v + 1]):
                back = step - tokens[a]
                if back >= 0:
                    begin = max(begin, started[back, src[a]] + duration_s[back, src[a]] + latency_s[a])
            started[step, v] = begin
