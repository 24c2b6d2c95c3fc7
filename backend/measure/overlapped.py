"""How much slower a rank computes while it communicates, from the acts of real steps and the same acts with nothing beside them.

    in a real step    |--- backward ----~~~~~~~~~~~----|        ~~~ beside a collective of its rank
    alone             |--- backward -----------|

Collectives of CPU processes are worked out by a thread of their own, which shares the rank's core with the one that computes.  Of an act that
takes a seconds alone, and is beside communication for c seconds of a real step,

    duration / a  =  speed of the machine then  +  (1 - 1 / slowdown) c / a                                                           (1)

fitted over all acts, each with the weight a; the first term takes up that a shared machine is slower at one time than at another.  ZeRO 3 of a
GPT on 2 cores: acts took 1.8 to 2.3 times as long there, and steps were predicted 4 to 10 % too short without it [2 ranks, gloo, 2026-11-22].
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

import numpy as np

from planner.ir.plan import Plan
from planner.ir.traces.spans import Span, disjoint
from planner.ir.traces.trace import Act, Trace

__all__ = ["compute_slowdown"]

_LEAST_SHARE = 0.05
"""Of computing that is beside communication; with less the fit would tell noise."""
_MOST = 2.0
"""Two threads that are always busy on one core."""


def compute_slowdown(plan: Plan, trace: Trace, alone_s: Mapping[tuple[str, int], float], warmup: int = 0) -> float:
    """(1), between 1 and 2; 1 where too little of computing is beside communication.

    Args:
        trace: real steps.   alone_s: (task, rank) -> seconds of an act with nothing beside it.   warmup: steps at the beginning that do not count.
    """
    talks: dict[int, list[Span]] = {}
    for act in trace.acts:
        if plan.task[act.task].kind.is_communication:
            talks.setdefault(act.rank, []).append((act.start_s, act.end_s))
    busy = {rank: disjoint(spans) for rank, spans in talks.items()}
    rows = [
        (alone, act.duration_s, _beside_s(act, busy.get(act.rank, ())))
        for act in trace.acts
        if plan.task[act.task].kind.is_compute
        and act.number >= warmup * plan.task[act.task].acts
        and (alone := alone_s.get((act.task, act.rank), 0.0)) > 0
    ]
    if not rows:
        return 1.0
    alone, duration, beside = np.array(rows).T
    if beside.sum() < _LEAST_SHARE * duration.sum():
        return 1.0
    share = beside / alone
    apart = share - np.average(share, weights=alone)
    spread = float(np.sum(alone * apart**2))
    if spread == 0.0:
        return 1.0
    lost = float(np.sum(apart * duration)) / spread
    return float(1 / (1 - min(max(lost, 0.0), 1 - 1 / _MOST)))


def _beside_s(act: Act, busy: Sequence[Span]) -> float:
    """Seconds of the act within ``busy``, which is sorted and disjoint."""
    at = max(bisect_right(busy, (act.start_s, float("inf"))) - 1, 0)
    total_s = 0.0
    for start_s, end_s in busy[at:]:
        if start_s >= act.end_s:
            break
        total_s += max(0.0, min(end_s, act.end_s) - max(start_s, act.start_s))
    return total_s
