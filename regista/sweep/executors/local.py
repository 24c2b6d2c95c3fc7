"""Processes of this machine."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool

from regista.sweep.executors.lost import MOST_LOSSES, Done, Work, refuse_lost, tell_lost
from regista.sweep.point import Point

__all__ = ["on_processes"]


def on_processes(points: Sequence[Point], work: Work, jobs: int) -> Iterator[Done]:
    """Each point with its columns, as they are done.  A process that ends takes its pool with it; what is left goes to a new one.

    Raises:
        WorkersLost: three pools in a row ended without a row.
    """
    waiting, losses = list(points), 0
    while waiting:
        lost = []
        # Spawned, not forked: torch and numba have threads.
        with ProcessPoolExecutor(min(jobs, len(waiting)), multiprocessing.get_context("spawn")) as pool:
            futures = {pool.submit(work, point): point for point in waiting}
            try:
                for future in as_completed(futures):
                    point = futures[future]
                    try:
                        columns = future.result()
                    except BrokenProcessPool:
                        lost.append(point)
                    else:
                        yield point, columns
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        losses = losses + 1 if len(lost) == len(waiting) else 0
        waiting = lost
        if losses == MOST_LOSSES:
            raise refuse_lost(lost, "a process of this machine")
        if lost:
            tell_lost(lost, "a process of this machine")
