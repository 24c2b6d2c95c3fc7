"""Lower bounds of big problems: prices on memory (Lagrange) and messages along the edges (TRW-S).

With prices lam_t >= 0 on the times, and messages m that move cost between an edge and its ends,

    bound(lam, m) = sum_v min_s hat_v(s)  +  sum_e min_PQ [ price_e(P, Q) - m_eu(P) - m_ev(Q) ]  -  limit sum_t lam_t         (1)
    hat_v(s)      = cost_v(s) + sum_t lam_t held_t(v, s) + sum over edges e of v of m_ev(class of s)                         (2)

is at most the objective of every choice within the limit.  A sweep visits the nodes in order and sets, towards those still to come,

    m_ew(Q) = min_P [ gamma_v (hat_v(P) - min hat_v) - m_ev(P) + price_e(P, Q) ],   gamma_v = 1 / max(edges back, edges ahead) (3)  -> _sweep

after which the second sum of (1) is 0 if each v gives gamma_v (hat_v - min hat_v) to each edge ahead; so the sum of min hat_v at the visits
is a bound, and it never falls.  At the visit of v every choice with x_v = s costs at least bound + hat_v(s) - min hat_v.    -> fixing
[Kolmogorov 2006, IEEE PAMI 28(10)]
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from planner.solve.core import fold_classes
from planner.solve.problem import Floats, Ints, Problem

__all__ = ["Flat", "Holds", "Relaxation", "flatten"]

_FAST = {"nnan", "nsz", "reassoc", "contract"}


class Flat(NamedTuple):
    """A problem in arrays (a named tuple, because compiled code takes one whole).

    first: of node v's strategies, in ``cost``.   near[begin[v] : begin[v+1]]: its edge ends h; end h belongs to edge h // 2.
    other[h]: the node at the far end.   into[h]: where the message to this end lies, an entry per class of this node.
    of[h] : where its class numbers lie, one per strategy, in ``classes``.   price[at[h] + P * num[h^1] + Q]: this end's class P, far class Q.
    """

    first: Ints
    cost: Floats
    begin: Ints
    near: Ints
    other: Ints
    into: Ints
    num: Ints
    of: Ints
    classes: Ints
    at: Ints
    price: Floats


class Holds(NamedTuple):
    """Demands in arrays: those of node v are by_node[v] .. by_node[v + 1]; demand i holds amounts[amount_at[i] + s] in [start[i], stop[i])."""

    by_node: Ints
    node: Ints
    start: Ints
    stop: Ints
    amount_at: Ints
    amounts: Floats


def flatten(problem: Problem) -> Flat:
    """The arrays of a problem; rows of a matrix that differ by a constant become one class."""
    costs = [c.copy() for c in problem.costs]
    ends: list[list[int]] = [[] for _ in costs]
    other, into, num, of, at = [], [], [], [], []
    classes: list[Ints] = []
    prices: list[Floats] = []
    known: dict[tuple[int, bytes], int] = {}  # layers repeat, and so do their matrices: each is stored once
    folded: dict[tuple[int, bytes], tuple[Ints, Ints, Floats, Floats, Floats]] = {}
    message = place = entry = 0
    for number, edge in enumerate(problem.edges):
        key = (edge.matrix.shape[0], edge.matrix.tobytes())
        if key not in folded:
            folded[key] = fold_classes(edge.matrix)
        of_row, of_column, price, extra_row, extra_column = folded[key]
        costs[edge.u] = costs[edge.u] + extra_row
        costs[edge.v] = costs[edge.v] + extra_column
        sides = ((edge.u, edge.v, of_row, price), (edge.v, edge.u, of_column, np.ascontiguousarray(price.T)))
        for side, (here, there, mine, matrix) in enumerate(sides):
            ends[here].append(2 * number + side)
            other.append(there)
            into.append(message)
            num.append(matrix.shape[0])
            of.append(place)
            classes.append(mine)
            message += matrix.shape[0]
            place += mine.size
            key = (matrix.shape[0], matrix.tobytes())
            if key not in known:
                known[key] = entry
                prices.append(matrix.reshape(-1))
                entry += matrix.size
            at.append(known[key])
    return Flat(
        first=_starts([c.size for c in costs]),
        cost=np.concatenate(costs),
        begin=_starts([len(e) for e in ends]),
        near=_ints([h for e in ends for h in e]),
        other=_ints(other),
        into=_ints([*into, message]),
        num=_ints(num),
        of=_ints(of),
        classes=np.concatenate(classes) if classes else _ints([]),
        at=_ints(at),
        price=np.concatenate(prices) if prices else np.empty(0),
    )


def _holds(problem: Problem) -> Holds:
    demands = sorted(problem.demands, key=lambda d: d.node)
    node = _ints([d.node for d in demands])
    return Holds(
        by_node=np.searchsorted(node, np.arange(len(problem.costs) + 1)).astype(np.int64),
        node=node,
        start=_ints([d.start for d in demands]),
        stop=_ints([d.stop for d in demands]),
        amount_at=_starts([d.amount.size for d in demands])[:-1],
        amounts=np.concatenate([d.amount for d in demands]) if demands else np.empty(0),
    )


def _ints(values: list[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def _starts(sizes: list[int]) -> Ints:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


class Relaxation:
    """Messages and memory prices of one problem, whose times are 0 .. n - 1 (see crop_times)."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.flat = flatten(problem)
        self.times = max((d.stop for d in problem.demands), default=0)
        self.prices = np.zeros(self.times)
        self.messages = np.zeros(int(self.flat.into[-1]))
        self.theta = self.flat.cost
        self.holds = _holds(problem)

    def charge(self, prices: Floats) -> None:
        """Set the price of memory at every time."""
        self.prices = prices
        self.theta = _charged(prices, self.flat, self.holds)

    def held(self, choice: Ints) -> Floats:
        """What a choice holds at every time."""
        held: Floats = _held(choice, self.times, self.holds)
        return held

    def sweep(self, rounds: int) -> float:
        """Forward and backward, ``rounds`` times; returns the bound (1) at the present prices."""
        f, none = self.flat, np.empty(0)
        bound = -np.inf
        for _ in range(rounds):
            for forward in (True, False):
                bound = _sweep(forward, self.theta, self.messages, f, none)
        return bound - float(self.prices.sum()) * (self.problem.limit if self.prices.any() else 0.0)

    def decode(self, forward: bool = True) -> Ints:
        """A choice that follows the messages: node after node, given those already chosen.  It may be forbidden or too large."""
        choice: Ints = _decode(forward, self.theta, self.messages, self.flat)
        return choice

    def entries(self, kept: NDArray[np.bool_]) -> int:
        """Entries of all edges between classes of the ``kept`` strategies; an edge with one class at an end has none."""
        return int(_entries(kept, self.flat))

    def fixing(self) -> Floats:
        """One more round; returns for every strategy what a choice with it costs above the bound, at least.  Raises no bound itself."""
        excess = np.zeros(self.flat.cost.size)
        for forward in (True, False):
            _sweep(forward, self.theta, self.messages, self.flat, excess)
        return excess


@numba.njit(cache=True)
def _charged(prices, f, demands):  # type: ignore[no-untyped-def]
    theta = f.cost.copy()
    total = np.zeros(prices.size + 1)
    for t in range(prices.size):
        total[t + 1] = total[t] + prices[t]
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


@numba.njit(cache=True, fastmath=_FAST)
def _hat(v, theta, messages, f, hat):  # type: ignore[no-untyped-def]
    """(2) into ``hat``; returns its minimum."""
    a = f.first[v]
    k = f.first[v + 1] - a
    for s in range(k):
        hat[s] = theta[a + s]
    for i in range(f.begin[v], f.begin[v + 1]):
        h = f.near[i]
        m, c = f.into[h], f.of[h]
        for s in range(k):
            hat[s] += messages[m + f.classes[c + s]]
    least = hat[0]
    for s in range(1, k):
        if hat[s] < least:
            least = hat[s]
    return least


@numba.njit(cache=True, fastmath=_FAST)
def _send(v, h, gamma, least, hat, messages, f, row, out):  # type: ignore[no-untyped-def]
    """(3) along end h of node v."""
    k = f.first[v + 1] - f.first[v]
    mine, far = f.num[h], f.num[h ^ 1]
    m, c, to = f.into[h], f.of[h], f.into[h ^ 1]
    for p in range(mine):
        row[p] = np.inf
    for s in range(k):
        p = f.classes[c + s]
        value = gamma * (hat[s] - least)
        if value < row[p]:
            row[p] = value
    for q in range(far):
        out[q] = np.inf
    for p in range(mine):
        value = row[p] - messages[m + p]
        b = f.at[h] + p * far
        for q in range(far):
            out[q] = min(out[q], value + f.price[b + q])
    for q in range(far):
        messages[to + q] = out[q]


@numba.njit(cache=True)
def _sweep(forward, theta, messages, f, excess):  # type: ignore[no-untyped-def]
    nodes = f.first.size - 1
    most = 1
    for v in range(nodes):
        most = max(most, f.first[v + 1] - f.first[v])
    hat, row, out = np.empty(most), np.empty(most), np.empty(most)
    bound = 0.0
    for i in range(nodes):
        v = i if forward else nodes - 1 - i
        least = _hat(v, theta, messages, f, hat)
        bound += least
        if excess.size:
            for s in range(f.first[v + 1] - f.first[v]):
                excess[f.first[v] + s] = max(excess[f.first[v] + s], hat[s] - least)
        back = 0
        for j in range(f.begin[v], f.begin[v + 1]):
            back += f.other[f.near[j]] < v
        gamma = 1.0 / max(back, f.begin[v + 1] - f.begin[v] - back, 1)
        for j in range(f.begin[v], f.begin[v + 1]):
            h = f.near[j]
            if (f.other[h] > v) == forward:
                _send(v, h, gamma, least, hat, messages, f, row, out)
    return bound


@numba.njit(cache=True)
def _entries(kept, f):  # type: ignore[no-untyped-def]
    count = np.zeros(f.num.size, dtype=np.int64)
    seen = np.full(f.num.max() + 1 if f.num.size else 1, -1)
    for v in range(f.first.size - 1):
        for j in range(f.begin[v], f.begin[v + 1]):
            h = f.near[j]
            for s in range(f.first[v + 1] - f.first[v]):
                if kept[f.first[v] + s]:
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
                    value += f.price[f.at[h] + p * f.num[h ^ 1] + q]
            if value < least:
                best, least = s, value
        choice[v] = best
    return choice
