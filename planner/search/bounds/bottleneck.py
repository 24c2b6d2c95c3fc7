"""A lower bound on the time of a step if stages are unequal; the objective of the search itself uses the mean of the stages.

    step  =  sum_i t_i + (m - 1) max t_i + max u_i   >=   sum_i t_i + (m - 1) t_b + u_c          for any stages b and c             (1)

If b and c are the slowest stages of a good choice, the minimum of the right side is nearly the time of that choice.  A gap remains only if a
faster stage b or c would make another stage the slowest.

Without a choice, that of the Lagrangian relaxation of memory serves, at multipliers that the pieces give         (2)  -> whole_model_bounds
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from planner.search.model import SearchModel
from planner.solve import solve_exactly
from planner.solve.problem import Ints
from planner.solve.time_limit import NO_LIMIT, TimeLimit

__all__ = ["bottleneck_bound", "whole_model_bounds"]

_ROUNDS = 4
_CLOSE = 3e-3
"""Share of the relaxation's optimum that may stay unproven; the bound is valid in any case."""


def bottleneck_bound(
    model: SearchModel,
    choice: Ints,
    *,
    s_per_byte: Sequence[float] = (),
    memory_bytes: float = float("inf"),
    time_limit: TimeLimit = NO_LIMIT,
) -> tuple[float, Ints]:
    """(1) for the slowest stages of a choice.

    Args:
        s_per_byte: per stage, the Lagrange multiplier of memory for the search's own objective.   memory_bytes: of a device.
        time_limit: once it is up, the solver stops with the bound that it has.

    Returns:
        (lower bound on the step in seconds, the choice that gave it, which need not fit in memory).
    """
    micro_s, once_s = model.stage_s(choice)
    slots, stages = model.pipeline_slots, model.staged.num_stages
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
    charges = {2 * s: float(y * micro[s] / slots) for s, y in enumerate(s_per_byte) if y > 0}
    lagrangian = solve_exactly(weighted.charged(charges), seconds=max(time_limit.remaining_s(), 0.0), clock=time_limit.clock)
    return lagrangian.lower_bound - sum(charges.values()) * memory_bytes if charges else lagrangian.lower_bound, lagrangian.choice


def whole_model_bounds(
    model: SearchModel, *, s_per_byte: Sequence[float], memory_bytes: float, time_limit: TimeLimit = NO_LIMIT
) -> Iterator[float]:
    """(2): lower bounds on the step of all plans of one shape within memory, in seconds, each at least the one before.

    No choice that fits is looked for.

    Args:
        s_per_byte: per stage, a multiplier of memory; empty: memory does not bind.   memory_bytes: of a device.

    Raises:
        NotFoundInTime: the solver had no choice in time; what was given before holds.
    """
    problem, stages = model.problem, model.staged.num_stages
    multipliers = np.array(s_per_byte, dtype=float)
    charges = {2 * s: float(y) for s, y in enumerate(multipliers) if y > 0}
    relaxed = solve_exactly(problem.charged(charges), seconds=max(time_limit.remaining_s(), 0.0), clock=time_limit.clock, gap=_CLOSE)
    bound = (relaxed.lower_bound - (sum(charges.values()) * memory_bytes if charges else 0.0)) / stages
    yield bound
    for _ in range(_ROUNDS if stages > 1 else 0):
        if time_limit.is_up():
            break
        other_s, choice = bottleneck_bound(
            model, relaxed.choice, s_per_byte=multipliers.tolist(), memory_bytes=memory_bytes, time_limit=time_limit
        )
        bound = max(bound, other_s)
        yield bound
        if not multipliers.any():
            break
        full = (problem.held(choice, 2 * stages).reshape(stages, 2) > memory_bytes).any(axis=1)
        multipliers = multipliers * np.where(full, 1.5, 0.75)
