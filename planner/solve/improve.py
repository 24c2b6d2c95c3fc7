"""Choices made better one node at a time: for prices on memory (any choice), or within the limit (a choice that fits stays one that fits).

The cost of strategy s at node v, all others as chosen:   theta_v(s) + sum over edge ends h of v of price_h(class of s, class of the neighbour's)
"""

from __future__ import annotations

import numba
import numpy as np

from planner.solve.problem import Ints
from planner.solve.relax import Relaxation

__all__ = ["descend", "settle"]


def settle(relaxation: Relaxation, choice: Ints, rounds: int = 20) -> Ints:
    """No single node can do better at the present memory prices.  The limit is not looked at."""
    settled: Ints = _settle(choice.copy(), rounds, relaxation.theta, relaxation.flat)
    return settled


def descend(relaxation: Relaxation, choice: Ints, rounds: int = 20) -> Ints:
    """No single node can do better within the limit, which ``choice`` keeps."""
    held = relaxation.held(choice)
    moved: Ints = _descend(choice.copy(), held, relaxation.problem.limit, rounds, relaxation.flat, relaxation.holds)
    return moved


@numba.njit(cache=True)
def _costs_of(v, choice, theta, f, out):  # type: ignore[no-untyped-def]
    a = f.first[v]
    k = f.first[v + 1] - a
    for s in range(k):
        out[s] = theta[a + s]
    for j in range(f.begin[v], f.begin[v + 1]):
        h = f.near[j]
        far, c = f.num[h ^ 1], f.of[h]
        b = f.at[h] + f.classes[f.of[h ^ 1] + choice[f.other[h]]]
        for s in range(k):
            out[s] += f.price[b + f.classes[c + s] * far]


@numba.njit(cache=True)
def _widest(f):  # type: ignore[no-untyped-def]
    most = 1
    for v in range(f.first.size - 1):
        most = max(most, f.first[v + 1] - f.first[v])
    return most


@numba.njit(cache=True)
def _settle(choice, rounds, theta, f):  # type: ignore[no-untyped-def]
    out = np.empty(_widest(f))
    for _ in range(rounds):
        moved = False
        for v in range(f.first.size - 1):
            _costs_of(v, choice, theta, f, out)
            best = choice[v]
            for s in range(f.first[v + 1] - f.first[v]):
                if out[s] < out[best]:
                    best = s
            if best != choice[v]:
                choice[v] = best
                moved = True
        if not moved:
            break
    return choice


@numba.njit(cache=True)
def _fits(v, s, choice, held, limit, demands, delta):  # type: ignore[no-untyped-def]
    """Would the limit still be kept if v moved to s?  ``delta`` is all zero before and after."""
    low, high, more = held.size, 0, False
    for i in range(demands.by_node[v], demands.by_node[v + 1]):
        change = demands.amounts[demands.amount_at[i] + s] - demands.amounts[demands.amount_at[i] + choice[v]]
        if change != 0.0:
            low, high = min(low, demands.start[i]), max(high, demands.stop[i])
            more = more or change > 0.0
            for t in range(demands.start[i], demands.stop[i]):
                delta[t] += change
    fits = True
    for t in range(low, high):
        if more and delta[t] > 0.0 and held[t] + delta[t] > limit:
            fits = False
        delta[t] = 0.0
    return fits


@numba.njit(cache=True)
def _move(v, s, choice, held, demands):  # type: ignore[no-untyped-def]
    for i in range(demands.by_node[v], demands.by_node[v + 1]):
        change = demands.amounts[demands.amount_at[i] + s] - demands.amounts[demands.amount_at[i] + choice[v]]
        if change != 0.0:
            for t in range(demands.start[i], demands.stop[i]):
                held[t] += change
    choice[v] = s


@numba.njit(cache=True)
def _descend(choice, held, limit, rounds, f, demands):  # type: ignore[no-untyped-def]
    out = np.empty(_widest(f))
    delta = np.zeros(held.size)
    for _ in range(rounds):
        moved = False
        for v in range(f.first.size - 1):
            _costs_of(v, choice, f.cost, f, out)
            best = choice[v]
            for s in range(f.first[v + 1] - f.first[v]):
                if out[s] < out[best] and _fits(v, s, choice, held, limit, demands, delta):
                    best = s
            if best != choice[v]:
                _move(v, best, choice, held, demands)
                moved = True
        if not moved:
            break
    return choice
