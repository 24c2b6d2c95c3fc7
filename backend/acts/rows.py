"""The row that performers write for every act, and the acts of a trace that are made from the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planner.ir.plan import Plan
from planner.ir.traces.trace import Act

__all__ = ["ActRow", "act_of", "acts_of"]

ActRow = tuple[int, int, int, int, int]
"""(task's place in the Plan, number, ready, start, end), times in ns of CLOCK_MONOTONIC, which all processes of a host share."""

_S = 1e-9


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
