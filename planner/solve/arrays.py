"""A problem in arrays, for compiled code; rows of a matrix that differ by a constant are one class, and equal matrices are stored once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.solve.per_array import PerArray
from planner.solve.problem import Edge, Floats, Ints, Problem

__all__ = ["ProblemArrays", "MatrixClasses", "DemandArrays", "arrays_of", "matrix_classes", "demand_arrays"]


RowColumnClasses = tuple[Ints, Ints, Floats, Floats, Floats]


def matrix_classes(matrix: Floats) -> RowColumnClasses:
    """(class of each row, class of each column, edge_cost[P, Q], extra cost of each row, of each column).

    matrix[s, t] = extra_row[s] + edge_cost[P(s), Q(t)] + extra_column[t], exactly, and equal entries stay forbidden.
    """
    of_row, rows, extra_row = _fold_rows(matrix)
    of_column, columns, extra_column = _fold_rows(np.ascontiguousarray(rows.T))
    return of_row, of_column, np.ascontiguousarray(columns.T), extra_row, extra_column


def _fold_rows(matrix: Floats) -> tuple[Ints, Floats, Floats]:
    """Rows that differ by a constant are one class: (class of each row, the rows of the classes in ascending order, constant of each row)."""
    low = matrix.min(axis=1)
    low = np.where(np.isfinite(low), low, 0.0)
    rest = matrix - low[:, None] + 0.0  # no zero is negative, so equal rows have equal bytes
    contents = [row.tobytes() for row in rest]
    first: dict[bytes, int] = {}
    for number, content in enumerate(contents):
        first.setdefault(content, number)
    distinct = rest[list(first.values())]
    order = np.lexsort(distinct.T[::-1])
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    class_of = dict(zip(first, place.tolist(), strict=True))
    return np.array([class_of[content] for content in contents], dtype=np.int64), distinct[order], low


class MatrixClasses:
    """matrix_classes, done once for equal matrices."""

    def __init__(self) -> None:
        self._given: PerArray[RowColumnClasses] = PerArray()
        self._by_content: dict[tuple[int, bytes], RowColumnClasses] = {}

    def of(self, edge: Edge) -> RowColumnClasses:
        """Classes of an edge's matrix; the same object for equal matrices."""
        return self._given.of(edge.matrix, self._by_numbers)

    def _by_numbers(self, matrix: Floats) -> RowColumnClasses:
        key = (matrix.shape[0], matrix.tobytes())
        if key not in self._by_content:
            self._by_content[key] = matrix_classes(matrix)
        return self._by_content[key]


class ProblemArrays(NamedTuple):
    """A problem in arrays (a named tuple, because compiled code takes one whole).

    first: of node v's strategies, in ``cost``.   near[begin[v] : begin[v+1]]: its edge ends h; end h belongs to edge h // 2.
    other[h]: the node at the far end.   into[h]: where the message to this end lies, an entry per class of this node.
    of[h] : where its class numbers lie, one per strategy, in ``classes``.   edge_cost[at[h] + P * num[h^1] + Q]: this end's class P, far class Q.
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
    edge_cost: Floats


class DemandArrays(NamedTuple):
    """Demands in arrays: those of node v are by_node[v] .. by_node[v + 1]; demand i holds amounts[amount_at[i] + s] in [start[i], stop[i])."""

    by_node: Ints
    node: Ints
    start: Ints
    stop: Ints
    amount_at: Ints
    amounts: Floats


def arrays_of(problem: Problem) -> ProblemArrays:
    """The arrays of a problem; rows of a matrix that differ by a constant become one class."""
    costs = [c.copy() for c in problem.costs]
    ends: list[list[int]] = [[] for _ in costs]
    other, into, num, of, at = [], [], [], [], []
    classes: list[Ints] = []
    edge_costs: list[Floats] = []
    entry_of: dict[tuple[int, bytes], int] = {}  # layers repeat, and so do their matrices: each is stored once
    entries_of: PerArray[tuple[int, int]] = PerArray()
    num_entries = 0

    def stored(matrix: Floats) -> int:
        nonlocal num_entries
        key = (matrix.shape[0], matrix.tobytes())
        if key not in entry_of:
            entry_of[key] = num_entries
            edge_costs.append(matrix.reshape(-1))
            num_entries += matrix.size
        return entry_of[key]

    def stored_both_ways(edge_cost: Floats) -> tuple[int, int]:
        return stored(edge_cost), stored(np.ascontiguousarray(edge_cost.T))

    classes_of = MatrixClasses()
    message = place = 0
    for number, edge in enumerate(problem.edges):
        of_row, of_column, edge_cost, extra_row, extra_column = classes_of.of(edge)
        costs[edge.u] = costs[edge.u] + extra_row
        costs[edge.v] = costs[edge.v] + extra_column
        for side, (here, there, mine) in enumerate(((edge.u, edge.v, of_row), (edge.v, edge.u, of_column))):
            ends[here].append(2 * number + side)
            other.append(there)
            into.append(message)
            num.append(edge_cost.shape[side])
            of.append(place)
            classes.append(mine)
            message += edge_cost.shape[side]
            place += mine.size
            at.append(entries_of.of(edge_cost, stored_both_ways)[side])
    return ProblemArrays(
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
        edge_cost=np.concatenate(edge_costs) if edge_costs else np.empty(0),
    )


def demand_arrays(problem: Problem) -> DemandArrays:
    """The demands of a problem in arrays."""
    demands = sorted(problem.demands, key=lambda d: d.node)
    node = _ints([d.node for d in demands])
    return DemandArrays(
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
