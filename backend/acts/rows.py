"""The row that performers write for every act, and the acts of a trace that are made from the rows.

A long run keeps the rows of some steps only.  The newest rows lie in memory; when there are 2 NEWEST of them, the older half leaves it: rows of the
steps that are asked for go to a file.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

from planner.ir.plan import Plan
from planner.ir.traces.trace import Act

__all__ = ["ActRow", "RowLog", "act_of", "acts_of"]

ActRow = tuple[int, int, int, int, int]
"""(task's place in the Plan, number, ready, start, end), times in ns of CLOCK_MONOTONIC, which all processes of a host share."""

_S = 1e-9

NEWEST = 4096


class RowLog(Sequence[ActRow]):
    """Rows of one rank, in the order in which they are appended; only the newest can be read before the end.

    Another thread may ask for its length and its newest rows while rows are appended.

    Args:
        held_steps: (first, end) of the steps whose rows stay.   file: where they lie; made anew.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, plan: Plan, held_steps: Sequence[tuple[int, int]], file: Path) -> None:
        self._acts = [task.acts for task in plan.tasks]
        self._spans, self._path = tuple(held_steps), file
        self._newest: tuple[int, list[ActRow]] = 0, []
        """(number of the first, rows): one value, so that it changes at once."""
        file.write_bytes(b"")

    def append(self, row: ActRow) -> None:
        first, rows = self._newest
        rows.append(row)
        if len(rows) == 2 * NEWEST:
            self._save(rows[:NEWEST])
            self._newest = first + NEWEST, rows[NEWEST:]

    def __len__(self) -> int:
        first, rows = self._newest
        return first + len(rows)

    def __getitem__(self, place: int | slice) -> ActRow | list[ActRow]:  # type: ignore[override]  # a slice is read into a list
        """Of the newest rows.  Of a slice, those that are still in memory.  Raises IndexError: the row is not."""
        first, rows = self._newest
        if isinstance(place, slice):
            begin, end, _ = place.indices(first + len(rows))
            return rows[max(0, begin - first) : max(0, end - first)]
        if not first <= place < first + len(rows):
            raise IndexError(f"row {place} is not among the newest, {first} to {first + len(rows) - 1}")
        return rows[place - first]

    def _save(self, rows: Sequence[ActRow]) -> None:
        held = [row for row in rows if self._holds(row[1] // self._acts[row[0]])]
        if held:
            with self._path.open("ab") as file:
                file.write(array("q", chain.from_iterable(held)))

    def _holds(self, step: int) -> bool:
        place = bisect_right(self._spans, (step, sys.maxsize)) - 1
        return place >= 0 and step < self._spans[place][1]

    def finish(self) -> bytes:
        """After the last act: the rows of the steps that stay, five int64 each."""
        first, rows = self._newest
        self._save(rows)
        self._newest = first + len(rows), []
        return self._path.read_bytes()


def act_of(plan: Plan, rank: int, row: Sequence[int], zero_ns: int) -> Act:
    """The act with times in seconds after ``zero_ns``."""
    place, number, ready, start, end = row
    return Act(plan.tasks[place].id, rank, number, (ready - zero_ns) * _S, (start - zero_ns) * _S, (end - zero_ns) * _S)


def acts_of(plan: Plan, rows: Mapping[int, Sequence[Sequence[int]]]) -> tuple[Act, ...]:
    """The acts of all ranks, from the first ready time on, in order of their starts.

    An act of a collective starts when the last of its ranks has come: waiting for a peer is not work.

    Args:
        rows: rank -> its ActRows.
    """
    zero_ns = min((row[2] for of_rank in rows.values() for row in of_rank), default=0)
    peers: dict[tuple[int, int], tuple[int, ...]] = {}
    last_start_ns: dict[tuple[int, int, tuple[int, ...]], int] = {}
    for rank, of_rank in rows.items():
        for place, number, _, start, _ in of_rank:
            together = peers.setdefault((place, rank), plan.peers(plan.tasks[place], rank))
            if len(together) > 1:
                last_start_ns[place, number, together] = max(last_start_ns.get((place, number, together), 0), start)
    acts: list[Act] = []
    for rank, of_rank in rows.items():
        for place, number, ready, start, end in of_rank:
            # The clocks of two hosts are not quite one (backend.hosts.clocks): never after the end.
            start = min(end, max(start, last_start_ns.get((place, number, peers[place, rank]), start)))
            acts.append(act_of(plan, rank, (place, number, ready, start, end), zero_ns))
    return tuple(sorted(acts, key=lambda act: (act.start_s, act.end_s, act.task, act.rank)))
