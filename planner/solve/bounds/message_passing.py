"""Lower bounds, and the strategies that they exclude: messages along the edges (TRW-S) and Lagrange multipliers of the memory limit.

With multipliers lam_t >= 0 of the times, and messages m that move cost between an edge and its ends,

    bound(lam, m) = sum_v min_s hat_v(s)  +  sum_e min_PQ [ cost_e(P, Q) - m_eu(P) - m_ev(Q) ]  -  limit sum_t lam_t         (1)
    hat_v(s)      = cost_v(s) + sum_t lam_t held_t(v, s) + sum over edges e of v of m_ev(class of s)                         (2)

is at most the objective of every choice within the limit.  A sweep visits the nodes in order and sets the messages to later nodes:

    m_ew(Q) = min_P [ gamma_v (hat_v(P) - min hat_v) - m_ev(P) + cost_e(P, Q) ],   gamma_v = 1 / max(edges back, edges ahead) (3)  -> _sweep

after which the second sum of (1) is 0 if each v gives gamma_v (hat_v - min hat_v) to each edge ahead; so the sum of min hat_v at the visits
is a bound, and it never falls.  At the visit of v every choice with x_v = s costs at least bound + hat_v(s) - min hat_v.
    -> Dual.sweep
So if this exceeds the cost of some choice, no better choice has strategy s at v.  A forbidden or dropped strategy costs infinity.
[Kolmogorov 2006, IEEE PAMI 28(10)]
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from planner.solve.arrays import arrays_of, demand_arrays
from planner.solve.problem import Floats, Ints, Problem

__all__ = ["Dual"]

_FAST = {"nnan", "nsz", "reassoc", "contract"}
_inlined = numba.njit(cache=True, fastmath=_FAST, forceinline=True)
_at = np.uint64
"""``array[_at(i)]``: an index that is never negative; numba would ask of every signed one whether it counts from the end."""


class Dual:
    """Messages and multipliers of one problem, whose times are 0 .. n - 1 (see crop_times).  Strategies of all nodes are numbered in a row.

    lower_bound: the best so far, of all multipliers.   alive[i]: strategy i is not dropped.
    base, excess[i]: after the last sweep, every choice with strategy i costs at least base + excess[i].
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.flat = arrays_of(problem)
        self.holds = demand_arrays(problem)
        self.times = max((d.stop for d in problem.demands), default=0)
        self.multipliers = np.zeros(self.times)
        self.theta = self.flat.cost
        self.messages = np.zeros(int(self.flat.into[-1]))
        self.alive: NDArray[np.bool_] = np.ones(self.flat.cost.size, dtype=np.bool_)
        self.excess = np.zeros(self.flat.cost.size)
        self.base = self.lower_bound = -np.inf

    def charge(self, multipliers: Floats) -> None:
        """Set the multiplier of every time."""
        self.multipliers = multipliers
        self.theta = np.where(self.alive, _charged(multipliers, self.flat, self.holds), np.inf)

    def sweep(self, rounds: int, upper: float = np.inf) -> float:
        """Sweep forward and backward, ``rounds`` times; drop strategies that no choice cheaper than ``upper`` has.

        Returns:
            The bound (1) at the present multipliers; infinite if no choice is cheaper than ``upper``.
        """
        f, none = self.flat, np.empty(0)
        offset = float(self.multipliers.sum()) * (self.problem.limit if self.multipliers.any() else 0.0)
        bound = before = -np.inf
        for i in range(2 * rounds):
            if i == 2 * rounds - 2:
                before = bound
                self.excess = np.zeros(f.cost.size)
            bound = float(_sweep(i % 2 == 0, self.theta, self.messages, f, self.excess if i >= 2 * rounds - 2 else none))
            if bound == np.inf:
                break
        self.base = before - offset
        self.lower_bound = max(self.lower_bound, bound - offset)
        if upper < np.inf:
            self.drop(self.base + self.excess >= upper)
        return bound - offset

    def drop(self, gone: NDArray[np.bool_]) -> None:
        """Exclude strategies, by a mask."""
        self.alive &= ~gone
        self.theta = np.where(self.alive, self.theta, np.inf)

    def fixing(self) -> Floats:
        """One more round.  Returns per strategy a lower bound on what a choice with it costs above the bound before; changes no bound."""
        excess = np.zeros(self.flat.cost.size)
        for forward in (True, False):
            _sweep(forward, self.theta, self.messages, self.flat, excess)
        return excess

    def held(self, choice: Ints) -> Floats:
        """What a choice holds at every time."""
        held: Floats = _held(choice, self.times, self.holds)
        return held

    def objective(self, choice: Ints) -> float:
        """Cost of a choice, up to rounding."""
        return float(_objective(choice, self.flat))

    def decode(self, forward: bool = True) -> Ints:
        """A choice by the messages: each node in order takes the best strategy given the nodes before.  It may be forbidden or too large."""
        choice: Ints = _decode(forward, self.theta, self.messages, self.flat)
        return choice

    def alive_strategies(self) -> list[Ints]:
        """Strategies of every node that are not dropped."""
        return self.per_node(self.alive)

    def per_node(self, mask: NDArray[np.bool_]) -> list[Ints]:
        """Strategies of every node, from a mask over all strategies."""
        first = self.flat.first
        return [np.flatnonzero(mask[a:b]) for a, b in zip(first, first[1:], strict=False)]

    def entries(self, mask: NDArray[np.bool_]) -> int:
        """Entries of all edges between classes of the strategies in a mask; an edge with one class at an end has none."""
        return int(_entries(mask, self.flat))


@numba.njit(cache=True)
def _charged(multipliers, f, demands):  # type: ignore[no-untyped-def]
    theta = f.cost.copy()
    total = np.zeros(multipliers.size + 1)
    for t in range(multipliers.size):
        total[t + 1] = total[t] + multipliers[t]
    for d in range(demands.node.size):
        weight = total[demands.stop[d]] - total[demands.start[d]]
        if weight > 0.0:
            v = demands.node[d]
            for s in range(f.first[v + 1] - f.first[v]):
                theta[f.first[v] + s] += weight * demands.amounts[demands.amount_at[d] + s]
    return theta


@numba.njit(cache=True)
def _held(choice, times, demands):  # type: ignore[no-untyped-def]
    change = np.zeros(times + 1)
    for d in range(demands.node.size):
        amount = demands.amounts[demands.amount_at[d] + choice[demands.node[d]]]
        change[demands.start[d]] += amount
        change[demands.stop[d]] -= amount
    return np.cumsum(change)[:times]


@numba.njit(cache=True)
def _objective(choice, f):  # type: ignore[no-untyped-def]
    total = 0.0
    for v in range(f.first.size - 1):
        total += f.cost[f.first[v] + choice[v]]
    for e in range(f.num.size // 2):
        p = f.classes[f.of[2 * e] + choice[f.other[2 * e + 1]]]
        q = f.classes[f.of[2 * e + 1] + choice[f.other[2 * e]]]
        total += f.edge_cost[f.at[2 * e] + p * f.num[2 * e + 1] + q]
    return total


@_inlined
def _hat(v, theta, messages, f, hat):  # type: ignore[no-untyped-def]
    """(2) into ``hat``; returns its minimum."""
    a = f.first[_at(v)]
    k = f.first[_at(v + 1)] - a
    for s in range(k):
        hat[_at(s)] = theta[_at(a + s)]
    for i in range(f.begin[_at(v)], f.begin[_at(v + 1)]):
        h = f.near[_at(i)]
        m, c = f.into[_at(h)], f.of[_at(h)]
        for s in range(k):
            hat[_at(s)] += messages[_at(m + f.classes[_at(c + s)])]
    least = hat[0]
    for s in range(1, k):
        if hat[_at(s)] < least:
            least = hat[_at(s)]
    return least


@_inlined
def _send(v, h, gamma, least, hat, messages, f, row, out):  # type: ignore[no-untyped-def]
    """(3) along end h of node v."""
    k = f.first[_at(v + 1)] - f.first[_at(v)]
    mine, far = f.num[_at(h)], f.num[_at(h ^ 1)]
    m, c, to = f.into[_at(h)], f.of[_at(h)], f.into[_at(h ^ 1)]
    for p in range(mine):
        row[_at(p)] = np.inf
    for s in range(k):
        p = f.classes[_at(c + s)]
        row[_at(p)] = min(row[_at(p)], gamma * (hat[_at(s)] - least))
    for q in range(far):
        out[_at(q)] = np.inf
    for p in range(mine):
        if row[_at(p)] == np.inf:
            continue  # every strategy of the class is dropped, so the message from it may be infinite: inf - inf is no number
        value = row[_at(p)] - messages[_at(m + p)]
        b = f.at[_at(h)] + p * far
        for q in range(far):
            out[_at(q)] = min(out[_at(q)], value + f.edge_cost[_at(b + q)])
    for q in range(far):
        messages[_at(to + q)] = out[_at(q)]


@numba.njit(cache=True, fastmath=_FAST)
def _sweep(forward, theta, messages, f, excess):  # type: ignore[no-untyped-def]
    nodes, strategies = f.first.size - 1, f.cost.size
    hat, row, out = np.empty(strategies), np.empty(strategies), np.empty(strategies)
    bound = 0.0
    for i in range(nodes):
        v = i if forward else nodes - 1 - i
        least = _hat(v, theta, messages, f, hat)
        bound += least
        if least == np.inf:
            return bound
        a, begin, end = f.first[_at(v)], f.begin[_at(v)], f.begin[_at(v + 1)]
        if excess.size:
            for s in range(f.first[_at(v + 1)] - a):
                excess[_at(a + s)] = max(excess[_at(a + s)], hat[_at(s)] - least)
        back = 0
        for j in range(begin, end):
            back += f.other[_at(f.near[_at(j)])] < v
        gamma = 1.0 / max(back, end - begin - back, 1)
        for j in range(begin, end):
            h = f.near[_at(j)]
            if (f.other[_at(h)] > v) == forward:
                _send(v, h, gamma, least, hat, messages, f, row, out)
    return bound


@numba.njit(cache=True)
def _entries(mask, f):  # type: ignore[no-untyped-def]
    count = np.zeros(f.num.size, dtype=np.int64)
    seen = np.full(f.num.max() + 1 if f.num.size else 1, -1)
    for v in range(f.first.size - 1):
        for j in range(f.begin[v], f.begin[v + 1]):
            h = f.near[j]
            for s in range(f.first[v + 1] - f.first[v]):
                if mask[f.first[v] + s]:
                    p = f.classes[f.of[h] + s]
                    if seen[p] != h:
                        seen[p] = h
                        count[h] += 1
    total = 0
    for e in range(f.num.size // 2):
        if count[2 * e] > 1 and count[2 * e + 1] > 1:
            total += count[2 * e] * count[2 * e + 1]
    return total


@numba.njit(cache=True)
def _decode(forward, theta, messages, f):  # type: ignore[no-untyped-def]
    nodes = f.first.size - 1
    choice = np.zeros(nodes, dtype=np.int64)
    for i in range(nodes):
        v = i if forward else nodes - 1 - i
        best, least = 0, np.inf
        for s in range(f.first[v + 1] - f.first[v]):
            value = theta[f.first[v] + s]
            for j in range(f.begin[v], f.begin[v + 1]):
                h = f.near[j]
                p = f.classes[f.of[h] + s]
                if (f.other[h] > v) == forward:
                    value += messages[f.into[h] + p]
                else:
                    q = f.classes[f.of[h ^ 1] + choice[f.other[h]]]
                    value += f.edge_cost[f.at[h] + p * f.num[h ^ 1] + q]
            if value < least:
                best, least = s, value
        choice[v] = best
    return choice
