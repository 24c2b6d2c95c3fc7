"""A bound on the step of unequal stages, where the search's own objective takes their mean.

    step  =  sum_i t_i + (m - 1) max t_i + max u_i   >=   sum_i t_i + (m - 1) t_b + u_c          for any stages b and c             (1)

With b and c the slowest stages of a good choice, minimising the right side proves nearly what that choice takes: only where making the slowest
stage faster makes another one the slowest does a gap remain.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.search.model import SearchModel
from planner.solve import Ints, solve_exactly

__all__ = ["bottleneck_bound"]


def bottleneck_bound(
    model: SearchModel,
    choice: Ints,
    *,
    s_per_byte: Sequence[float] = (),
    memory_bytes: float = float("inf"),
    seconds: float = float("inf"),
) -> tuple[float, Ints]:
    """(1) for the slowest stages of a choice.

    Args:
        s_per_byte: per stage, what a byte is worth to the search's own objective.   memory_bytes: of a device.
        seconds: the solver stops by then with the bound that it has.

    Returns:
        (lower bound on the step in seconds, the choice behind it, which need not fit in memory).
    """
    micro_s, once_s = model.stage_s(choice)
    turns, stages = model.pipeline_slots, model.staged.num_stages
    micro = np.full(stages, 1.0)
    micro[int(micro_s.argmax())] = model.micro_batches
    once = np.zeros(stages)
    once[int(once_s.argmax())] = 1.0

    def weight(stage: int, count: int) -> float:
        return float(micro[stage]) / count if count > 1 else float(once[stage])

    counts = model.stage_counts
    weighted = model.problem.reweighted(
        [weight(s, n) for s, n in zip(counts.node_stage, counts.node_count, strict=True)],
        [weight(s, n) for s, n in zip(counts.edge_stage, counts.edge_count, strict=True)],
    )
    prices = {2 * s: float(y * micro[s] / turns) for s, y in enumerate(s_per_byte) if y > 0}
    lagrangian = solve_exactly(weighted.charged(prices), seconds=seconds)
    return lagrangian.lower_bound - sum(prices.values()) * memory_bytes if prices else lagrangian.lower_bound, lagrangian.choice
