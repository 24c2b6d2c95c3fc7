"""Interned tables: equal tables have one number, and the result of a step on tables is computed once and then looked up.

The layers of a model repeat, so each step costs only a lookup for all layers but the first.  The layers may still choose different strategies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from planner.solve.per_array import PerArray
from planner.solve.problem import Floats, Ints
from planner.solve.reduce.prune import survivors

__all__ = ["PLAIN", "MatrixForm", "InternedTables"]


@dataclass(frozen=True, slots=True)
class MatrixForm:
    """Properties of a matrix (rows: strategies of u, columns: of v); None if it does not have them.

    rows, columns: those with a finite entry, if some have none.   column_of: the only finite column of each row.   row_of: likewise.
    parts: numbers of the row costs and column costs whose sum it is.
    """

    rows: tuple[int, ...] | None
    columns: tuple[int, ...] | None
    column_of: tuple[int, ...] | None
    row_of: tuple[int, ...] | None
    parts: tuple[int, int] | None


PLAIN = MatrixForm(None, None, None, None, None)
"""Of a matrix that has none of these properties."""
_AT_ONCE = 1 << 15
"""Entries of a sum that is held as a whole; a larger one is made strategy by strategy."""


class InternedTables:
    """Canonical tables and the steps already done with them.  A table's number is its identity."""

    def __init__(self) -> None:
        self.tables: list[Floats] = []
        self._given: PerArray[int] = PerArray()
        self._by_hash: dict[tuple[tuple[int, ...], int], list[int]] = {}
        self._flipped: dict[int, int] = {}
        self._transposed: dict[tuple[int, tuple[int, ...]], int] = {}
        self._steps: dict[tuple[object, ...], tuple[int, Ints]] = {}
        self._taken: dict[tuple[int, int, tuple[int, ...]], int] = {}
        self._picked: dict[tuple[int, tuple[int, ...]], int] = {}
        self._single: dict[tuple[int, int], int] = {}
        self._undominated: dict[tuple[object, ...], tuple[int, ...]] = {}
        self._finite: dict[int, NDArray[np.bool_] | None] = {}
        self._sums: dict[tuple[int, int], int] = {}
        self._forms: dict[int, MatrixForm] = {}
        self._raised: dict[int, tuple[float, int | None]] = {}

    def number(self, table: Floats) -> int:
        """The number of a table; equal tables have the same number."""
        content = np.asarray(table, dtype=np.float64, order="C")
        data = content.tobytes()
        alike = self._by_hash.setdefault((content.shape, hash(data)), [])
        for number in alike:
            if self.tables[number].tobytes() == data:
                return number
        alike.append(len(self.tables))
        self.tables.append(content)
        return alike[-1]

    def number_of_given(self, table: Floats) -> int:
        """The number of an array of the problem itself, which many nodes or edges share."""
        return self._given.of(table, self.number)

    def flip(self, number: int) -> int:
        """The number of a matrix' transpose."""
        flipped = self._flipped.get(number)
        if flipped is None:
            flipped = self._flipped[number] = self.number(np.asarray(self.tables[number].T, order="C"))
            self._flipped[flipped] = number
        return flipped

    def transpose(self, number: int, order: tuple[int, ...]) -> int:
        """The number of a table with its dims in another order."""
        if order == (1, 0):
            return self.flip(number)
        key = (number, order)
        if (known := self._transposed.get(key)) is not None:
            return known
        if order == tuple(range(len(order))):
            self._transposed[key] = number
            return number
        transposed = self.number(np.asarray(self.tables[number].transpose(order), order="C"))
        self._transposed[key] = transposed
        return transposed

    def add(self, a: int, b: int) -> int:
        key = (a, b) if a < b else (b, a)
        if key not in self._sums:
            self._sums[key] = self.number(self.tables[a] + self.tables[b])
        return self._sums[key]

    def take(self, number: int, dim: int, entries: tuple[int, ...]) -> int:
        """The entries ``entries`` of a dim, in that order; one may be taken several times."""
        key = (number, dim, entries)
        if key not in self._taken:
            self._taken[key] = self.number(np.take(self.tables[number], entries, axis=dim))
        return self._taken[key]

    def pick(self, number: int, table: tuple[int, ...]) -> int:
        """Entry (table[s], s) of a matrix for every column s."""
        key = (number, table)
        if key not in self._picked:
            self._picked[key] = self.number(self.tables[number][np.array(table), np.arange(len(table))])
        return self._picked[key]

    def finite(self, number: int) -> NDArray[np.bool_] | None:
        """Which entries of a table are finite; None: all."""
        if number not in self._finite:
            finite = np.isfinite(self.tables[number])
            self._finite[number] = None if finite.all() else finite
        return self._finite[number]

    def only(self, number: int, dim: int) -> int:
        """The table without a dim of extent 1."""
        key = (number, dim)
        if key not in self._single:
            self._single[key] = self.number(self.tables[number].squeeze(axis=dim))
        return self._single[key]

    def above_least(self, number: int) -> tuple[float, int | None]:
        """(least entry, number of the table minus that entry; None if that is 0 everywhere)."""
        least_and_rest = self._raised.get(number)
        if least_and_rest is None:
            amount = self.tables[number]
            least = float(amount.min())
            rest = amount - least
            least_and_rest = self._raised[number] = (least, self.number(rest) if rest.any() else None)
        return least_and_rest

    def form(self, number: int) -> MatrixForm:
        """The properties of a matrix."""
        form = self._forms.get(number)
        if form is None:
            form = self._forms[number] = self._formed(self.tables[number])
        return form

    def _formed(self, matrix: Floats) -> MatrixForm:
        finite = np.isfinite(matrix)
        if finite.all():
            row, column = matrix[:, 0], matrix[0] - matrix[0, 0]
            parts = (self.number(row.copy()), self.number(column)) if (matrix == row[:, None] + column).all() else None
            one = tuple(0 for _ in row) if matrix.shape[1] == 1 else None
            form = MatrixForm(None, None, one, tuple(0 for _ in column) if matrix.shape[0] == 1 else None, parts)
            return PLAIN if form == PLAIN else form
        per_row, per_column = finite.sum(axis=1), finite.sum(axis=0)
        form = MatrixForm(
            rows=None if per_row.all() else tuple(np.flatnonzero(per_row).tolist()),
            columns=None if per_column.all() else tuple(np.flatnonzero(per_column).tolist()),
            column_of=tuple(finite.argmax(axis=1).tolist()) if per_row.max() <= 1 else None,
            row_of=tuple(finite.argmax(axis=0).tolist()) if per_column.max() <= 1 else None,
            parts=None,
        )
        return PLAIN if form == PLAIN else form

    def undominated(self, numbers: tuple[int, ...], held: tuple[tuple[int, int, int], ...]) -> tuple[int, ...]:
        """Strategies (dim 0 of every table) that no other dominates; of equal ones the first.   held: (start, stop, table of amounts)."""
        key = (numbers, held)
        surviving = self._undominated.get(key)
        if surviving is None:
            tables = [self.tables[number] for number in numbers]
            cost = np.sum([t for t in tables if t.ndim == 1], axis=0, dtype=np.float64)
            parts = [t for t in tables if t.ndim == 2]
            size = len(tables[0])
            if size == 1:
                surviving = (0,)
            else:
                rows = np.ascontiguousarray(np.concatenate(parts, axis=1)) if parts else np.empty((size, 0))
                ends = np.cumsum([t.shape[1] for t in parts], dtype=np.int64)
                lives = survivors(np.broadcast_to(cost, size).copy(), rows, ends, self._profile(held, size))
                surviving = tuple(np.flatnonzero(lives).tolist())
            self._undominated[key] = surviving
        return surviving

    def _profile(self, held: tuple[tuple[int, int, int], ...], size: int) -> Floats:
        """[strategy, interval]: the memory held, on the intervals between the times at which it changes."""
        cuts = sorted({t for a, b, _ in held for t in (a, b)})
        place = {t: i for i, t in enumerate(cuts)}
        profile = np.zeros((size, max(len(cuts) - 1, 0)))
        for a, b, number in held:
            profile[:, place[a] : place[b]] += self.tables[number][:, None]
        return profile

    def minimise(self, parts: Sequence[tuple[int, tuple[int, ...]]], extents: tuple[int, ...]) -> tuple[int, Ints]:
        """Sum tables whose dims are ``places`` in the joint index (node first), then minimise over the node."""
        key = (tuple(parts), extents)
        step = self._steps.get(key)
        if step is None:
            step = self._steps[key] = self._minimised(parts, extents)
        return step

    def _minimised(self, parts: Sequence[tuple[int, tuple[int, ...]]], extents: tuple[int, ...]) -> tuple[int, Ints]:
        aligned = []
        for number, places in parts:
            table = self.tables[number]
            shape = [1] * len(extents)
            for place, extent in zip(places, table.shape, strict=True):
                shape[place] = extent
            aligned.append(table.reshape(shape))  # places ascend, so a reshape aligns the dims
        aligned.sort(key=lambda table: table.size)  # small sums first
        numbers = np.uint8 if extents[0] < 256 else np.uint16
        if prod(extents) <= _AT_ONCE:
            whole = np.broadcast_to(sum(aligned[1:], aligned[0]), extents)
            return self.number(whole.min(axis=0)), whole.argmin(axis=0).astype(numbers)
        # One strategy after another, so that no table over the node and its neighbours is ever held.
        smallest = np.full(extents[1:], np.inf)
        best = np.zeros(extents[1:], dtype=numbers)
        for s in range(extents[0]):
            total: Floats | float = 0.0
            for table in aligned:
                total = total + table[s if len(table) > 1 else 0]
            better = total < smallest
            np.copyto(best, s, where=better, casting="unsafe")
            np.minimum(smallest, total, out=smallest)
        return self.number(smallest), best
