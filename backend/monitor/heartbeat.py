"""A worker's heartbeat: twice a second, what its acts have taken since the last one, appended to a file that the launcher reads.

A thread of its own looks at the rows of the event loop, which only ever grow; the acts themselves pay nothing for it.  A heartbeat looks at no more
than the newest MOST_ROWS rows, so that a run of very short acts is not slowed down either, and it names no more than the MOST_TASKS busiest
tasks and the MOST_ENDS last steps, so that a long run does not fill the disk.

    rank0.heartbeat:  {"rank": 0, "begin_s": .., "end_s": .., "compute_s": .., "busy_s": {"task": ..}, "ends_s": [[step, ..], ..]}

One line per heartbeat.

The time of a collective holds its wait for the peers: whoever reads the heartbeats of all ranks takes the least of them.
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from backend.monitor.tail import Tail
from planner.ir.plan import Plan, StreamKind, TaskKind

__all__ = ["Heartbeat", "HeartbeatReader", "heartbeat_of", "writing_heartbeats"]

PERIOD_S = 0.5
MOST_ROWS = 2000
MOST_TASKS = 32
MOST_ENDS = 21

Row = tuple[int, int, int, int, int]
"""backend.worker.loop.ActRow: (task's place in the Plan, number, ready, start, end), times in ns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """What one rank did between begin_s and end_s (its clock).

    busy_s: task id -> seconds, of the busiest.   compute_s: of all tasks on compute streams.   ends_s: (step, when its loss was there).
    """

    rank: int
    begin_s: float
    end_s: float
    busy_s: Mapping[str, float]
    compute_s: float = 0.0
    ends_s: tuple[tuple[int, float], ...] = ()


def heartbeat_of(plan: Plan, rank: int, rows: Sequence[Row], begin_ns: int, end_ns: int) -> Heartbeat:
    """Sum up rows.  An act counts whole in the heartbeat in which it ended, so that over several nothing is lost and nothing counts twice."""
    busy: dict[str, int] = defaultdict(int)
    ends: list[tuple[int, float]] = []
    for place, number, _, start_ns, finish_ns in rows:
        task = plan.tasks[place]
        busy[task.id] += finish_ns - start_ns
        if task.kind is TaskKind.FETCH:
            ends.append((number // task.acts, finish_ns * 1e-9))
    compute = sum(duration for task, duration in busy.items() if plan.stream[plan.task[task].stream].kind is StreamKind.COMPUTE)
    busiest = sorted(busy.items(), key=lambda entry: -entry[1])[:MOST_TASKS]
    return Heartbeat(
        rank=rank,
        begin_s=begin_ns * 1e-9,
        end_s=end_ns * 1e-9,
        busy_s={task: duration * 1e-9 for task, duration in busiest},
        compute_s=compute * 1e-9,
        ends_s=tuple(ends[-MOST_ENDS:]),
    )


@contextmanager
def writing_heartbeats(plan: Plan, rank: int, rows: Sequence[Row], folder: Path, *, period_s: float = PERIOD_S) -> Iterator[None]:
    """Append a heartbeat to the rank's file every ``period_s`` while the body runs.  A full disk ends the heartbeats, not the run."""
    stop = threading.Event()
    thread = threading.Thread(target=_write_heartbeats, args=(plan, rank, rows, folder, period_s, stop), daemon=True, name="heartbeats")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _write_heartbeats(plan: Plan, rank: int, rows: Sequence[Row], folder: Path, period_s: float, stop: threading.Event) -> None:
    seen, begin_ns = 0, time.monotonic_ns()
    while not stop.wait(period_s):
        count, end_ns = len(rows), time.monotonic_ns()
        first = max(seen, count - MOST_ROWS)
        new_rows = list(rows[first:count])
        if first > seen:
            begin_ns = new_rows[0][3]  # older rows are skipped, so their time is no part of this heartbeat
        line = _line(heartbeat_of(plan, rank, new_rows, begin_ns, end_ns))
        seen, begin_ns = count, end_ns
        try:
            with (folder / f"rank{rank}.heartbeat").open("a") as file:
                file.write(line + "\n")
        except OSError:
            return


def _line(heartbeat: Heartbeat) -> str:
    return json.dumps(asdict(heartbeat))


@dataclass
class HeartbeatReader:
    """Reads the heartbeats that were appended to the files of a run's folder since it last looked."""

    folder: Path
    _tails: dict[Path, Tail] = field(default_factory=dict)

    def new_heartbeats(self) -> list[Heartbeat]:
        """The new heartbeats of all ranks, those of a rank in the order of time."""
        heartbeats: list[Heartbeat] = []
        for path in sorted(self.folder.glob("rank*.heartbeat")):
            for line in self._tails.setdefault(path, Tail(path)).new_lines().splitlines():
                data = json.loads(line)
                ends = tuple((int(step), float(end_s)) for step, end_s in data.pop("ends_s"))
                heartbeats.append(Heartbeat(**data, ends_s=ends))
        return heartbeats
