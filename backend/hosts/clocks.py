"""One clock for several hosts, from round trips to rank 0.

    another host   t0 ---------------> rank 0, says its time s      offset of rank 0's clock = s - (t0 + t1) / 2
                   t1 <---------------                              wrong by at most (t1 - t0) / 2, however unequal the two ways are

(1) of several round trips the shortest is the best one; its half is the bound                                     -> estimate()
(2) clocks drift (by 10 ppm or so: 36 ms in an hour), so the offset is taken before and after the run,
    and a time in between is corrected by the linear interpolation of the two                                      -> Correction.apply()
(3) a time before the first or after the second is corrected by the nearer one: on a short run most of their difference is error, which
    extrapolation would enlarge
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Correction", "Estimate", "Ping", "estimate"]

Ping = tuple[int, int, int]
"""(t0, s, t1): when it was sent here, answered at rank 0, and received here; ns, each of its host's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Rank 0's clock is at time at_ns of this host's clock ahead of it by offset_ns, give or take bound_ns."""

    at_ns: int
    offset_ns: int
    bound_ns: int


def estimate(pings: Sequence[Ping]) -> Estimate:
    """The best of several round trips (1).

    >>> estimate([(100, 1000, 400), (500, 1150, 520)])
    Estimate(at_ns=510, offset_ns=640, bound_ns=10)
    """
    sent, answered, back = min(pings, key=lambda ping: ping[2] - ping[0])
    middle = (sent + back) // 2
    return Estimate(at_ns=middle, offset_ns=answered - middle, bound_ns=(back - sent + 1) // 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Moves times of this host's clock onto rank 0's (2), (3).   bound_ns: how wrong a moved time may be, if the drift was even."""

    before: Estimate
    after: Estimate

    @property
    def bound_ns(self) -> int:
        return max(self.before.bound_ns, self.after.bound_ns)

    def apply(self, times_ns: Tensor) -> Tensor:
        """Times of this host's clock -> of rank 0's; int64 tensors of any shape.  Keeps their order."""
        span = max(1, self.after.at_ns - self.before.at_ns)
        drift = (self.after.offset_ns - self.before.offset_ns) / span
        moved = (times_ns - self.before.at_ns).clamp(0, span).to(torch.float64) * drift
        return times_ns + self.before.offset_ns + moved.round().to(torch.int64)
