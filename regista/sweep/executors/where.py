"""What ``--on`` names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from planner.ir.errors import Unsupported

__all__ = ["LOCAL", "Kind", "Where", "parse_where"]


class Kind(Enum):
    """Who hands points to processes."""

    LOCAL = "local"
    DASK = "dask"
    SLURM = "slurm"
    RAY = "ray"


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """address: HOST:PORT of a Dask scheduler or of Ray's client server, a partition of Slurm; empty for this machine."""

    kind: Kind
    address: str = ""

    @property
    def has_workers(self) -> bool:
        """Whether the number of processes is the cluster's and not ours to say."""
        return self.kind in (Kind.DASK, Kind.RAY)


LOCAL = Where(kind=Kind.LOCAL)

_FORMS = "local, dask://HOST:PORT, slurm:PARTITION or ray://HOST:PORT"
_HOST = r"(?:[A-Za-z0-9_.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):[0-9]{1,5}"


def parse_where(text: str) -> Where:
    """``--on`` as it is written.

    Raises:
        Unsupported: it names no executor.

    >>> parse_where("dask://head:8786").address
    'head:8786'
    """
    if text == "local":
        return LOCAL
    if found := re.fullmatch(rf"(dask|ray)://({_HOST})", text):
        return Where(kind=Kind(found[1]), address=found[2])
    if found := re.fullmatch(r"slurm:([A-Za-z0-9_.,-]{1,100})", text):
        return Where(kind=Kind.SLURM, address=found[1])
    raise Unsupported(f"--on {text!r:.80}: sweeps are performed on {_FORMS}")
