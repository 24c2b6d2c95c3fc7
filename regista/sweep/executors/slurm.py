"""Jobs of Slurm, as an array (submitit).  Each job takes a share of the points; a job that is lost is submitted again."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from planner.ir.errors import RegistaError, Unsupported
from regista.sweep.executors.lost import MOST_LOSSES, Done, Work, missing_package, refuse_lost, tell_lost
from regista.sweep.measure import Columns
from regista.sweep.point import Point

__all__ = ["on_slurm"]

_SHARES = 4
"""Jobs for each of --jobs: rows come in as jobs end, and a lost job loses only its share."""

_HOURS = 24
_LOOK_S = 0.5


class _Share:
    """Performs several points one after the other; goes to a job as it is."""

    def __init__(self, work: Work) -> None:
        self.work = work

    def __call__(self, points: Sequence[Point]) -> list[Columns]:
        return [self.work(point) for point in points]


def on_slurm(points: Sequence[Point], work: Work, partition: str, jobs: int, folder: Path) -> Iterator[Done]:
    """Each point with its columns, as jobs are done.

    Args:
        jobs: so many run at a time.   folder: for scripts, logs and results; all nodes see it.

    Raises:
        RegistaError: 'submitit' is missing.   Unsupported: no Slurm here, or it refuses.   WorkersLost: jobs are lost again and again.
    """
    try:
        from submitit import SlurmExecutor
        from submitit.core.utils import FailedJobError, FailedSubmissionError, UncompletedJobError
    except ImportError:
        raise missing_package("submitit", "slurm") from None
    try:
        executor = SlurmExecutor(folder=folder)
    except RuntimeError as error:
        raise Unsupported(f"--on slurm:{partition}: {error}; run this where Slurm's commands are, or use --on local") from None
    executor.update_parameters(
        partition=partition, time=_HOURS * 60, cpus_per_task=1, ntasks_per_node=1, array_parallelism=jobs, job_name="regista-sweep"
    )
    size = -(-len(points) // (_SHARES * jobs))
    shares = [list(points[first : first + size]) for first in range(0, len(points), size)]
    losses = 0
    while shares:
        try:
            submitted = list(zip(executor.map_array(_Share(work), shares), shares, strict=True))
        except FailedSubmissionError as error:
            raise Unsupported(f"Slurm refuses the jobs of partition {partition!r}: {str(error).strip()[-200:]}") from None
        lost: list[list[Point]] = []
        began = len(submitted)
        try:
            while submitted:
                ended = [(job, share) for job, share in submitted if job.done()]
                submitted = [pair for pair in submitted if pair not in ended]
                for job, share in ended:
                    try:
                        columns = job.result()
                    except UncompletedJobError:
                        lost.append(share)
                    except FailedJobError as error:
                        raise RegistaError(f"a job of Slurm failed: {str(error).strip()[-300:]} (logs in {folder})") from None
                    else:
                        yield from zip(share, columns, strict=True)
                if submitted and not ended:
                    time.sleep(_LOOK_S)
        finally:
            for job, _ in submitted:
                job.cancel()
        losses = losses + 1 if len(lost) == began else 0
        shares = lost
        points_lost = [point for share in lost for point in share]
        if losses == MOST_LOSSES:
            raise refuse_lost(points_lost, "a job of Slurm")
        if lost:
            tell_lost(points_lost, "a job of Slurm")
