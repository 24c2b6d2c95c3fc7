"""Where the points of a sweep are planned and simulated: processes of this machine, workers of Dask or Ray, jobs of Slurm."""

from regista.sweep.executors.choose import results
from regista.sweep.executors.where import LOCAL, Kind, Where, parse_where

__all__ = ["LOCAL", "Kind", "Where", "parse_where", "results"]
