"""Which cores a worker of this host computes on, and how it waits for the others.

A message wakes its reader on the core of its sender (the kernel takes both for one conversation), where it waits until the sender is done, while
another core idles: 34 to 190 us on 2 cores.  Workers with cores of their own wake where they run (28 to 50 us) [measured:
experiments.benchmarks.acts, 2 cores, 2026-11-23], and while nothing runs, a worker looks for messages instead of sleeping: 40 us in the median by
sockets, 19 by shared memory (backend.comm.host.inbox), on a slower machine [2026-11-29].
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

__all__ = ["LOOKING_NS", "Waiting", "bind", "cores_here", "share_of"]

LOOKING_NS = 500_000
"""So long a worker without anything to do looks for messages before it sleeps."""

_TOPOLOGY = Path("/sys/devices/system/cpu")


class Waiting(StrEnum):
    """AUTO: workers of one host have cores of their own, and look for messages before they sleep, where there is a core for each of two or
    more.  SLEEP: they take any core, and sleep at once; for machines whose cores others use as well.
    """

    AUTO = "auto"
    SLEEP = "sleep"


def share_of(cores: Sequence[int], rank: int, ranks: int) -> tuple[int, ...]:
    """The cores of one of the ranks: neighbours, as many as of the others, or one more.  Empty: a rank alone, or fewer cores than ranks."""
    if ranks < 2 or len(cores) < ranks:
        return ()
    return tuple(cores[rank * len(cores) // ranks : (rank + 1) * len(cores) // ranks])


def cores_here() -> tuple[int, ...]:
    """Cores that this process may use, those that share a package or a core side by side; none where the system does not say."""
    if not hasattr(os, "sched_getaffinity"):
        return ()
    return tuple(sorted(os.sched_getaffinity(0), key=lambda cpu: (_place(cpu, "physical_package_id"), _place(cpu, "core_id"), cpu)))


def _place(cpu: int, name: str) -> int:
    try:
        return int((_TOPOLOGY / f"cpu{cpu}/topology/{name}").read_text())
    except (OSError, ValueError):
        return 0


def bind(waiting: Waiting, rank: int, ranks: int) -> tuple[int, ...]:
    """Give this thread, and those that it starts, the cores of its rank.  Returns them; none: nothing was bound."""
    own = share_of(cores_here(), rank, ranks) if waiting is Waiting.AUTO else ()
    if own:
        os.sched_setaffinity(0, own)
    return own
