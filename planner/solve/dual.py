"""Bounds for pairwise problems by sequential tree-reweighted message passing (TRW-S, Kolmogorov 2006).

    hat_s(x)  = theta_s(x) + sum over neighbours t of M_ts(x)
    M_st(y)   = min over x of  gamma_s hat_s(x) - M_ts(x) + theta_st(x, y),      gamma_s = 1 / max(neighbours before s, neighbours after s)

The dual value never falls.  While node s is visited, its whole hat is a min-marginal of the dual:

    every choice with x_s = x costs at least   bound + hat_s(x) - min hat_s

so a strategy for which this exceeds the cost of a known choice cannot be part of a better one, and is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit

from planner.solve.problem import Floats, Ints, Problem

__all__ = ["Dual"]


@dataclass(slots=True, eq=False)
class _Flat:
    """A problem in arrays: node s has theta[first[s]:first[s+1]]; edge e joins u < v with its matrix at entry[e]."""

    first: Ints
    theta: Floats
    u: Ints
    v: Ints
    entry: Ints
    matrix: Floats
    to_v: Ints
    to_u: Ints
    start: Ints
    edge: Ints
    gamma: Floats


class Dual:
    """Message passing on a problem; forbidden entries count as ``forbidden`` (more than a known choice costs)."""

    def __init__(self, problem: Problem, forbidden: float) -> None:
        self.problem, self.forbidden = problem, forbidden
        self.flat = _flatten(problem, forbidden)
        size = int(self.flat.to_u[-1])
        self.messages = np.zeros(size)
        self.lower_bound = -np.inf
        self.alive = np.ones(int(self.flat.first[-1]), dtype=np.bool_)

    def sweep(self, times: int, upper: float) -> float:
        """Pass forth and back; drop strategies that cannot be part of a choice cheaper than ``upper``.  Returns the bound."""
        f = self.flat
        self.lower_bound = float(
            _sweeps(
                times, f.first, f.theta, f.u, f.v, f.entry, f.matrix, f.to_v, f.to_u, f.start, f.edge, f.gamma, self.messages, self.alive,
                upper, self.lower_bound, self.forbidden,
            )
        )  # fmt: skip
        return self.lower_bound

    def rounded(self) -> Ints:
        """A choice read off the messages: each node in order, given those before it."""
        f = self.flat
        return _rounded(f.first, f.theta, f.u, f.v, f.entry, f.matrix, f.to_v, f.to_u, f.start, f.edge, self.messages)  # type: ignore[no-any-return]

    def reduced(self) -> list[Floats]:
        """hat_s - min hat_s per node: 0 where the dual sees nothing better."""
        f = self.flat
        hats = _hats(f.first, f.theta, f.u, f.v, f.to_v, f.to_u, f.start, f.edge, self.messages)
        parts = (hats[f.first[s] : f.first[s + 1]] for s in range(len(f.first) - 1))
        return [part - part.min() for part in parts]

    def kept(self) -> list[Ints]:
        """Strategies of every node that may be part of a better choice."""
        f = self.flat
        return [np.flatnonzero(self.alive[f.first[s] : f.first[s + 1]]) for s in range(len(f.first) - 1)]


def improved(problem: Problem, choice: Ints, neighbours: Sequence[Sequence[tuple[int, Floats]]]) -> Ints:
    """Change one node at a time while that helps (iterated conditional modes)."""
    choice = choice.copy()
    queue = list(range(len(choice)))
    while queue:
        again: dict[int, None] = {}
        for s in queue:
            around = problem.costs[s].copy()
            for t, table in neighbours[s]:
                around += table[:, choice[t]]
            best = int(around.argmin())
            if around[best] < around[choice[s]] - 1e-15:
                choice[s] = best
                again |= dict.fromkeys(t for t, _ in neighbours[s])
        queue = sorted(again)
    return choice


def _flatten(problem: Problem, forbidden: float) -> _Flat:
    sizes = np.array([len(c) for c in problem.costs], dtype=np.int64)
    first = np.concatenate(([0], np.cumsum(sizes)))
    theta = np.minimum(np.concatenate(problem.costs), forbidden)
    u = np.array([min(e.u, e.v) for e in problem.edges], dtype=np.int64)
    v = np.array([max(e.u, e.v) for e in problem.edges], dtype=np.int64)
    tables = [e.matrix if e.u < e.v else e.matrix.T for e in problem.edges]
    entry = np.concatenate(([0], np.cumsum([t.size for t in tables], dtype=np.int64)))
    matrix = np.minimum(np.concatenate([np.ravel(t) for t in tables]) if tables else np.zeros(0), forbidden)
    lengths = np.stack((sizes[v], sizes[u]), axis=1).ravel() if len(u) else np.zeros(0, dtype=np.int64)
    places = np.concatenate(([0], np.cumsum(lengths)))
    to_v, to_u = places[0:-1:2], np.append(places[1:-1:2], places[-1])
    number = len(sizes)
    before, after = np.bincount(v, minlength=number), np.bincount(u, minlength=number)
    ends = np.concatenate((u, v))
    order = np.argsort(ends, kind="stable")
    edge = np.concatenate((np.arange(len(u)), np.arange(len(u))))[order]
    start = np.concatenate(([0], np.cumsum(np.bincount(ends, minlength=number))))
    gamma = 1.0 / np.maximum(1, np.maximum(before, after))
    return _Flat(first, theta, u, v, entry.astype(np.int64), matrix, to_v.astype(np.int64), to_u.astype(np.int64), start, edge, gamma)


@njit(cache=True)
def _hat(s, hat, first, theta, u, to_v, to_u, start, edge, messages):  # type: ignore[no-untyped-def]
    k = first[s + 1] - first[s]
    for x in range(k):
        hat[x] = theta[first[s] + x]
    for i in range(start[s], start[s + 1]):
        e = edge[i]
        place = to_u[e] if u[e] == s else to_v[e]
        for x in range(k):
            hat[x] += messages[place + x]
    return k


@njit(cache=True)
def _sweeps(times, first, theta, u, v, entry, matrix, to_v, to_u, start, edge, gamma, messages, alive, upper, bound, forbidden):  # type: ignore[no-untyped-def]
    number = len(first) - 1
    widest = 1
    for s in range(number):
        widest = max(widest, first[s + 1] - first[s])
    hat, sent, new = np.empty(widest), np.empty(widest), np.empty(widest)
    for turn in range(2 * times):
        forward = turn % 2 == 0
        total = 0.0
        for step in range(number):
            s = step if forward else number - 1 - step
            k = _hat(s, hat, first, theta, u, to_v, to_u, start, edge, messages)
            least = hat[0]
            for x in range(1, k):
                least = min(least, hat[x])
            total += least
            for x in range(k):
                hat[x] -= least
                if alive[first[s] + x] and bound + hat[x] >= upper:
                    alive[first[s] + x] = False
                    theta[first[s] + x] += forbidden
                    hat[x] += forbidden
            for i in range(start[s], start[s + 1]):
                e = edge[i]
                up = u[e] == s  # the message goes to the later node
                if up != forward:
                    continue
                other = v[e] if up else u[e]
                j = first[other + 1] - first[other]
                back, place = (to_u[e], to_v[e]) if up else (to_v[e], to_u[e])
                for x in range(k):
                    sent[x] = gamma[s] * hat[x] - messages[back + x]
                base = entry[e]
                if up:
                    for y in range(j):
                        new[y] = np.inf
                    for x in range(k):
                        for y in range(j):
                            c = sent[x] + matrix[base + x * j + y]
                            if c < new[y]:
                                new[y] = c
                else:
                    for y in range(j):
                        low = np.inf
                        for x in range(k):
                            c = sent[x] + matrix[base + y * k + x]
                            if c < low:
                                low = c
                        new[y] = low
                low = new[0]
                for y in range(1, j):
                    low = min(low, new[y])
                total += low
                for y in range(j):
                    messages[place + y] = new[y] - low
        bound = max(bound, total)
        if bound >= upper:
            break
    return bound


@njit(cache=True)
def _hats(first, theta, u, v, to_v, to_u, start, edge, messages):  # type: ignore[no-untyped-def]
    out = np.empty(first[-1])
    for s in range(len(first) - 1):
        _hat(s, out[first[s] : first[s + 1]], first, theta, u, to_v, to_u, start, edge, messages)
    return out


@njit(cache=True)
def _rounded(first, theta, u, v, entry, matrix, to_v, to_u, start, edge, messages):  # type: ignore[no-untyped-def]
    number = len(first) - 1
    choice = np.zeros(number, dtype=np.int64)
    for s in range(number):
        k = first[s + 1] - first[s]
        best, low = 0, np.inf
        for x in range(k):
            c = theta[first[s] + x]
            for i in range(start[s], start[s + 1]):
                e = edge[i]
                if u[e] == s:
                    c += messages[to_u[e] + x]
                else:
                    c += matrix[entry[e] + choice[u[e]] * k + x]
            if c < low:
                best, low = x, c
        choice[s] = best
    return choice
