"""What takes the time of the busiest placement, at the prices of the Plan's cluster, as if nothing overlapped."""

from __future__ import annotations

from dataclasses import dataclass

from planner.ir.plan import Plan
from regista.analysis.budget import spending

__all__ = ["Limiter", "limiter"]

_LEAST = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Limiter:
    """placement: the one whose tasks take longest in sum.   parts: (what, share of its time), the largest first; below 1 % left out.

    moving: share of its time in which something is sent or gathered.
    """

    placement: str
    moving: float
    parts: tuple[tuple[str, float], ...]


def limiter(plan: Plan) -> Limiter:
    """Where the time of the busiest placement goes, by kind of task, and by link for what moves."""
    times: dict[str, dict[str, float]] = {placement.id: {} for placement in plan.placements}
    moving_s = dict.fromkeys(times, 0.0)
    for spent in spending(plan):
        what = f"{spent.what} over {spent.link}" if spent.moves and spent.link != "-" else spent.what
        here = times[spent.placement]
        here[what] = here.get(what, 0.0) + spent.time_s
        moving_s[spent.placement] += spent.time_s if spent.moves else 0.0
    busiest = max(times, key=lambda placement: sum(times[placement].values()))
    total_s = sum(times[busiest].values()) or 1.0
    shares = sorted(((what, time_s / total_s) for what, time_s in times[busiest].items()), key=lambda part: -part[1])
    return Limiter(placement=busiest, moving=moving_s[busiest] / total_s, parts=tuple(part for part in shares if part[1] >= _LEAST))
