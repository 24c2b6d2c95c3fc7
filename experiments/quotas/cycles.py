"""Cuts for the relaxation: around any cycle the quotas add up to a whole number.

Add up the rows of experiments.quotas.linear around a cycle of fixed arcs and rings: the start times cancel, and

    sum over rings of the cycle of q_r  >=  W  =  sum of the rows' right-hand sides,     so for whole quotas   >= ceil(W)        (1)

Which cycles?  The duals of those rows are a circulation: what flows into an act flows out.  It falls apart into cycles of tight rows, on which
the real quotas add up to W exactly, so each of them with a W that is not whole is violated by (1).                   -> cycle_cuts()

Source: Chvatal-Gomory cuts (Gomory 1958; Chvatal 1973) of the rows around a cycle; flow decomposition as in Ahuja, Magnanti & Orlin 1993, 3.5.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from simulator.quotas.problem import Floats, Ints

__all__ = ["Cuts", "cycle_cuts"]

_WHOLE = 1e-6
"""A sum of right-hand sides that is so little above a whole number counts as that number: what solvers and periods round never cuts."""
_WORTH = 0.02
"""Cuts that are violated by less are left out."""
_LONG = 64
"""Room for so many arcs per cycle on average; what does not fit is left out."""


class Cuts(NamedTuple):
    """Rows  sum of times x q_buffer >= least:  row i has the entries first[i] : first[i + 1] (the last one: to the end)."""

    least: Floats
    first: Ints
    buffer: Ints
    times: Floats


@numba.njit(cache=True)
def _peeled(pointer, out, tail, head, flow):  # type: ignore[no-untyped-def]
    """Cycles of a circulation, one after another, each taken off it; ``flow`` is used up.  out: arcs by tail, in CSR with pointer."""
    nodes = len(pointer) - 1
    turn = pointer[:-1].copy()
    depth_of = np.full(nodes, -1, np.int64)
    path = np.empty(nodes + 1, np.int64)
    flat = np.empty(_LONG * len(tail), np.int64)
    first = np.zeros(len(tail) + 1, np.int64)
    count = size = 0
    for root in range(nodes):
        while True:
            depth, at = 0, root
            while depth_of[at] < 0:
                depth_of[at] = depth
                while turn[at] < pointer[at + 1] and flow[out[turn[at]]] <= 1e-9:
                    turn[at] += 1
                if turn[at] == pointer[at + 1]:
                    break
                path[depth] = out[turn[at]]
                at = head[path[depth]]
                depth += 1
            begin = depth_of[at]
            if begin < depth:
                least = flow[path[begin]]
                for k in range(begin, depth):
                    least = min(least, flow[path[k]])
                for k in range(begin, depth):
                    flow[path[k]] -= least
                if size + depth - begin <= len(flat) and count < len(tail):
                    flat[size : size + depth - begin] = path[begin:depth]
                    size += depth - begin
                    count += 1
                    first[count] = size
            elif depth > 0:
                flow[path[depth - 1]] = 0.0  # a rest of rounding that leads nowhere
            for k in range(depth):
                depth_of[tail[path[k]]] = -1
            depth_of[at] = -1
            if depth == 0:
                break
    return flat[:size], first[: count + 1]


def cycle_cuts(num_nodes: int, tail: Ints, head: Ints, low: Floats, buffer: Ints, flow: Floats) -> Cuts:
    """(1) for the cycles of a circulation.

    Args:
        tail, head: per row, in the direction in which the rows add up: a ring goes from its consumer to its producer.
        low: the rows' right-hand sides, in periods.   buffer: of a ring; -1 for fixed arcs.   flow: the rows' duals, >= 0.
    """
    out = np.argsort(tail, kind="stable")
    pointer = np.concatenate([[0], np.cumsum(np.bincount(tail, minlength=num_nodes))])
    flat, first = _peeled(pointer, out, tail, head, flow.copy())
    least: list[float] = []
    begins: list[int] = []
    buffers: list[int] = []
    counts: list[int] = []
    seen: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
    for begin, end in zip(first, first[1:], strict=False):
        arcs = flat[begin:end]
        total = float(low[arcs].sum())
        whole = float(np.ceil(total - _WHOLE))
        names, times = np.unique(buffer[arcs[buffer[arcs] >= 0]], return_counts=True)
        key = tuple(names.tolist()), tuple(times.tolist())
        if whole - total < _WORTH or not len(names) or key in seen:
            continue
        seen.add(key)
        least.append(whole)
        begins.append(len(buffers))
        buffers += key[0]
        counts += key[1]
    return Cuts(np.array(least), np.array(begins, dtype=np.int64), np.array(buffers, dtype=np.int64), np.array(counts, dtype=np.float64))
