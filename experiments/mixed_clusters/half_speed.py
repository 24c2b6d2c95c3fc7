"""A worker whose compute acts last as long as on a slower device: so many times their own processor time, TIMES by rank.

    act      |#### computes, c seconds of processor time ####|---- sleeps until TIMES[rank] c have passed ----|

Results are the same, so are messages and their waits.  Processor time, and not what a clock shows, is what is stretched: on a machine that others
use too, an act lasts as long as on an idle one, while it gets a processor for 1 / TIMES[rank] of the time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from backend.launch import processes
from backend.worker import process
from backend.worker.rank import RankBody
from planner.ir.plan import Task

__all__ = ["main", "slowed_workers"]

VARIABLE = "SLOW_PROCESS_TIMES"


@contextmanager
def slowed_workers(times: Sequence[float]) -> Iterator[None]:
    """In runs that begin inside, compute acts of rank r last times[r] times their processor time."""
    usual = processes.WORKER
    processes.WORKER, os.environ[VARIABLE] = __name__, " ".join(map(str, times))
    try:
        yield
    finally:
        processes.WORKER = usual
        del os.environ[VARIABLE]


def main(path: str) -> int:
    """The worker, as the fork server calls it."""
    times = float(os.environ[VARIABLE].split()[int(os.environ["RANK"])])
    at_full_speed = RankBody.computed

    def slowed(
        body: RankBody, task: Task, values: list[Tensor], slots: list[Tensor], micro_batch: int
    ) -> list[Tensor] | tuple[Tensor, ...]:
        began_s, used_s = time.perf_counter(), time.thread_time()
        results = at_full_speed(body, task, values, slots, micro_batch)
        ends_s = began_s + times * (time.thread_time() - used_s)
        time.sleep(max(0.0, ends_s - time.perf_counter()))
        return results

    RankBody.computed = slowed  # type: ignore[method-assign]
    return process.main(path)
