"""The executor that ``--on`` names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import assert_never

from regista.sweep.executors.dask import on_dask
from regista.sweep.executors.local import on_processes
from regista.sweep.executors.lost import Done, Work
from regista.sweep.executors.ray import on_ray
from regista.sweep.executors.slurm import on_slurm
from regista.sweep.executors.where import Kind, Where
from regista.sweep.point import Point

__all__ = ["results"]


def results(points: Sequence[Point], work: Work, where: Where, *, jobs: int, folder: Path) -> Iterator[Done]:
    """Each point with its columns, in the order in which they are done; a point whose worker is lost is done again.

    Args:
        work: a function of a module, called in other processes.   jobs: processes or jobs at a time, where they are ours to start.
        folder: for files of jobs, of which Slurm has some.
    """
    match where.kind:
        case Kind.LOCAL:
            return on_processes(points, work, jobs)
        case Kind.DASK:
            return on_dask(points, work, where.address)
        case Kind.SLURM:
            return on_slurm(points, work, where.address, jobs, folder)
        case Kind.RAY:
            return on_ray(points, work, where.address)
    assert_never(where.kind)
